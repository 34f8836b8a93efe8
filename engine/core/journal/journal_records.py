"""What the shard stores: journal records, pages, and the copy of pending messages in the offline streams.

Journal: one entry per group commit and slot, a batch of records: `StoredMessage` messages, `Handled` acknowledgements, `Adopted`
broadcasts, subscribed `Topics`, `Profiled` users, their `Noticed` events, messages that were `Decided` not to be delivered, and records of
the judge (`engine.core.mailbox.judge_state`). A broadcast is stored as its position in the log, never with its body.
Page: a user's mailbox without bodies. Written with everything pending that is not in the offline stream yet (the spill),
in one atomic step per slot; after a full checkpoint the journal entries it covers are trimmed.

Replay after a crash reads pages first, then applies the journal on top. Applying twice is harmless: a `StoredMessage` number at
or below the page's head is already in the stream (or was settled), a `Handled` only ever moves forward, the judge numbers the
records of a user, and of `Topics` and `Profiled` the last one counts.

Counters (`engine.core.policy.user_state`) are journalled with the messages they count: a page has them up to its head, and replay
counts those beyond.
When a user was last active is stored in the page only. It is exact in memory, and after a crash as old as the page. An acknowledgement
marks the mailbox dirty, so that age is at most a checkpoint's interval; for a user who acknowledged nothing, the end of the last connection
is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from engine.core.inbox.inbox import InboxLimits, StoredInbox, inbox_of
from engine.core.mailbox.broadcast_log import BroadcastMirror
from engine.core.mailbox.judge_state import JudgeRecord, JudgeState
from engine.core.mailbox.mailbox import NONE_SETTLED, Mailbox
from engine.core.model.envelope import Envelope
from engine.core.model.message import Collapsing, Message, SharedBody
from engine.core.model.sealed import sealed
from engine.core.policy.profile import Profile
from engine.core.policy.user_state import TimelineEntry, UserState

S = TypeVar("S")

_CONDEMNED_MAX = 1000
"""Stream entries that one checkpoint deletes of one mailbox, beside those it trims: some 1 ms of Redis."""

_PINNED_SPARE_MS = 30 * 86_400_000
"""A stream with pinned messages outlives the time at which the sweep looks at the page, and stores it anew, by so much."""

PAGE_RECENT_IDS = 32
"""Recent ids kept in a page: enough for a publisher's retry that meets a restarted shard."""


class StoredMessage(Struct, array_like=True, tag=1, gc=False):
    """A message as the journal and the offline stream keep it."""

    key: str
    seq: int
    envelope: Envelope
    expires_ms: int
    accepted_ms: int
    attempts: int = 0
    timer: str = ""  # scheduled id of the durable timer whose effect this message is
    supersedes: int = 0  # number of the older message that this one supersedes
    count: int = 0  # how many messages of its collapse key it stands for; 0: replay does not register it under that key
    pos: int = 0  # of the broadcast whose body this is; the body of the envelope is empty then
    inbox_only: bool = False  # the user wants it in the inbox only: it is settled from the beginning


class Handled(Struct, array_like=True, tag=2, gc=False):
    """A mailbox's acknowledged numbers: everything up to `floor`, and `acked` above it.

    `head` is set by `engine.core.journal.rebuild` only: numbers up to it were used, whatever their outcome. `refused`: those that are among
    the dead letters since the last such record, and have left the inbox.
    """

    key: str
    floor: int
    acked: list[int]
    head: int = 0
    refused: list[int] = []


class Adopted(Struct, array_like=True, tag=3, gc=False):
    """A broadcast was assigned these numbers: [(mailbox key, sequence number)]. Moves the mailboxes' cursors to its position.

    `inbox_only`: keys of the mailboxes where it is settled from the beginning, since the user wants it in the inbox only.
    """

    pos: int
    accepted_ms: int
    numbers: list[tuple[str, int]]
    inbox_only: list[str] = []


class Topics(Struct, array_like=True, tag=4, gc=False):
    """A user's subscriptions from now on, as in `Mailbox.topics`. `log_pos` is set by `engine.core.journal.rebuild` only."""

    key: str
    topics: dict[str, int]
    log_pos: int = 0


class Profiled(Struct, array_like=True, tag=5, gc=False):
    """A user's profile from now on; None: the default."""

    key: str
    profile: Profile | None


