"""How many actors are wanted, in Redis: written by the controller in control, read by its successor."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import redis.asyncio as redis

from engine.core.controller.wanted import WantedNumbers
from engine.store.keys import CONTROLLER_FIELD, META_KEY, WANTED_FIELD
from engine.store.lua import Script
from engine.store.storage_calls import StorageCalls

log = logging.getLogger(__name__)

_WRITE = Script("wanted_write")

_LATEST = 1 << 53  # ms; no clock says more

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(WantedNumbers)


async def read_wanted(client: redis.Redis) -> WantedNumbers | None:
    """What was wanted last; None when nothing ever was, or when that cannot be read. Raises StorageUnavailable."""
    with StorageCalls("wanted numbers"):
        packed: Any = await client.hget(META_KEY, WANTED_FIELD)
    try:
        return None if packed is None else _decoder.decode(packed)
    except msgspec.DecodeError as error:
        log.error("the wanted numbers in Redis cannot be read, and are written anew: %s: %r", error, packed)
        return None


async def write_wanted(client: redis.Redis, wanted: WantedNumbers, epoch: int, *, unreadable: bool = False) -> None:
    """Keep what is wanted from now on, unless something is stored that was wanted later. Idempotent.

    Args:
        epoch: of the controller (`engine.store.epoch.take_control`).
        unreadable: what is stored cannot be read, and counts for nothing.

    Raises:
        Fenced: another controller has taken control.
        StorageUnavailable: no reply; it may have been written.
    """
    await _WRITE.run(
        client, [META_KEY], [CONTROLLER_FIELD, epoch, WANTED_FIELD, _encoder.encode(wanted), _LATEST if unreadable else wanted.at_ms]
    )
