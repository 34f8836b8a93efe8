"""Detects that storage has lost writes it had confirmed to a shard.

A fail-over to a lagging replica, a truncated append-only file and a restored backup all leave a Redis that works and lacks the most
recent writes. What it has is a prefix of the writes, because replication and the append-only file keep their order. So it suffices to
compare the last write: the head of the journal (every group) and the mark (every checkpoint).

    append      its script rejects a head that is not the shard's last one
    read        of pages and streams gets the mark on the same connection, so from the same server
    checkpoint  is rejected by slot where the slot lacks the previous one (`engine.store.pages`), and as a whole where a slot lacks this
                one when the journal is to be trimmed
    idle        a periodic `check`, because a shard without writes would not notice

    head   `<epoch>-<group>`, with a `u` when that group was rolled back
    mark   `<epoch>-<checkpoint>`

Confirmed values only grow: a write whose reply was lost may have been applied, so a higher value than expected is no loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis.asyncio as redis
from redis.exceptions import RedisError

from engine.errors import DataLost, Fenced, StorageUnavailable
from engine.store.keys import EPOCH_FIELD, journal_head_key, journal_mark_key, meta_key, shard_epoch_key


class LossDetector:
    """The last writes that storage has confirmed to one incarnation of a shard.

    Attributes:
        epoch: of the incarnation, 0 before it has one.
        head: of the journal.
        mark: number of the last checkpoint.
    """

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self.epoch = 0
        self.head = ""
        self.mark = 0

    def opened(self, epoch: int) -> None:
        """Begin a new epoch, without writes."""
        self.epoch = epoch
        self.head = f"{epoch}-0"
        self.mark = 0

    def guard(self, pipeline: Any) -> Callable[[Any], None]:
        """Append a read of the mark to a pipeline of reads; returns the function that checks its reply.

        The function raises DataLost when the server lacks a checkpoint, Fenced when a newer incarnation wrote one.
        """
        at_least = self.mark
        pipeline.get(journal_mark_key(self._shard))
        return lambda reply: self._check_mark(reply, at_least)

    async def check(self, client: redis.Redis) -> str:
        """Check that storage has every confirmed write. Returns the data epoch, which another shard may have replaced.

        Raises:
            Fenced: this incarnation has been replaced.
            DataLost: a write is missing.
            StorageUnavailable: no reply.
        """
        head, mark = self.head, self.mark
        try:
            pipeline = client.pipeline(transaction=False)
            pipeline.get(shard_epoch_key(self._shard))
            pipeline.get(journal_head_key(self._shard))
            pipeline.get(journal_mark_key(self._shard))
            pipeline.hget(meta_key(), EPOCH_FIELD)
            found = await pipeline.execute()
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"check of the last writes: {error}") from error
        epoch = int(found[0] or 0)
        if epoch > self.epoch:
            raise Fenced(f"epoch {epoch} owns the keys now")
        if epoch < self.epoch:
            raise DataLost(f"storage has lost the epoch {self.epoch}, it is {epoch}")
        self._check_head(found[1], head)
        self._check_mark(found[2], mark)
        if found[3] is None:
            raise DataLost("storage has lost the data epoch")
        return str(found[3].decode())

    def _check_head(self, reply: bytes | None, expected: str) -> None:
        found = (reply or b"").decode()
        if found != expected and self._number(found.removesuffix("u")) <= self._number(expected.removesuffix("u")):
            raise DataLost(f"storage has lost the group {expected}, the last is {found or 'not there'}")

    def _check_mark(self, reply: bytes | None, at_least: int) -> None:
        found = (reply or b"").decode()
        if self._number(found) < at_least:
            raise DataLost(f"storage has lost the checkpoint {at_least}, the last is {found or 'not there'}")

    def _number(self, text: str) -> int:
        """The number in `<epoch>-<number>`; -1 when the epoch is an older one, or the text empty.

        Raises Fenced when the epoch is a newer one: no write of this incarnation is lost.
        """
        epoch, _, number = text.partition("-")
        if epoch and int(epoch) > self.epoch:
            raise Fenced(f"epoch {epoch} owns the keys now")
        return int(number) if epoch == str(self.epoch) else -1