class Erased(Struct, array_like=True, tag=8, gc=False):
    """The user is erased: nothing of before is kept (`engine.core.shard.user_requests`).

    Args:
        head: the newest number then, so a page beyond it was written after the erasure; -1 in a record of an older version.
    """

    key: str
    head: int = -1


class Decided(Struct, array_like=True, tag=7, gc=False):
    """The outcome of a message that was not delivered at once, for the timeline; see `engine.core.policy.user_state.TimelineEntry`."""

    key: str
    entry: TimelineEntry


class Noticed(Struct, array_like=True, tag=9, gc=False):
    """An event of a user, or timers that are to follow them; the members are those of `Happened`."""

    key: str
    at_ms: int
    event: str = ""
    follow: dict[str, str] = {}
    ended: list[str] = []
    delivery: str = ""


class Marked(Struct, array_like=True, tag=16, gc=False):
    """The user marked messages of the inbox, or took marks away: flags of `engine.core.inbox.inbox`."""

    key: str
    mark: int
    on: bool
    seqs: list[int]


class Inboxed(Struct, array_like=True, tag=17, gc=False):
    """A user's inbox as it is; written by `engine.core.journal.rebuild` only, behind the messages. `head`: as of `Erased`."""

    key: str
    inbox: StoredInbox
    head: int = -1


class Remembered(Struct, array_like=True, tag=6, gc=False):
    """A user's whole state, and when they were last active; written by `engine.core.journal.rebuild` only. `head`: as of `Erased`."""

    key: str
    user_state: UserState | None
    seen_ms: int
    head: int = -1


KernelRecord = StoredMessage | Handled | Adopted | Topics | Profiled | Noticed | Erased | Decided | Remembered | Marked | Inboxed

Record = KernelRecord | JudgeRecord


class MailboxPage(Struct, Generic[S], array_like=True, gc=False):
    """A mailbox as storage holds it, without the bodies of its messages. `S`: the state of the judge."""

    head: int
    floor: int
    acked: list[int]
    gone: list[tuple[int, int]]
    cold: tuple[int, int] | None
    attempts: dict[int, int]
    recent: list[tuple[str, int, bytes]]
    oldest_expires_ms: int
    newest_above_low: int  # no number above it is of more than low priority
    collapsing: list[tuple[str, Collapsing]] = []  # newest message of each collapse key
    log_pos: int = 0
    topics: dict[str, int] = {}
    windows: S | None = None  # the name that the layout has; None: the judge never had any state
    user_state: UserState | None = None
    seen_ms: int = 0  # when the user was last active
    inbox: StoredInbox | None = None  # None: nothing was kept yet


AnyPage = MailboxPage[JudgeState]


class Spill(Struct):
    """One mailbox's share of a checkpoint. `trim_below`: nobody needs the stream entries below this number."""

    key: str
    page: bytes  # empty: none is to be stored
    trim_below: int
    entries: list[tuple[int, bytes]]
    expires_ms: int  # when the last of the entries expires; 0 without entries
    judge_ms: int = -1  # when the judge has something to do for it; 0: never, -1: the judge never had any state of it
    look_ms: int = 0  # when the sweep is to look at the page; 0: never
    removed_at: int = -1  # not below 0, without a page: page and stream are deleted, and numbers up to this one are not used again
    topics: str = ""  # subscriptions, joined by line feeds
    deleted: Sequence[int] = ()  # other stream entries that nobody needs


class Checkpoint(Struct):
    """What to write, and through which group of this incarnation the journals are covered; `None`: trim nothing."""

    spills: list[Spill]
    through_commit: int | None
    upto: dict[str, int]  # key -> every retained pending number up to here is in the stream afterwards
    waiting: list[Mailbox]  # not in it yet, last one first
    removals: dict[str, bool] = {}  # pages to delete, by key: whether in any case, or only while the mailbox holds nothing
    whole: bool = False  # its mailboxes leave memory: pages have all that their successors need
    slots: frozenset[int] | None = None  # whose journals are covered; None: all that were not trimmed when it was taken


_encoder = msgspec.msgpack.Encoder()


