"""`Item`: one published notification as it was sent. Its fields are validated in `engine.publish.drafts`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from engine.core.model.question import Choice
from engine.errors import Invalid

_TIME: Final = Annotated[datetime, Meta(tz=True)]
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)


class Collapse(Struct, forbid_unknown_fields=True, gc=False):
    """Messages of one `key`: a newer one may stand for older ones; with a `window` in seconds they are merged."""

    key: str
    window: int | float = 0
    leading: bool = False
    text: str | UnsetType = UNSET


class Ask(Struct, forbid_unknown_fields=True, gc=False):
    """A question with its `answers`; `deadline` in seconds, or a duration such as `30m`; `to`: how many members of a topic must agree."""

    answers: tuple[Choice, ...] = ()
    text: bool = False
    deadline: int | float | str | UnsetType = UNSET
    default: str | UnsetType = UNSET
    to: int | Literal["anyone", "everyone"] = "anyone"
    do: str | UnsetType = UNSET
    event: str | UnsetType = UNSET


class Options(Struct, gc=False):
    """Members that items and CloudEvents have under one name (`engine.core.model.members`)."""

    type: str
    priority: Literal["high", "normal", "low"] | UnsetType = UNSET
    url: str | UnsetType = UNSET
    image: str | UnsetType = UNSET
    data: Raw | UnsetType = UNSET
    delay: int | float | UnsetType = UNSET
    at: int | str | UnsetType = UNSET
    ttl: int | float | UnsetType = UNSET
    retain: bool | UnsetType = UNSET
    category: str | UnsetType = UNSET
    traceparent: str | UnsetType = UNSET


class Item(Options, forbid_unknown_fields=True, gc=False, kw_only=True):
    """One published item as it was sent. An unknown field is an error: an item with `dealy` would otherwise be delivered at once."""

    user: str | UnsetType = UNSET
    users: list[str] | UnsetType = UNSET
    topic: str | UnsetType = UNSET
    broadcast: bool = False
    id: str | UnsetType = UNSET
    actor: Raw | UnsetType = UNSET
    target: Raw | UnsetType = UNSET
    context: Raw | UnsetType = UNSET
    ts: int | UnsetType = UNSET
    collapse: Collapse | UnsetType = UNSET
    ask: Ask | UnsetType = UNSET
    unless_active: bool = False

    def copies(self) -> bool:
        """Has it a member of `COPIED`? Each is named: a loop over the table costs every message more than all of its options."""
        return (
            self.actor is not UNSET
            or self.target is not UNSET
            or self.context is not UNSET
            or self.url is not UNSET
            or self.image is not UNSET
        )


def rfc3339_ms(text: str, path: str) -> int:
    """Milliseconds since the epoch of an RFC 3339 time; negative before it.

    Raises:
        Invalid: it is no such time, or has no offset.
    """
    try:
        time: datetime = msgspec.convert(text, _TIME)
    except msgspec.ValidationError:
        raise Invalid("not an RFC 3339 time with an offset, such as 2031-05-17T09:30:00Z", path) from None
    return (time - EPOCH) // MILLISECOND
