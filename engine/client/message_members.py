"""The members of messages and events, as types for checkers: those that applications publish, and those that they receive.

`engine.core.model.members` has their table. A member that is None is left out. Python's own types of time are accepted: a `timedelta`
where seconds are expected, and a `datetime` with a time zone where milliseconds since the epoch are expected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, Required, TypeAlias, TypedDict, TypeVar

from msgspec import Struct

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


class ChoiceMembers(TypedDict, total=False):
    """One answer that can be chosen.

    Attributes:
        id: for programs.
        label: on the button.
        style: how it is shown; "plain" by default.
    """

    id: Required[str]
    label: Required[str]
    style: Literal["plain", "primary", "danger"]


class AskMembers(TypedDict, total=False):
    """A question.

    Attributes:
        answers: those that can be chosen.
        text: the answer may have a text; without `answers` it is one.
        deadline: seconds, a `timedelta`, or a duration such as `30m`. A day by default.
        default: id of the answer at the deadline.
        to: "anyone", "everyone" or how many members of a topic give the same answer.
        do: target that is called with the answer, one of the setting `question_targets`.
        event: type of the event that the rules get with the answer.
    """

    answers: Sequence[ChoiceMembers]
    text: bool
    deadline: Seconds | str
    default: str | None
    to: Literal["anyone", "everyone"] | int
    do: str | None
    event: str | None


class MessageMembers(EventMembers, total=False):
    """Optional members of a message, beside its `type`, `user` and `data`.

    Attributes:
        users, topic, broadcast: the audience, in place of `user`: several users, the subscribers of a topic, or everyone.
        priority: "normal" by default.
        url: http or https, or a path; opened by a click.
        image: http or https, or a path; shown beside the text.
        delay: seconds, or a `timedelta`, after which it is delivered.
        at: when it is delivered: ms since the epoch, RFC 3339 text, or a `datetime` with a time zone.
        ttl: seconds, or a `timedelta`, after which it expires.
        retain: False: only for users who are connected.
        collapse: replaces or merges messages of the same key.
        ask: a question, see `Publisher.ask`, which waits for the answer.
        category: its limits and quiet hours apply.
        unless_active: leave it out for a user who is active.
        traceparent: W3C trace context.
    """

    users: list[str] | None
    topic: str | None
    broadcast: bool | None
    priority: Priority | None
    url: str | None
    image: str | None
    delay: Seconds | None
    at: int | str | datetime | None
    ttl: Seconds | None
    retain: bool | None
    collapse: CollapseMembers | None
    ask: AskMembers | None
    category: str | None
    unless_active: bool | None
    traceparent: str | None


class NewMessage(MessageMembers, total=False):
    """A whole message, an item of `publish_many`. A program that names this type has its members checked."""

    type: Required[str]
    user: str | None
    data: Any


T = TypeVar("T")

Shared: TypeAlias = T | Callable[[dict[str, Any]], T]
"""A value that all rows of a dataset share, or a function of a row, a dictionary by column."""


class RowMembers(TypedDict, total=False):
    """Further members of the messages of `engine.ray.NotificationSink`: those of `NewMessage`, but for its audience."""

    actor: Shared[Any]
    target: Shared[Any]
    context: Shared[Any]
    ts: Shared[int | datetime | None]
    priority: Shared[Priority | None]
    url: Shared[str | None]
    image: Shared[str | None]
    delay: Shared[Seconds | None]
    at: Shared[int | str | datetime | None]
    ttl: Shared[Seconds | None]
    retain: Shared[bool | None]
    collapse: Shared[CollapseMembers | None]
    ask: Shared[AskMembers | None]
    category: Shared[str | None]
    unless_active: Shared[bool | None]
    traceparent: Shared[str | None]


class DeliveredMembers(Struct, kw_only=True):
    """The members of a message that a user gets.

    Attributes:
        seq: its number in the user's sequence; a repeat carries the same.
        id: the publisher's idempotency key, or the UUIDv7 generated for it; duplicates are detected by it.
        event_id: `<epoch>-<seq>`, the cursor after this message; "" for an early copy, until its place is reached.
        early: it came ahead of lower numbers.
        type: dotted event type, `post.liked`.
        priority: `high`, `normal` or `low`.
        ts: when it happened, milliseconds since the epoch.
        due: when it was due, if it was delayed, likewise; None otherwise.
        attempt: 1 when it is sent first, one more with every repeat.
        actor, target, context: who did it, to what, where; any JSON.
        url: the link to open: an http(s) URL, or a path on the application's own site.
        image: the picture to show, likewise.
        count: how many events were merged into this one; None for a message that is not merged.
        actors: the first few actors of the merged events; `first_ts` and `last_ts` are their times, `text` the publisher's summary.
        collapse: the key of the merged events.
        replaces: id of an earlier message that this one replaces: display it instead, and acknowledge both.
        traceparent: the trace it belongs to (W3C Trace Context); None without one.
        ask: a question, which `Client.answer` answers.
        answer: the answer to the question that it replaces.
        unsubscribe: path of the link that turns its category off for this user, where the category has one.
        data: the publisher's payload.
    """

    seq: int
    id: str
    event_id: str = ""
    early: bool = False
    type: str
    priority: Priority = "normal"
    ts: int = 0
    due: int | None = None
    attempt: int = 1
    actor: Any = None
    target: Any = None
    context: Any = None
    url: str | None = None
    image: str | None = None
    count: int | None = None
    actors: list[Any] | None = None
    first_ts: int | None = None
    last_ts: int | None = None
    collapse: str | None = None
    text: str | None = None
    replaces: str | None = None
    traceparent: str | None = None
    ask: dict[str, Any] | None = None
    answer: dict[str, Any] | None = None
    unsubscribe: str | None = None
    data: Any = None


_DURATIONS: Final = ("delay", "ttl")
_TIMES: Final = ("at", "ts")
_CONVERTED: Final = frozenset({*_DURATIONS, *_TIMES, "collapse", "ask"})
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
    if isinstance(ask := present.get("ask"), dict):
        members = {name: value for name, value in ask.items() if value is not None}
        if isinstance(deadline := members.get("deadline"), timedelta):
            members["deadline"] = deadline.total_seconds()
        present["ask"] = members
