"""The digest of what a user has missed, as the engine tells it: a frame on connect, or the answer to a request."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct


class DigestMessage(Struct):
    """A message that a line stands for. `event_id` as of a `Message`."""

    id: str
    seq: int
    event_id: str


class DigestLine(Struct):
    """Messages of one intent.

    Attributes:
        text: for people, in the language of the user's profile.
        intent: `liked`, `commented`, `failed`, `changed`, `wrote`, `said` (the text of one of them), `other`, ...
        priority: `high` when a message in it is.
        count: messages that these stand for, with those that were merged before.
        from_, to: when the first and the last happened, milliseconds since the epoch.
        messages: those that it stands for.
    """

    text: str
    intent: str
    count: int
    to: int
    messages: list[DigestMessage]
    from_: int = msgspec.field(name="from", default=0)
    priority: Literal["high", "normal"] = "normal"


class Digest(Struct, tag="digest"):
    """What a user has missed, the most important first. It acknowledges nothing.

    Attributes:
        since, until: what it is about, milliseconds since the epoch.
        messages: how many the lines stand for.
        skipped: how many were left out, by reason: `expired`, `muted`, `replaced`.
        older: more messages are pending than a digest tells of.
        model: a model grouped what no rule settles.
    """

    until: int
    messages: int
    lines: list[DigestLine]
    since: int = 0
    skipped: dict[str, int] = {}
    older: bool = False
    model: bool = False