def keys_of(records: Iterable[Record]) -> list[str]:
    """The keys of the mailboxes that these records concern, in the order of the records.

    Mailboxes made in this order lie side by side in memory for the records that follow: a sixth less CPU of a replay.
    """
    keys: dict[str, None] = {}
    for record in records:
        if isinstance(record, Adopted):
            keys.update(dict.fromkeys(key for key, _ in record.numbers))
        else:
            keys[record.key] = None
    return list(keys)


def message_of(stored: StoredMessage) -> Message:
    """The message as a mailbox holds it."""
    return Message(stored.seq, stored.envelope, stored.expires_ms, stored.accepted_ms, stored.attempts)


def recalled(stored: StoredMessage, log: BroadcastMirror) -> Message | None:
    """A message from the offline stream; None when it is a broadcast that was dropped from the log."""
    message = message_of(stored)
    if stored.pos:
        broadcast = log.get(stored.pos)
        if broadcast is None:
            return None
        message.envelope = broadcast.envelope
    return message


def is_ahead(stored: StoredMessage, log: BroadcastMirror) -> bool:
    """Whether the message is a broadcast that the mirror has not read yet, so that `recalled` would take it for dropped."""
    return stored.pos > log.head


def spill_of(mailbox: Mailbox, forget_at_ms: int = 0, *, whole: bool = False) -> Spill:
    """The mailbox's page and every retained pending message that is not in the stream yet.

    `whole`: the mailbox leaves memory for another shard. Then the others that are newer than the stream go there too, and the page has all
    ids by which a repeat is recognised.

    `forget_at_ms`: when the page of a user without preferences and messages is to be deleted, if nothing happens before; 0: never.

    Storage holds a dying message as pending: after a crash it is moved to the dead letters again.
    """
    inbox = mailbox.inbox
    bodies = mailbox.hot | mailbox.dying if mailbox.dying else mailbox.hot
    if inbox is not None and inbox.unwritten:
        bodies = bodies | inbox.unwritten
    fresh = sorted([seq for seq, message in bodies.items() if seq > mailbox.spilled and (whole or message.envelope.retain)])
    entries = []
    expires_ms = 0
    for seq in fresh:
        m = bodies[seq]
        expires_ms = max(expires_ms, m.expires_ms)
        if inbox is not None and mailbox.inbox_limits is not None:
            expires_ms = max(expires_ms, m.accepted_ms + mailbox.inbox_limits.keep_of(m.envelope.policy_terms))
        envelope, pos = m.envelope, 0
        if isinstance(envelope.body, SharedBody):
            pos = envelope.body.pos
            envelope = msgspec.structs.replace(envelope, body=b"")
        stored = StoredMessage(mailbox.key, seq, envelope, m.expires_ms, m.accepted_ms, m.attempts, pos=pos)
        entries.append((seq, sealed(_encoder.encode(stored))))
    judge_ms = -1 if mailbox.judge_state is None else mailbox.judge_state.next_ms
    if inbox is not None:
        inbox.written(fresh)
        mailbox.condemn(_CONDEMNED_MAX)
        if inbox.pins:
            expires_ms = max(expires_ms, forget_at_ms + _PINNED_SPARE_MS)
    page = page_of(mailbox, len(mailbox.recent) if whole else PAGE_RECENT_IDS)
    look_ms = looks_at(page) or (0 if mailbox.has_preferences else forget_at_ms)
    trim_below = page.floor + 1 if inbox is None else min(page.floor + 1, inbox.low)
    deleted = () if inbox is None else tuple(inbox.condemned)
    topics = "\n".join(sorted(mailbox.topics))
    blob = sealed(_encoder.encode(page), mailbox.key.encode())
    return Spill(mailbox.key, blob, trim_below, entries, expires_ms, judge_ms, look_ms, topics=topics, deleted=deleted)


def looks_at(page: AnyPage) -> int:
    """When the sweep is to look at the page for messages that are over, ms; 0: never."""
    aged_ms = 0 if page.inbox is None else page.inbox.due_ms
    return min(page.oldest_expires_ms, aged_ms) if page.oldest_expires_ms and aged_ms else page.oldest_expires_ms or aged_ms


