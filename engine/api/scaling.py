"""`POST /v1/scale`: other numbers of actors, while the engine serves; `engine.actors.reconciler` brings them about."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from engine.api.json_bodies import decode_body
from engine.config import Config, store_urls
from engine.core.model.routing import SLOTS, TIMER_PARTITIONS
from engine.errors import Invalid
from engine.publish import media_types

COUNT_MAX: Final = {"shards": SLOTS, "schedulers": TIMER_PARTITIONS, "edges": 64}
"""Of each kind of actor, as many as the setting allows."""


class _Request(Struct, forbid_unknown_fields=True):
    shards: int | float | UnsetType = UNSET  # 4.0 is an integer in JSON
    schedulers: int | float | UnsetType = UNSET
    edges: int | float | UnsetType = UNSET
    force: bool = False


_REQUEST: Final = msgspec.json.Decoder(_Request)


def numbers_of(body: bytes, config: Config) -> tuple[dict[str, int], bool]:
    """The numbers that a request asks for, by `shards`, `schedulers` and `edges`; and whether also beyond what the nodes carry.

    Raises:
        Problem: 400 or 422, the request is not valid.
    """
    request = decode_body(_REQUEST, body, _Request)
    wanted = {name: number for name in COUNT_MAX if (number := getattr(request, name)) is not UNSET}
    if not wanted:
        raise media_types.unacceptable(Invalid("at least one of shards, schedulers and edges is needed"))
    stores = len(store_urls(config.redis_url))
    for name, number in wanted.items():
        least, most = 1 if name == "edges" else stores, COUNT_MAX[name]  # of the others one for each store
        if number != int(number) or not least <= number <= most:
            raise media_types.unacceptable(Invalid(f"a whole number from {least} to {most}", f"$.{name}"))
    return {name: int(number) for name, number in wanted.items()}, request.force
