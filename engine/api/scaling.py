"""`POST /v1/scale`: other numbers of actors, while the engine serves; `engine.actors.reconciler` brings them about."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from engine.core.model.routing import SLOTS, TIMER_PARTITIONS
from engine.errors import Invalid
from engine.http.problems import bad_request
from engine.publish import media_types

COUNT_MAX: Final = {"shards": SLOTS, "schedulers": TIMER_PARTITIONS, "edges": 64}
"""Of each kind of actor, as many as the setting allows."""


class _Request(Struct, forbid_unknown_fields=True):
    shards: int | float | UnsetType = UNSET  # 4.0 is an integer in JSON
    schedulers: int | float | UnsetType = UNSET
    edges: int | float | UnsetType = UNSET


_REQUEST: Final = msgspec.json.Decoder(_Request)


def numbers_of(body: bytes) -> dict[str, int]:
    """The numbers that a request asks for, by `shards`, `schedulers` and `edges`.

    Raises:
        Problem: 400 or 422, the request is not valid.
    """
    try:
        request = _REQUEST.decode(body)
    except msgspec.ValidationError as error:
        raise media_types.unacceptable(media_types.invalid(error, _Request)) from None
    except msgspec.DecodeError as error:
        raise bad_request(media_types.malformed(error)) from None
    except UnicodeDecodeError:
        raise bad_request("the body is not valid UTF-8") from None
    wanted = {name: number for name, number in msgspec.structs.asdict(request).items() if number is not UNSET}
    if not wanted:
        raise media_types.unacceptable(Invalid("at least one of shards, schedulers and edges is needed"))
    for name, number in wanted.items():
        if number != int(number) or not 1 <= number <= COUNT_MAX[name]:
            raise media_types.unacceptable(Invalid(f"a whole number from 1 to {COUNT_MAX[name]}", f"$.{name}"))
    return {name: int(number) for name, number in wanted.items()}
