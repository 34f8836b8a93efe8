"""How a shard notices that storage has lost what it had confirmed.

A fail-over to a replica that lagged, a log that was cut, a backup that was restored: each leaves a Redis that answers well and has
forgotten the last moments. What it has is a beginning of what was written, because replication and the append-only file keep
the order. So it is enough to look at the last thing one wrote: the head of the journal (every group) and the mark (every
checkpoint). An append is refused by its script when the head is not what the shard left there; a read of pages or streams
asks for the mark on the same connection, so from the same server; a checkpoint is refused slot by slot where the slot lacks
the one before it (`engine.store.pages`), and as a whole where a slot does not show this one by the time the journal is to be trimmed;
and now and then everything is asked for without a reason, because a shard with nothing to write would not notice.

    head   `<epoch>-<group>`, with a `u` when that group was rolled back
    mark   `<epoch>-<checkpoint>`

Confirmed values only grow: a write whose answer was lost may have been applied, so more than expected is no loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis.asyncio as redis
from redis.exceptions import RedisError

from engine.errors import DataLost, Fenced, StorageUnavailable
from engine.store.keys import EPOCH_FIELD, journal_head_key, journal_mark_key, meta_key, shard_epoch_key


class LossDetector:
    """What storage has confirmed to one incarnation of a shard."""

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self.epoch = 0
        self.head = ""
        self.mark = 0

    def opened(self, epoch: int) -> None:
        """A new epoch was taken; nothing is written under it yet."""
        self.epoch = epoch
        self.head = f"{epoch}-0"
        self.mark = 0

    def guard(self, pipeline: Any) -> Callable[[Any], None]:
        """Add the question for the mark to a pipeline of reads; returns what to do with its reply.

        The check raises DataLost when the server that answered lacks a checkpoint, Fenced when another incarnation wrote one.
        """
        at_least = self.mark
        pipeline.get(journal_mark_key(self._shard))
        return lambda reply: self._check_mark(reply, at_least)

    async def look(self, client: redis.Redis) -> str:
        """Is everything there? Returns the data epoch, which somebody else may have replaced.

        Raises:
            Fenced: this incarnation has been replaced.
            DataLost: something is missing.
            StorageUnavailable: no answer.
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
            raise StorageUnavailable(f"a look at what is there: {error}") from error
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
        """The number behind this incarnation's epoch; -1 when it is an older one's, or nothing.

        A newer incarnation's is no loss: Fenced.
        """
        epoch, _, number = text.partition("-")
        if epoch and int(epoch) > self.epoch:
            raise Fenced(f"epoch {epoch} owns the keys now")
        return int(number) if epoch == str(self.epoch) else -1
