"""The copy of a message that comes back when a snooze ends: a delayed message like any other, which `replaces` the one it was made of.

Its id names the message by its number, with the epoch: numbers repeat after lost data. So one copy of a message waits, whatever devices
ask for, and a message that comes back can be snoozed again: it has a number of its own. One whose copy was cancelled, or has come, and
that is snoozed once more, gets a copy with another id.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from engine.core.model.constants import NORMAL, PRIORITIES
from engine.core.model.routing import split_key
from engine.core.wire.records import Timer
from engine.publish.drafts import Draft, republished

PREFIX: Final = "snooze:"
"""Of the ids of copies."""

_OWN: Final = ("id", "due", "replaces", "traceparent")
"""Members that a copy has of its own, or not: its trace is that of a request long ago."""

_MEMBERS: Final = msgspec.json.Decoder(dict[str, Raw])
_TEXT: Final = msgspec.json.Decoder(str)


def copy_of(key: str, event_id: str, body: bytes, until_ms: int, ttl_ms: int, turn: int = 0) -> Draft:
    """The message with this `<epoch>-<seq>` in the mailbox `key`, to be delivered again at `until_ms`.

    No terms of a category go with it: the limits for contacting the user do not count what the user asked for.

    Args:
        body: its members, as the inbox has them.
        ttl_ms: how long the copy waits for the user.
        turn: so many copies are gone.
    """
    members = _MEMBERS.decode(b"{%b}" % body)
    kept = {"replaces": members["id"]} | {name: value for name, value in members.items() if name not in _OWN}
    priority = PRIORITIES.index(_TEXT.decode(members["priority"])) if "priority" in members else NORMAL
    id = f"{PREFIX}{event_id}" + (f":{turn}" if turn else "")
    envelope = republished(id, kept, priority)
    return Draft(key, split_key(key)[1], envelope, True, until_ms + ttl_ms, ttl_ms, until_ms)


def asks(body: bytes) -> bool:
    """Whether this message is a question, which is answered under its own id: a copy's buttons would do nothing."""
    return "ask" in _MEMBERS.decode(b"{%b}" % body)


def original_of(timer: Timer) -> str | None:
    """Id of the message that this timer brings back; None for a timer of something else."""
    if not timer.envelope.id.startswith(PREFIX):
        return None
    number = timer.envelope.id.removeprefix(PREFIX).partition(":")[0].rpartition("-")[2]
    replaced = _MEMBERS.decode(b"{%b}" % timer.envelope.body).get("replaces")
    if replaced is None or not (number.isascii() and number.isdigit()):
        return None  # a publisher has chosen this prefix
    return _TEXT.decode(replaced)
