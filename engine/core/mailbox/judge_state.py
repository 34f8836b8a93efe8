"""What the judge of a shard (`engine.core.commit.judge`) stores beside messages. A feature extends these."""

from __future__ import annotations

from msgspec import Struct


class JudgeRecord(Struct, frozen=True, array_like=True, gc=False):
    """A record of the journal that the judge makes, and applies at commit and at replay. `key` is the mailbox's."""

    key: str
