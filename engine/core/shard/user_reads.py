"""The seam between a shard and what features read of a user: a question of an edge is answered out of the mailbox, at once.

A reader changes nothing. The kinds of questions are records of the wire (`engine.core.wire.records`); of a shard without the feature they
are rejected, and its edges do not ask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from engine.config import Config
from engine.core.commit.judge import Judge
from engine.core.mailbox.mailbox import Mailbox


class ReadContext(Struct, frozen=True):
    """What a reader may want to know beside the mailbox.

    Attributes:
        presence: of the user.
        now_ms: since the epoch.
    """

    config: Config
    judge: Judge
    data_epoch: str
    presence: str
    now_ms: int


UserReader = Callable[[Mailbox, Any, ReadContext], Struct]
"""(the user's mailbox, the question, what is around) -> the answer."""

UserReaders = Mapping[type, UserReader]
"""By the record of the question."""
