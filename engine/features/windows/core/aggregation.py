"""Aggregation windows: messages of one kind for one user within a time window are merged into one notification.

A window belongs to a user and a collapse key. It opens with the first message of its key, and ends a fixed time after that:

    no window --first message--> OPEN  --each message--> OPEN  --its time is over--> closed: at most one notification

    held      (default)   the first message waits too. At the end: no other message -> the message itself; else a summary
    leading               the first message is delivered at once. At the end: no other message -> nothing; else a summary of all of
                          them, which `replaces` the first one

The window settings of the first message (length, leading, text) apply until the window ends; those of later ones are ignored. A
summary has the members of the newest message, the highest priority of all, and `count`, `actors` (the first `ACTORS_MAX` different ones),
`first_ts`, `last_ts`, `collapse`, and `text` when the publisher gave a template for it: `{count} people liked {target}`
(`engine.core.model.placeholders`). It
expires with the last of its messages, and is stored for offline users when one of them is.

Each message counts exactly once, under retries and crashes, by three mechanisms:

- Deduplication. A window stores marks of its newest `MARKS_MAX` messages (id and payload) and returns DUPLICATE for them; storage keeps
  older ids like every caller's id, and the shard checks them in the same step as it journals (a window is never longer than storage
  keeps them).
- Deciding and changing are two steps. `offer` and `close` only decide and return a record; `apply` changes the state, and replay
  calls nothing else. So a change that was not journalled did not happen, and replay repeats no decision, since those depend on the time.
- Records of a user are numbered. A page holds the number of the last one applied, so replay applies each exactly once.

Bounds: `windows_max` open windows per user; a message that would open one more is delivered at once, unmerged. So is one that would open a
window and expire before its end, after an outage. At most the newest
body, the first actors and the newest marks are kept, whatever the count; a text is cut at `TEXT_CHARS_MAX`. A window that
stays open longer because its user has quiet hours (`Extended`) may outlast the ids in storage: of more than `MARKS_MAX` messages, one
with an id that is repeated after a day could count twice.

The judge of a shard (`engine.core.commit.judge`) owns the windows of its users: `offer` when a post is numbered, `close` at `next_ms`
(after a restart it is in the page, and overdue windows close at once), records in the group with the messages they cause, `apply` at commit
and at replay. `copy` before a group is built, kept until it is committed: a rejected group leaves no change. `apply` replaces a window by a
new object, so a copy costs no more than its table.
"""

from __future__ import annotations

from enum import IntEnum
from hashlib import blake2b
from typing import Final, TypeVar, cast

import msgspec
from msgspec import Raw, Struct

from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.category import PolicyTerms
from engine.core.model.constants import PRIORITIES
from engine.core.model.envelope import Envelope
from engine.core.model.message import timer_effect_id
from engine.core.model.placeholders import Scope, Template, parse_template
from engine.core.wire.outcomes import type_of
from engine.core.wire.records import UNREADABLE
from engine.errors import Invalid
from engine.features.policy.core.policy_step import DIGEST
from engine.features.windows.core.aggregation_window import AggregationWindow, Counted, Ended, Extended, WindowItem, Windows, merge_of

ACTORS_MAX: Final = 5
MARKS_MAX: Final = 256
TEXT_CHARS_MAX: Final = 1000
TYPES_MAX: Final = 16
OTHER_TYPES: Final = "..."

DIGEST_TYPE: Final = "digest"
"""Of the summary of a digest."""

_MARK_BYTES: Final = 8

T = TypeVar("T")


class WindowOutcome(IntEnum):
    """The outcome for a message that names a window."""

    HELD = 0  # it opened a window and waits
    MERGED = 1  # it counts in an open window
    DELIVER = 2  # it is delivered now: it opened a leading window
    UNMERGED = 3  # it is delivered now and counts in no window: the user has too many, or it expires before the end of one
    DUPLICATE = 4  # it counts already


class Sent(Struct, frozen=True):
    """The notification that a closed window sends."""

    envelope: Envelope
    expires_ms: int


def mark_of(item: WindowItem) -> bytes:
    """Hash that identifies the message, `_MARK_BYTES` long: a repeat has the same mark."""
    name = timer_effect_id(item.timer) if item.timer else item.envelope.id
    return blake2b(name.encode() + b"\n" + item.envelope.digest, digest_size=_MARK_BYTES).digest()