def removal_of(mailbox: Mailbox, forget_at_ms: int, *, whole: bool = False, erased: bool = False) -> Spill:
    """Deletes what storage has of the mailbox; but for what has come since, which an earlier checkpoint may have stored.

    `erased`: the user was, so whatever is known of the user has come since.
    """
    is_known = erased and mailbox.user_state is not None and not mailbox.user_state.empty
    if mailbox.idle and not (mailbox.has_preferences or is_known):
        return Spill(mailbox.key, b"", 0, [], 0, 0, 0, mailbox.head)
    spill = spill_of(mailbox, forget_at_ms, whole=whole)  # an erasure settles all numbers of before, so they are trimmed
    spill.judge_ms = max(spill.judge_ms, 0)
    return spill


def settled_numbers(mailbox: Mailbox) -> tuple[int, list[int]]:
    """The numbers that storage may treat as settled: all up to the first one, and the others, ascending.

    Dying messages are not among them: until they are in the dead-letter stream, a crash must leave them pending.
    """
    floor, dying = mailbox.floor, mailbox.dying
    if dying and (low := min(dying)) <= floor:
        return low - 1, [*(seq for seq in range(low, floor + 1) if seq not in dying), *sorted(mailbox.acked)]
    return floor, sorted(mailbox.acked) if mailbox.acked else []


def page_of(mailbox: Mailbox, recent_max: int = PAGE_RECENT_IDS) -> AnyPage:
    """The mailbox without bodies, in its state once its pending messages are in the stream."""
    # All that is not settled becomes cold: reading the stream shows later which of these numbers are gone.
    unsettled = [*mailbox.hot, *mailbox.dying, *(mailbox.cold or ())]
    cold = (min(unsettled), max(unsettled)) if unsettled else None
    # Of messages in memory too: the stream may have them since before they were sent.
    attempts = mailbox.cold_attempts | {seq: message.attempts for seq, message in mailbox.hot.items() if message.attempts}
    for connection in mailbox.connections.values():
        for seq, (_, tries) in connection.flight.items():
            attempts[seq] = max(attempts.get(seq, 0), mailbox.hot[seq].attempts + tries)
    pending = (*mailbox.hot.values(), *mailbox.dying.values()) if mailbox.dying else mailbox.hot.values()
    oldest = min([message.expires_ms for message in pending if message.envelope.retain], default=0)
    if mailbox.cold and mailbox.oldest_expires_ms:
        oldest = min(oldest, mailbox.oldest_expires_ms) if oldest else mailbox.oldest_expires_ms
    newest = list(islice(reversed(mailbox.recent.items()), recent_max))
    recent = [(id, seq, digest) for id, (seq, digest) in reversed(newest)]
    floor, acked = settled_numbers(mailbox)
    return MailboxPage(
        mailbox.head,
        floor,
        acked,
        mailbox.gone,
        cold,
        attempts,
        recent,
        oldest,
        mailbox.newest_above_low,
        [(key, newest) for key, newest in mailbox.collapsing.items() if newest.seq > mailbox.floor],
        mailbox.log_pos,
        mailbox.topics,
        mailbox.judge_state,
        None if mailbox.user_state is None or mailbox.user_state.empty else mailbox.user_state,
        mailbox.seen_ms,
        None if mailbox.inbox is None else mailbox.inbox.to_stored(),
    )


def restore(key: str, page: AnyPage | None, now_ms: int, inbox_limits: InboxLimits | None = None) -> Mailbox:
    """The mailbox of a page; an empty one for a user never seen. Without limits its inbox is dropped."""
    mailbox = Mailbox(key, now_ms)
    mailbox.inbox_limits = inbox_limits
    if page is not None:
        mailbox.head = page.head
        mailbox.floor = page.floor
        mailbox.acked = set(page.acked) or NONE_SETTLED
        mailbox.gone = [(first, last) for first, last in page.gone]
        mailbox.cold = page.cold
        mailbox.cold_attempts = dict(page.attempts)
        mailbox.spilled = page.head
        mailbox.recent = {id: (seq, digest) for id, seq, digest in page.recent}
        mailbox.oldest_expires_ms = page.oldest_expires_ms
        mailbox.log_pos = page.log_pos
        mailbox.topics = dict(page.topics)
        mailbox.judge_state = page.windows
        mailbox.user_state = page.user_state
        mailbox.seen_ms = page.seen_ms
        mailbox.newest_above_low = page.newest_above_low
        mailbox.collapsing = dict(page.collapsing)
        if page.inbox is not None and inbox_limits is not None:
            mailbox.inbox = inbox_of(page.inbox)
    return mailbox
