"""Groups in a real journal."""

from __future__ import annotations

from redis.asyncio import Redis

from engine.config import Config
from engine.core.commit.group import Group, PostQueue
from engine.core.commit.judge import Pending
from engine.core.journal.journal_records import StoredMessage
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.envelope import Envelope
from engine.core.model.routing import slot_of
from engine.core.wire.records import Post
from engine.store.journal import Journal
from tests.support.stored import decode_journal

USER = "t:u"


class Writer:
    """Builds groups as a shard does."""

    def __init__(self, client: Redis, shard: int = 3, key: str = USER) -> None:
        self.key = key
        self.slot = slot_of(key)
        self.mailboxes = {key: Mailbox(key, 0)}
        self.intake = PostQueue(self.mailboxes, Config(recent_ids=10))
        self.journal = Journal(client, shard, 60_000)

    def group(self, *ids: str) -> Group:
        for id in ids:
            self.intake.add(Pending("e", Post(1, self.key, True, 9_999, Envelope(id, b"digest..", 1, True, b'"x":1'))), 0)
        group, _ = self.intake.build([], 100, 1 << 20, 0)
        assert group is not None
        return group

    async def write(self, *ids: str) -> dict[int, bytes]:
        group = self.group(*ids)
        known = await self.journal.append(group)
        if known:
            self.intake.refused()
        else:
            self.intake.committed()
        return known

    async def stored(self) -> list[str]:
        return [
            record.envelope.id
            async for _, payload in self.journal.entries(self.slot)
            for record in decode_journal(payload)
            if isinstance(record, StoredMessage)
        ]