def due(windows: Windows, now_ms: int) -> list[str]:
    """The collapse keys of windows past their end, the longest overdue first. Close them before the next `offer`."""
    over = [(window.closes_ms, collapse) for collapse, window in windows.open.items() if window.closes_ms <= now_ms]
    return [collapse for _, collapse in sorted(over)]


def outlasts(envelope: Envelope, expires_ms: int, now_ms: int) -> bool:
    """Whether the message does not expire before the end of a window that it opens now. A timer that fires late may."""
    return expires_ms > now_ms + merge_of(envelope).window_ms


def offer(windows: Windows, key: str, item: WindowItem, windows_max: int, seq: int = 0) -> tuple[WindowOutcome, Counted | None]:
    """Return the outcome for a message, and the record that applies it (None when none is needed). Changes nothing.

    Args:
        key: mailbox key.
        seq: the sequence number it gets if it is delivered now.
    """
    window = windows.open.get(item.envelope.collapse)
    if window is not None:
        if mark_of(item) in window.marks:
            return WindowOutcome.DUPLICATE, None
        return WindowOutcome.MERGED, Counted(key, windows.applied + 1, item)
    if len(windows.open) >= windows_max or not outlasts(item.envelope, item.expires_ms, item.at_ms):
        return WindowOutcome.UNMERGED, None
    if merge_of(item.envelope).leading:
        return WindowOutcome.DELIVER, Counted(key, windows.applied + 1, item, seq)
    return WindowOutcome.HELD, Counted(key, windows.applied + 1, item)


def extend(windows: Windows, key: str, collapse: str, closes_ms: int) -> Extended:
    """Return the record that extends a window; its messages expire later by the same time. Changes nothing."""
    return Extended(key, windows.applied + 1, collapse, closes_ms)


def close(windows: Windows, key: str, collapse: str) -> tuple[Sent | None, Ended]:
    """Return the notification an open window sends at its end (None for none) and the record that ends it. Changes nothing."""
    return _sent(windows.open[collapse]), Ended(key, windows.applied + 1, collapse)


def apply(windows: Windows, record: Counted | Ended | Extended) -> bool:
    """Apply a record. Returns False, without an effect, when it was applied before."""
    if record.number <= windows.applied:
        return False
    windows.applied = record.number
    if isinstance(record, Ended):
        windows.open.pop(record.collapse, None)
        return True
    if isinstance(record, Extended):
        window = windows.open.get(record.collapse)
        if window is not None:
            longer_ms = record.closes_ms - window.closes_ms
            longer = msgspec.structs.replace(window, closes_ms=record.closes_ms, expires_ms=window.expires_ms + longer_ms)
            windows.open[record.collapse] = longer
        return True
    item = record.item
    collapse = item.envelope.collapse
    window = windows.open.get(collapse)
    windows.open[collapse] = _opened(item, record.seq) if window is None else _counted(window, item)
    return True


def windows_of(mailbox: Mailbox) -> Windows | None:
    """The windows of the user; None: there were never any."""
    return cast("Windows | None", mailbox.judge_state)


def copy(windows: Windows) -> Windows:
    """Return an independent copy."""
    return Windows(windows.applied, windows.open.copy())


def _opened(item: WindowItem, seq: int) -> AggregationWindow:
    return AggregationWindow(
        opened_ms=item.at_ms,
        closes_ms=item.at_ms + merge_of(item.envelope).window_ms,
        envelope=item.envelope,
        expires_ms=item.expires_ms,
        first_seq=seq,
        count=1,
        first_ms=item.at_ms,
        last_ms=item.at_ms,
        actors=_with_actor([], item.envelope.body),
        marks=[mark_of(item)],
        types=_with_type({}, item.envelope),
    )


def _counted(window: AggregationWindow, item: WindowItem) -> AggregationWindow:
    first, newest = window.envelope, item.envelope
    return msgspec.structs.replace(
        window,
        envelope=msgspec.structs.replace(
            first,
            priority=min(first.priority, newest.priority),
            retain=first.retain or newest.retain,
            body=newest.body,
            policy_terms=_joint_terms(first.policy_terms, newest.policy_terms),
        ),
        expires_ms=max(window.expires_ms, item.expires_ms),
        count=window.count + 1,
        last_ms=max(window.last_ms, item.at_ms),
        actors=_with_actor(window.actors, newest.body),
        marks=[*window.marks[1 - MARKS_MAX :], mark_of(item)],
        types=_with_type(window.types, newest),
    )


