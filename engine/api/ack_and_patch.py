"""Parses the bodies of `PATCH /v1/scheduled/{scheduled_id}`, `POST /v1/ack` and `POST /v1/nack`."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from engine.api.json_bodies import decode_body
from engine.config import Config
from engine.core.model.constants import REASON_CHARS_MAX, SEQ_MAX, TS_MS_MAX
from engine.core.model.names import is_id
from engine.errors import Invalid
from engine.publish import media_types
from engine.publish.drafts import due_of


class _Patch(Struct, forbid_unknown_fields=True, gc=False):
    """The body of PATCH /v1/scheduled/{scheduled_id}."""

    delay: int | float | UnsetType = UNSET
    at: int | str | UnsetType = UNSET


class _Acknowledgement(Struct, forbid_unknown_fields=True, gc=False):
    """The body of POST /v1/ack."""

    seq: int | UnsetType = UNSET
    epoch: str | UnsetType = UNSET
    ids: list[str] | UnsetType = UNSET
    ts: int | UnsetType = UNSET


class _Refusal(Struct, forbid_unknown_fields=True, gc=False):
    """The body of POST /v1/nack."""

    ids: list[str]
    reason: str = ""


_PATCH: Final = msgspec.json.Decoder(_Patch)
_ACKNOWLEDGEMENT: Final = msgspec.json.Decoder(_Acknowledgement)
_REFUSAL: Final = msgspec.json.Decoder(_Refusal)


def parse_patch(body: bytes, config: Config, now_ms: int) -> int:
    """The new due time of a timer, from `{"at"}` or `{"delay"}`, in ms since the epoch, not before `now_ms`.

    Raises:
        Problem: 400 or 422.
    """
    patch = decode_body(_PATCH, body, _Patch)
    try:
        due_ms, _ = due_of(patch.delay, patch.at, config, now_ms)
    except Invalid as error:
        raise media_types.unacceptable(error) from None
    return max(due_ms, now_ms)


def parse_ack(body: bytes, config: Config) -> tuple[int, list[str], int, str]:
    """The sequence number, -1 when there is none, and the ids of `{"seq"}`, `{"ids"}` or both; `ts`, 0, and `epoch`, "" when there is none.

    Raises:
        Problem: 400 or 422.
    """
    ack = decode_body(_ACKNOWLEDGEMENT, body, _Acknowledgement)
    seq = -1 if ack.seq is UNSET else ack.seq
    ids = [] if ack.ids is UNSET else ack.ids
    try:
        if ack.seq is not UNSET and not 0 <= seq <= SEQ_MAX:
            raise Invalid(f"0 to {SEQ_MAX}", "$.seq")
        if ack.ts is not UNSET and not 0 <= ack.ts <= TS_MS_MAX:
            raise Invalid(f"milliseconds since the epoch, 0 to {TS_MS_MAX}", "$.ts")
        epoch = epoch_of(ack.epoch, config)
        if ack.seq is UNSET and not ids:
            raise Invalid("seq or at least one of ids is needed")
        check_ids(ids, config)
    except Invalid as error:
        raise media_types.unacceptable(error) from None
    return seq, ids, 0 if ack.ts is UNSET else ack.ts, epoch


def parse_nack(body: bytes, config: Config) -> tuple[list[str], str]:
    """The ids and the reason, "" when there is none.

    Raises:
        Problem: 400 or 422.
    """
    nack = decode_body(_REFUSAL, body, _Refusal)
    try:
        if not nack.ids:
            raise Invalid("at least one id is needed", "$.ids")
        check_ids(nack.ids, config)
        if len(nack.reason) > REASON_CHARS_MAX:
            raise Invalid(f"at most {REASON_CHARS_MAX} characters", "$.reason")
    except Invalid as error:
        raise media_types.unacceptable(error) from None
    return nack.ids, nack.reason


def check_ids(ids: list[str], config: Config) -> None:
    """Check ids of messages. Raises Invalid when there are too many, or one is none."""
    if len(ids) > config.items_max:
        raise Invalid(f"at most {config.items_max} ids", "$.ids")
    for index, id_ in enumerate(ids):
        _check_id(id_, config, f"$.ids[{index}]")


def epoch_of(given: str | UnsetType, config: Config) -> str:
    """The epoch of a number in a request, "" when there is none. Raises Invalid."""
    if given is UNSET:
        return ""
    _check_id(given, config, "$.epoch")
    return given


def _check_id(text: str, config: Config, path: str) -> None:
    if not is_id(text, config.id_chars_max):
        raise Invalid(f"printable text of 1 to {config.id_chars_max} characters", path)
