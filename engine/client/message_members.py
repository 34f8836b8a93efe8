"""The members of messages and events that applications publish, as types for checkers, and in the form in which they are sent.

`engine.publish.items` is what the engine reads. A member that is None is left out. Python's own types of time are accepted: a `timedelta`
where seconds are expected, and a `datetime` with a time zone where milliseconds since the epoch are expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, Required, TypedDict

Seconds = float | timedelta
Priority = Literal["high", "normal", "low"]


class EventMembers(TypedDict, total=False):
    """Optional members of an event.

    Attributes:
        id: idempotency key; a repeat under it changes nothing.
        actor, target, context: who did it, to what, and where; any JSON.
        ts: when it occurred: ms since the epoch, or a `datetime` with a time zone.
    """

    id: str | None
    actor: Any
    target: Any
    context: Any
    ts: int | datetime | None


class CollapseMembers(TypedDict, total=False):
    """How messages of one `key` become one: the newer replaces the older, or all within `window` seconds are merged.

    Attributes:
        key: of the messages that become one.
        window: seconds, or a `timedelta`.
        leading: deliver the first message at once. Needs a window.
        text: of the merged message, with `{count}`. Needs a window.
    """

    key: Required[str]
    window: Seconds
    leading: bool
    text: str


class MessageMembers(EventMembers, total=False):
    """Optional members of a message, beside its `type`, `user` and `data`.

    Attributes:
        users, topic, broadcast: the audience, in place of `user`: several users, the subscribers of a topic, or everyone.
        priority: "normal" by default.
        url: http or https, or a path; opened by a click.
        delay: seconds, or a `timedelta`, after which it is delivered.
        at: when it is delivered: ms since the epoch, RFC 3339 text, or a `datetime` with a time zone.
        ttl: seconds, or a `timedelta`, after which it expires.
        retain: False: only for users who are connected.
        collapse: replaces or merges messages of the same key.
        category: its limits and quiet hours apply.
        unless_active: leave it out for a user who is active.
        traceparent: W3C trace context.
    """

    users: list[str] | None
    topic: str | None
    broadcast: bool | None
    priority: Priority | None
    url: str | None
    delay: Seconds | None
    at: int | str | datetime | None
    ttl: Seconds | None
    retain: bool | None
    collapse: CollapseMembers | None
    category: str | None
    unless_active: bool | None
    traceparent: str | None


class NewMessage(MessageMembers, total=False):
    """A whole message, an item of `publish_many`. A program that names this type has its members checked."""

    type: Required[str]
    user: str | None
    data: Any


_DURATIONS: Final = ("delay", "ttl")
_TIMES: Final = ("at", "ts")
_CONVERTED: Final = frozenset({*_DURATIONS, *_TIMES, "collapse"})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def sent_form(members: Mapping[str, Any]) -> dict[str, Any]:
    """The members as they are sent: without those that are None, durations in seconds, times in ms since the epoch.

    Raises:
        ValueError: a `datetime` has no time zone; the message names the member.
    """
    present = {name: value for name, value in members.items() if value is not None}
    if not _CONVERTED.isdisjoint(present):
        _convert_times(present)
    return present


def _convert_times(present: dict[str, Any]) -> None:
    for name in _DURATIONS:
        if isinstance(value := present.get(name), timedelta):
            present[name] = value.total_seconds()
    for name in _TIMES:
        if isinstance(value := present.get(name), datetime):
            if value.utcoffset() is None:
                raise ValueError(f"`{name}`: {value!r} has no time zone; give it one, such as tzinfo=UTC, or use its astimezone()")
            present[name] = (value - _EPOCH) // _MILLISECOND
    collapse = present.get("collapse")
    if isinstance(collapse, dict) and isinstance(window := collapse.get("window"), timedelta):
        present["collapse"] = {**collapse, "window": window.total_seconds()}