def _joint_terms(first: PolicyTerms | None, newest: PolicyTerms | None) -> PolicyTerms | None:
    """Return the terms of the summary: those of the first message, or of a mandatory one. `unless_active` suppresses the summary only if it
    suppresses each message."""
    terms = newest if newest is not None and newest.limits.mandatory else first
    first_ms, newest_ms = _unless_active_since(first), _unless_active_since(newest)
    since_ms = max(first_ms, newest_ms) if first_ms and newest_ms else 0
    if terms is None or terms.unless_active_since_ms == since_ms:
        return terms
    return msgspec.structs.replace(terms, unless_active_since_ms=since_ms)


def _unless_active_since(terms: PolicyTerms | None) -> int:
    return 0 if terms is None else terms.unless_active_since_ms


def _with_actor(actors: list[bytes], body: bytes) -> list[bytes]:
    if len(actors) < ACTORS_MAX:
        actor = bytes(_read(_actor, body).actor)
        if actor != b"null" and actor not in actors:
            return [*actors, actor]
    return actors


def _with_type(types: dict[str, int], envelope: Envelope) -> dict[str, int]:
    """Return the number of messages of a digest by type, including this one."""
    if envelope.collapse != DIGEST:
        return types
    type_ = type_of(envelope.body)
    if type_ not in types and len(types) >= TYPES_MAX:
        type_ = OTHER_TYPES
    return {**types, type_: types.get(type_, 0) + 1}


def _read(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Return the decoded body, an empty one when it is not JSON. No edge sends such a body, but an exception would recur at each replay."""
    try:
        return decoder.decode(b"{%b}" % body)
    except UNREADABLE:
        return decoder.decode(b"{}")


class _Actor(Struct):
    actor: Raw = Raw(b"null")


_actor: Final = msgspec.json.Decoder(_Actor)
_members: Final = msgspec.json.Decoder(dict[str, Raw])  # values stay as they were sent: Python cannot represent every JSON number
_encode: Final = msgspec.json.Encoder().encode


def _sent(window: AggregationWindow) -> Sent | None:
    envelope, merge = window.envelope, window.merge
    collapse = envelope.collapse
    if window.count == 1:
        return None if merge.leading else Sent(envelope, window.expires_ms)
    id_ = "window-" + blake2b(f"{window.opened_ms}:{envelope.id}".encode(), digest_size=16).hexdigest()
    members: dict[str, object] = {"id": id_, "ts": window.last_ms, "type": DIGEST_TYPE}
    data: object = {"types": window.types}
    if collapse != DIGEST:
        newest = _read(_members, envelope.body)
        members = {**newest}
        data = members.pop("data", Raw(b"null"))
    members |= {
        "id": id_,
        "priority": PRIORITIES[envelope.priority],
        "collapse": DIGEST_TYPE if collapse == DIGEST else collapse,
        "count": window.count,
        "actors": [Raw(actor) for actor in window.actors],
        "first_ts": window.first_ms,
        "last_ts": window.last_ms,
    }
    if merge.leading:
        members["replaces"] = envelope.id
    body = _encode(members | {"data": data})
    if merge.text and (text := _text(merge.text, body)):
        body = _encode(members | {"text": text, "data": data})
    terms = None if collapse == DIGEST else envelope.policy_terms
    return Sent(msgspec.structs.replace(envelope, id=id_, digest=b"", body=body[1:-1], policy_terms=terms), window.expires_ms)


def _text(template: str, body: bytes) -> str:
    """The text of a summary; "" when Python cannot read a value of the message (`1e999`), or the template is no longer valid."""
    try:
        scope = Scope(msgspec.json.decode(body), {})
        parsed = parse_template(template)
    except (Invalid, *UNREADABLE):
        return ""
    # An empty text in front makes a template of one placeholder render as text.
    return str(Template(("", *parsed.parts)).render(scope))[:TEXT_CHARS_MAX]
