"""Pages: a user's mailbox without bodies, in one hash per slot; and the checkpoints that write them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import msgspec
import redis.asyncio as redis
from redis.exceptions import RedisError

from engine.core.checkpoint import Page, Spill, decode_page
from engine.core.slots import slot_of
from engine.errors import StorageUnavailable
from engine.store.keys import offline_key, page_key, slot_epoch_key
from engine.store.script import Script
from engine.store.witness import Witness

log = logging.getLogger(__name__)

_CHECKPOINT = Script("slot_checkpoint")

_SLOT_MESSAGES = 500
"""Messages of one script run: a few milliseconds during which Redis serves nobody else."""

_ROUND_TRIP_RUNS = 64
"""Script runs of one round trip: other commands get their turn between two round trips."""


class Pages:
    """Reads pages and writes checkpoints under the epoch of `witness`."""

    def __init__(self, client: redis.Redis, witness: Witness, stream_max: int) -> None:
        self._client = client
        self._witness = witness
        self._stream_max = stream_max
        self.corrupt: list[tuple[str, bytes]] = []

    async def read(self, keys: Sequence[str]) -> dict[str, Page | None]:
        """The pages of these mailboxes, `None` where there is none. A page that cannot be read counts as none, is logged and
        kept in `corrupt` for the caller to quarantine.

        Raises DataLost, StorageUnavailable.
        """
        by_slot: dict[int, list[str]] = {}
        for key in keys:
            by_slot.setdefault(slot_of(key), []).append(key)
        try:
            pipeline = self._client.pipeline(transaction=False)
            check = self._witness.guard(pipeline)
            for slot, fields in by_slot.items():
                pipeline.hmget(page_key(slot), fields)
            marked, *replies = await pipeline.execute()
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"pages: {error}") from error
        check(marked)
        pages: dict[str, Page | None] = {}
        for fields, blobs in zip(by_slot.values(), replies, strict=True):
            for key, blob in zip(fields, blobs, strict=True):
                pages[key] = self._decode(key, blob)
        return pages

    def _decode(self, key: str, blob: bytes | None) -> Page | None:
        if blob is None:
            return None
        try:
            return decode_page(blob)
        except msgspec.DecodeError:
            log.exception("the page of %s cannot be read", key)
            self.corrupt.append((f"page {key}", blob))
            return None

    async def write(self, spills: Iterable[Spill], now_ms: int) -> None:
        """Write pages and spilled messages, each mailbox atomically. Safe to repeat.

        Raises:
            Fenced: this incarnation has been replaced.
            StorageUnavailable: no answer; some of it may be written.
        """
        by_slot: dict[int, list[Spill]] = {}
        for spill in spills:
            by_slot.setdefault(slot_of(spill.key), []).append(spill)
        calls: list[tuple[list[str], list[object]]] = []
        for slot, of_slot in by_slot.items():
            keys: list[str] = []
            args: list[object] = []
            messages = 0
            for spill in of_slot:
                if not keys or messages + len(spill.entries) > _SLOT_MESSAGES:
                    keys, args, messages = [slot_epoch_key(slot), page_key(slot)], [self._witness.epoch, self._stream_max, now_ms], 0
                    calls.append((keys, args))
                keys.append(offline_key(spill.key))
                args += [spill.key, spill.page, spill.trim_below, spill.expires_ms, len(spill.entries)]
                for seq, blob in spill.entries:
                    args += (seq, blob)
                messages += len(spill.entries)
        for start in range(0, len(calls), _ROUND_TRIP_RUNS):
            await _CHECKPOINT.run_many(self._client, calls[start : start + _ROUND_TRIP_RUNS])
