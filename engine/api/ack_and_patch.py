"""Parses the bodies of `PATCH /v1/scheduled/{scheduled_id}` and `POST /v1/ack`, and what other small bodies have in common with them."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from engine.config import Config
from engine.core.model.constants import SEQ_MAX, TS_MS_MAX
from engine.core.model.names import is_id
from engine.errors import Invalid
from engine.http.problems import bad_request, too_large
from engine.publish import media_types
from engine.publish.drafts import due_of

T = TypeVar("T", bound=Struct)


class _Patch(Struct, forbid_unknown_fields=True, gc=False):
    """The body of PATCH /v1/scheduled/{scheduled_id}."""

    delay: int | float | UnsetType = UNSET
    at: int | str | UnsetType = UNSET


class _Acknowledgement(Struct, forbid_unknown_fields=True, gc=False):
    """The body of POST /v1/ack."""

    seq: int | UnsetType = UNSET
    ids: list[str] | UnsetType = UNSET
    ts: int | UnsetType = UNSET


_PATCH: Final = msgspec.json.Decoder(_Patch)
_ACKNOWLEDGEMENT: Final = msgspec.json.Decoder(_Acknowledgement)


def parse_patch(body: bytes, config: Config, now_ms: int) -> int:
    """The new due time of a timer, from `{"at"}` or `{"delay"}`, in ms since the epoch, not before `now_ms`.

    Raises:
        Problem: 400, 413 or 422.
    """
    patch = decode_small(_PATCH, body, config)
    try:
        due_ms, _ = due_of(patch.delay, patch.at, config, now_ms)
    except Invalid as error:
        raise media_types.unacceptable(error) from None
    return max(due_ms, now_ms)


def parse_ack(body: bytes, config: Config) -> tuple[int, list[str], int]:
    """The sequence number, -1 when there is none, and the ids of `{"seq"}`, `{"ids"}` or both; and `ts`, 0 when there is none.

    Raises:
        Problem: 400, 413 or 422.
    """
    ack = decode_small(_ACKNOWLEDGEMENT, body, config)
    seq = -1 if ack.seq is UNSET else ack.seq
    ids = [] if ack.ids is UNSET else ack.ids
    try:
        if ack.seq is not UNSET and not 0 <= seq <= SEQ_MAX:
            raise Invalid(f"0 to {SEQ_MAX}", "$.seq")
        if ack.ts is not UNSET and not 0 <= ack.ts <= TS_MS_MAX:
            raise Invalid(f"milliseconds since the epoch, 0 to {TS_MS_MAX}", "$.ts")
        if ack.seq is UNSET and not ids:
            raise Invalid("seq or at least one of ids is needed")
        check_ids(ids, config)
    except Invalid as error:
        raise media_types.unacceptable(error) from None
    return seq, ids, 0 if ack.ts is UNSET else ack.ts


def check_ids(ids: list[str], config: Config) -> None:
    """Check ids of messages. Raises Invalid when there are too many, or one is none."""
    if len(ids) > config.items_max:
        raise Invalid(f"at most {config.items_max} ids", "$.ids")
    for index, id_ in enumerate(ids):
        if not is_id(id_, config.id_chars_max):
            raise Invalid(f"printable text of 1 to {config.id_chars_max} characters", f"$.ids[{index}]")


def decode_small(decoder: msgspec.json.Decoder[T], body: bytes, config: Config) -> T:
    """A small JSON object.

    Raises:
        Problem: 400, 413 or 422.
    """
    if len(body) > config.body_bytes_max:
        raise too_large(config.body_bytes_max)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise media_types.unacceptable(media_types.invalid(error, decoder.type)) from None
    except msgspec.DecodeError as error:
        raise bad_request(media_types.malformed(error)) from None
    except UnicodeDecodeError:
        raise bad_request("the body is not valid UTF-8") from None
