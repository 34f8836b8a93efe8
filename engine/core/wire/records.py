"""The records that travel between actors and into the journal, and their one codec.

A batch is a MessagePack array of records; a record is an array whose first element is its tag. Arrays and integer tags
keep a record at a few bytes of overhead, and decoding (0.2-0.6 us each) at a fraction of a Ray call's cost.

The unions at the end of the module say who sends which record to whom: `ToShard`, `FromShard`, `EdgeToScheduler`, `SchedulerToEdge`,
`ShardToScheduler`, `SchedulerToShard`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, get_args

import msgspec
from msgspec import Meta, Struct

from engine.core.model.action import Action
from engine.core.model.category import Instant, PolicyTerms, Span
from engine.core.model.envelope import Envelope
from engine.core.policy.conditions import Conditions
from engine.core.policy.preferences import PreferencesPatch
from engine.core.policy.profile import Profile

# -- Status of a published item, as PROTOCOL names them (PUBLISH_STATUS maps the code to the word). ---------------------
ACCEPTED: Final = 0
SCHEDULED: Final = 1
MERGED: Final = 2
DUPLICATE: Final = 3
SUPPRESSED: Final = 4
CONFLICT: Final = 5  # 409: the same id with another payload
UNAVAILABLE: Final = 6  # 503: storage did not answer, nothing was accepted
OVERLOADED: Final = 7  # 429: a limit of the shard is reached, nothing was accepted
USERS_FULL: Final = "tenant_users_max: the tenant has as many users as it may, and this would be a new one"  # detail of OVERLOADED
TIMERS_FULL: Final = (
    "as many timers of this user wait as may (timers_per_user_max), those that quiet hours hold back among them"  # likewise
)
POISONED: Final = "this record has ended its shard twice and is in quarantine"  # detail of UNAVAILABLE
USERS_FULL_RETRY_MS: Final = 60_000  # a tenant has room for new users when some are erased or forgotten, or the operator raises the quota
PUBLISH_STATUS: Final = ("accepted", "scheduled", "merged", "duplicate", "suppressed", "conflict", "unavailable", "overloaded")

DEFERRED: Final = 8  # from a shard to an edge only: not before `until_ms`. Nothing is stored; the edge schedules it and answers SCHEDULED

# -- Connection kinds: how the shard treats a transport ----------------------------------------------------------------
WEBSOCKET: Final = 0  # in-flight window and retry timers
SSE: Final = 1  # a written message is not repeated on the same stream: no window, no retry timer
SSE_EXPLICIT: Final = 2  # `?ack=explicit`: treated as a WebSocket
POLL: Final = 3  # one batch, then it detaches
TRANSPORTS: Final = ("websocket", "sse", "sse", "poll")

# -- Ranges that a decoder checks: an invalid value would fail later only, where its sender cannot be answered. ------------
ScheduledId = Annotated[str, Meta(pattern=r"^(1[0-5]|[0-9])-.")]  # `<partition>-<unguessable text>`, so that it routes itself
TransportKind = Annotated[int, Meta(ge=WEBSOCKET, le=POLL)]


# -- Requests of an edge to a shard about one user, and the answers -----------------------------------------------------
class Settle(Struct, array_like=True, tag=7, gc=False):
    """`POST /v1/ack`: acknowledges without connection. `seq` -1 when only ids are given; `client_ms` as in `Ack`. Answered by `Settled`."""

    ref: int
    key: str
    seq: int
    ids: list[str]
    client_ms: Instant = 0
    epoch: str = ""  # the data epoch of `seq`; "": the client does not say


class Refuse(Struct, array_like=True, tag=27, gc=False):
    """`POST /v1/nack`: as `Nack`, without connection. Answered by `Settled` when the dead-letter stream has the messages."""

    ref: int
    key: str
    ids: list[str]
    reason: str


class Settled(Struct, array_like=True, tag=37, gc=False):
    """Answer to `Settle` and `Refuse`. `error` is empty, or the reason why nothing was acknowledged."""

    ref: int
    error: str = ""


class Probe(Struct, array_like=True, tag=8, gc=False):
    """`GET /v1/heartbeat`. Answered by `Probed`."""

    ref: int
    key: str
    client: str
    seq: int


class Probed(Struct, array_like=True, tag=38, gc=False):
    """Answer to `Probe`: the user's presence (connected, suspect or offline), and the user's newest sequence number."""

    ref: int
    state: str
    seq: int


class Subscribe(Struct, array_like=True, tag=12, gc=False):
    """Subscribe a user to the topics `add`, unsubscribe from `remove`; with both empty, list them. Answered by `Subscribed`."""

    ref: int
    key: str
    add: list[str]
    remove: list[str]


class Subscribed(Struct, array_like=True, tag=47, gc=False):
    """Answer to `Subscribe`: OK, OVERLOADED (too many topics) or UNAVAILABLE, and the user's subscriptions now, sorted."""

    ref: int
    status: int
    topics: list[str]


class SetProfile(Struct, array_like=True, tag=13, gc=False):
    """Set a user's profile; None: the default. Answered by `ProfileIs`, after it is durable.

    `keep_categories`: those that the user has chosen stay, in place of those of `profile`. Choices by channel always stay.
    """

    ref: int
    key: str
    profile: Profile | None
    keep_categories: bool = False


class ChangeProfile(Struct, array_like=True, tag=24, gc=False):
    """Change what the user chooses (`engine.core.policy.preferences`), and leave the rest of the profile as it is. Answered by `ProfileIs`
    after it is durable; by OVERLOADED when the profile would have more than `entries_max` of one kind."""

    ref: int
    key: str
    patch: PreferencesPatch
    entries_max: int


class GetProfile(Struct, array_like=True, tag=14, gc=False):
    """Get a user's profile and when they were last active. Answered by `ProfileIs`."""

    ref: int
    key: str


class ReadInbox(Struct, array_like=True, tag=22, gc=False):
    """Get messages of a user's inbox, the newest first. Answered by `InboxIs`.

    Args:
        before: only those with lower numbers; 0: from the newest on.
        limit: so many at most.
        view: UNREAD and IN_ARCHIVE, or ALL, of `engine.core.inbox.inbox`.
    """

    ref: int
    key: str
    before: int
    limit: int
    view: int


class InboxRow(Struct, array_like=True, gc=False):
    """A message of an inbox; `flags` as in `engine.core.inbox.inbox`, `acked`: whether it is acknowledged."""

    seq: int
    flags: int
    acked: bool
    accepted_ms: int
    body: bytes


class InboxIs(Struct, array_like=True, tag=56, gc=False):
    """Answer to `ReadInbox`: OK, UNAVAILABLE, or NOT_FOUND when the engine keeps no inboxes.

    `before` begins the next page, 0 when there is none; the counts and their revision are as of now.
    """

    ref: int
    status: int
    rows: list[InboxRow] = []
    before: int = 0
    unread: int = 0
    unseen: int = 0
    revision: int = 0
    epoch: str = ""


class MarkInbox(Struct, array_like=True, tag=23, gc=False):
    """Set or take away a mark of messages in a user's inbox: those with these numbers, these ids, or all up to `upto`, -1 for the newest.

    Answered by `InboxMarked`, after it is durable.
    """

    ref: int
    key: str
    mark: int
    on: bool
    seqs: list[int]
    ids: list[str]
    upto: int = 0
    epoch: str = ""  # the data epoch of `seqs` and `upto`; "": the client does not say


class InboxMarked(Struct, array_like=True, tag=57, gc=False):
    """Answer to `MarkInbox`: OK, UNAVAILABLE, NOT_FOUND when the engine keeps no inboxes, CONFLICT for another epoch; then the counts.

    `unknown`: ids that the shard does not have in memory; nothing was done about these.
    """

    ref: int
    status: int
    unread: int = 0
    unseen: int = 0
    revision: int = 0
    unknown: list[str] = []


class Erase(Struct, array_like=True, tag=21, gc=False):
    """Erase a user. Answered by `ErasureDone`, once neither memory nor storage has anything of before."""

    ref: int
    key: str


class ErasureDone(Struct, array_like=True, tag=55, gc=False):
    """Answer to `Erase`: OK or UNAVAILABLE."""

    ref: int
    status: int


class Happened(Struct, array_like=True, tag=18, gc=False):
    """Record an event of a user. Answered by `Followed`, after it is durable.

    Args:
        at_ms: when it happened; 0 when it was not the user's own and only `follow` is requested.
        event: its name, when a rule has a condition on it; else "".
        follow: by inactivity rule, the scheduled id of a timer that follows the user from now on, unless one does already.
        ended: scheduled ids of timers that followed the user and have been cancelled or have fired.
        delivery: identifies an event whose repeat may have another `at_ms`, so that the repeat has no effect; "" for any other.
    """

    ref: int
    key: str
    at_ms: Instant
    event: str = ""
    follow: dict[str, str] = {}
    ended: list[str] = []
    delivery: str = ""


class Followed(Struct, array_like=True, tag=52, gc=False):
    """Answer to `Happened`: OK or UNAVAILABLE, and by inactivity rule the scheduled id of the timer that follows the user."""

    ref: int
    status: int
    timers: dict[str, str] = {}


class ProfileIs(Struct, array_like=True, tag=48, gc=False):
    """Answer to `SetProfile`, `ChangeProfile` and `GetProfile`: OK, OVERLOADED or UNAVAILABLE, the profile, and when the user was last
    active, 0 for never."""

    ref: int
    status: int
    profile: Profile | None = None
    active_ms: int = 0


class ReadBacklog(Struct, array_like=True, tag=25, gc=False):
    """Get the newest pending messages of a user, at most `limit`, of about `bytes_max` bytes. Answered by `BacklogIs`.

    `unread`: behind them also acknowledged ones of the inbox that are neither read nor archived. `before`: only those with lower numbers;
    0: all.
    """

    ref: int
    key: str
    limit: int
    bytes_max: int
    unread: bool = False
    before: int = 0


class BacklogRow(Struct, array_like=True, gc=False):
    """A message of a backlog: number, when it expires (0: it is acknowledged), collapse key, body, policy terms, and when it was accepted,
    or due."""

    seq: int
    expires_ms: int
    collapse: str
    body: bytes
    terms: PolicyTerms | None = None
    accepted_ms: int = 0


class BacklogIs(Struct, array_like=True, tag=60, gc=False):
    """Answer to `ReadBacklog`.

    `rows` are those in memory; `cold` the numbers, as inclusive ranges, of those whose body is in the offline stream only, where a number
    that is not there is gone. `older`: there are more. `active_ms`: signs of the user, the one before the newest connect among them.
    `acked`: those of `cold` that are acknowledged. `before`: for the read of further pending ones; 0: there are none.
    """

    ref: int
    epoch: str
    rows: list[BacklogRow]
    cold: list[tuple[int, int]]
    older: bool
    profile: Profile | None
    active_ms: list[int]
    acked: list[int] = []
    before: int = 0


class Step(Struct, array_like=True, gc=False):
    """One entry of a message's timeline. `at_ms`: 0 where the time is no longer known. `details`: further members, of the history only."""

    at_ms: int
    event: str
    reason: str = ""
    until_ms: int = 0
    details: dict[str, str | int] = {}


class ReadUser(Struct, array_like=True, tag=26, gc=False):
    """Get what an operator may see of a user. Answered by `UserIs`."""

    ref: int
    key: str


class ConnectionState(Struct, array_like=True, gc=False):
    """A connection and how far it is behind.

    Args:
        edge, session, device, transport: which one.
        since_ms: attached to this shard since.
        sent: the last number that sending has passed.
        unacknowledged: messages sent and not settled; `oldest_ms` since when the oldest of them, 0 for none.
        rtt_ms: the estimate of the time from a send to its ACK, 0 while there is none.
        exhausted: unsettled messages that used up their tries here: they wait for another connection.
    """

    edge: str
    session: str
    device: str
    transport: str
    since_ms: int
    sent: int
    unacknowledged: int
    oldest_ms: int
    rtt_ms: int
    exhausted: int


class OpenWindow(Struct, array_like=True, gc=False):
    """An aggregation window: its collapse key, how many messages it counts, and when it closes."""

    collapse: str
    count: int
    closes_ms: int


class UserIs(Struct, array_like=True, tag=59, gc=False):
    """Answer to `ReadUser`.

    Args:
        presence: connected, suspect or offline.
        head: the newest number; `floor`: everything up to it is settled.
        pending: unsettled messages, `in_memory` of them with their bodies.
        seen_ms: when the user was last active, 0 for never.
        topics: subscriptions, sorted.
        decisions: of the contact policy, the latest last, as (message id, step).
        events: when each event that a rule refers to came last.
    """

    ref: int
    presence: str
    head: int
    floor: int
    pending: int
    in_memory: int
    seen_ms: int
    connections: list[ConnectionState]
    topics: list[str]
    windows: list[OpenWindow]
    profile: Profile | None
    decisions: list[tuple[str, Step]]
    events: dict[str, int]


class Trace(Struct, array_like=True, tag=16, gc=False):
    """Get the state and history of a user's message. Answered by `Traced`."""

    ref: int
    key: str
    id: str


class Explained(Struct, array_like=True, tag=49, gc=False):
    """Answer to `Explain`: deliver, defer, digest, merge, suppress, duplicate or conflict, and the reasons as (code, sentence) pairs; the
    deciding one is last, but for its consequences.

    `until_ms`: when a deferred, merged, digested or delayed message is delivered; 0 for now. `seq`: of a duplicate's first message.
    """

    ref: int
    decision: str
    reasons: list[tuple[str, str]]
    until_ms: int = 0
    seq: int = 0


class Traced(Struct, array_like=True, tag=50, gc=False):
    """Answer to `Trace`: the message's state, "" when it is unknown, its number, 0 for none, and its history."""

    ref: int
    state: str
    seq: int
    steps: list[Step]


# -- Edge -> Shard -----------------------------------------------------------------------------------------------------
class Post(Struct, array_like=True, tag=1, gc=False):
    """One message for one user. Answered by exactly one `Posted` with the same `ref`."""

    ref: int
    key: str
    idempotent: bool  # the publisher gave the id: remembered for 24 h, not only while it is recent
    expires_ms: Instant
    envelope: Envelope


class Attach(Struct, array_like=True, tag=2, gc=False):
    """A connection of a user begins. Answered by `Welcome`, then deliveries. `conn` is unique within the link session."""

    conn: int
    key: str
    kind: TransportKind
    cursor_epoch: str  # "" when no cursor was presented
    cursor_seq: int
    session: str  # for session:stream
    device: str
    resume: bool = False  # announced again after a link failure: not a new connection of the user, no new welcome frame
    sent: int = 0  # with resume: highest sequence already written to this connection
    topics: tuple[str, ...] = ()  # of which the bearer's token makes it a member
    counts: bool = False  # the client wants the counts of the inbox
    early: bool = False  # the edge takes `DeliverEarly`
    since_ms: Instant = 0  # when the connection began; 0: the edge does not say


class Detach(Struct, array_like=True, tag=3, gc=False):
    """A connection ended. Its unacknowledged messages are pending again. `code` is the WebSocket close code or 0."""

    conn: int
    code: int


class Ack(Struct, array_like=True, tag=4, gc=False):
    """Everything up to and including `seq` is handled. `client_ms`: the time by the client's clock, 0 when it gave none."""

    conn: int
    seq: int
    client_ms: Instant = 0


class AckIds(Struct, array_like=True, tag=5, gc=False):
    """These messages are handled. `client_ms` as in `Ack`."""

    conn: int
    ids: list[str]
    client_ms: Instant = 0


class Nack(Struct, array_like=True, tag=6, gc=False):
    """These messages cannot be handled: no retry, to the dead-letter stream."""

    conn: int
    ids: list[str]
    reason: str


class Rejoin(Struct, array_like=True, tag=20, gc=False):
    """The bearer renewed its token: the connection is a member of these topics from now on, and of no others (`Attach.topics`)."""

    conn: int
    topics: tuple[str, ...]


class Written(Struct, array_like=True, tag=9, gc=False):
    """A plain SSE stream has handed everything up to `seq` to the kernel: room in the window, not an acknowledgement."""

    conn: int
    seq: int


class Explain(Struct, array_like=True, tag=15, gc=False):
    """Evaluate this post for `at_ms`, 0 for now, without any effect. Answered by `Explained`."""

    ref: int
    key: str
    at_ms: Instant
    post: Post


class Show(Struct, array_like=True, tag=28, gc=False):
    """Frames of one kind for users, [(mailbox key, frame)]: each goes to the user's connections of now. They are neither numbered nor kept.

    Answered by a `Shown` whose `answers` is true. A frame for a user whom the shard does not have is dropped.
    """

    kind: str
    frames: list[tuple[str, bytes]]


# -- Shard -> Edge -----------------------------------------------------------------------------------------------------
class Posted(Struct, array_like=True, tag=31, gc=False):
    """The outcome of a `Post`. `seq` is 0 when none was given; `detail` is the reason or the scheduled id of a duplicate.

    `retry_ms` comes with OVERLOADED: after how long to send the post again; `until_ms` with DEFERRED.
    """

    ref: int
    status: int
    seq: int = 0
    detail: str = ""
    retry_ms: int = 0
    until_ms: Instant = 0


class Welcome(Struct, array_like=True, tag=32, gc=False):
    """The connection is attached. `head` is the user's newest sequence, `from_seq` the first that will be delivered."""

    conn: int
    head: int
    resumed: str  # new | ok | gap
    from_seq: int
    epoch: str


class Deliver(Struct, array_like=True, tag=33, gc=False):
    """Messages for one connection, in sequence order: [(seq, attempt, body)]."""

    conn: int
    messages: Annotated[list[tuple[int, int, bytes]], Meta(min_length=1)]


class DeliverEarly(Struct, array_like=True, tag=67, gc=False):
    """Early copies for one connection, as `Deliver.messages`: they are not in sequence with it, and advance no position."""

    conn: int
    messages: Annotated[list[tuple[int, int, bytes]], Meta(min_length=1)]


class Shown(Struct, array_like=True, tag=68, gc=False):
    """Frames of one kind for connections, [(connection, frame)]; `answers`: it is the answer to the oldest `Show` of this session."""

    kind: str
    frames: list[tuple[int, bytes]]
    answers: bool = False


class Revoke(Struct, array_like=True, tag=34, gc=False):
    """These messages were acknowledged on another device of the user."""

    conn: int
    ids: list[str]


class Counts(Struct, array_like=True, tag=58, gc=False):
    """The counts of the user's inbox, for a connection that wants them."""

    conn: int
    unread: int
    unseen: int
    revision: int


class NacksStored(Struct, array_like=True, tag=53, gc=False):
    """The messages that this connection refused by `Nack` are in the dead-letter stream, or were settled before."""

    conn: int
    ids: list[str]


class GapRange(Struct, array_like=True, tag=35, gc=False):
    """The messages `first`..`last` are gone (expired, trimmed); sent before any later message."""

    conn: int
    first: int
    last: int


class Hangup(Struct, array_like=True, tag=36, gc=False):
    """Close the connection with this code and reason. The edge still sends `Detach` for it."""

    conn: int
    code: int
    reason: str


class Rejected(Struct, array_like=True, tag=54, gc=False):
    """Answer to a record other than `Post` that was not carried out: OVERLOADED or UNAVAILABLE, why, and when to send it again."""

    ref: int
    status: int
    detail: str
    retry_ms: int = 0


class Moved(Struct, array_like=True, tag=39, gc=False):
    """This shard does not own the slot, this scheduler not the partition. Exactly one of `ref` (a record that is answered) and `conn` (an
    Attach) is not -1.

    The edge routes the request again with a slot map of at least `version`.
    """

    ref: int
    conn: int
    version: int


class Shared(Struct, array_like=True, tag=45, gc=False):
    """The body of a broadcast, once per link session while the edge keeps it (`engine.core.mailbox.broadcast_log.BodyCache`)."""

    pos: int
    body: bytes


class DeliverShared(Struct, array_like=True, tag=46, gc=False):
    """A broadcast for many connections: [(connection, sequence number, attempt)]. Its body came before, as `Shared`."""

    pos: int
    deliveries: Annotated[list[tuple[int, int, int]], Meta(min_length=1)]


class Fault(Struct, array_like=True, tag=40, gc=False):
    """The client sent something invalid on this connection: the edge answers it with an `error` frame of this code and detail."""

    conn: int
    code: str
    detail: str


# -- Edge <-> Scheduler ------------------------------------------------------------------------------------------------
class Timer(Struct, array_like=True, gc=False):
    """A delayed message, in transit and in storage (`engine.core.journal.stored_formats`).

    `sid` and `key` stay first: `store/scripts/fenced/timers_turn.lua` reads them.
    """

    sid: ScheduledId
    key: str
    due_ms: Instant
    created_ms: Instant
    ttl_ms: Span  # counts from `due_ms`
    envelope: Envelope
    conditions: Conditions | None = None  # evaluated when it fires
    action: Action | None = None  # what it does in place of delivering the message


class Schedule(Struct, array_like=True, tag=61, gc=False):
    """Arm a durable timer. Answered by `TimerAnswer` SCHEDULED, DUPLICATE, CONFLICT or UNAVAILABLE, after it is durable."""

    ref: int
    idempotent: bool
    timer: Timer


class Inspect(Struct, array_like=True, tag=62, gc=False):
    """Look at one timer of a tenant."""

    ref: int
    tenant: str
    sid: str


class Reschedule(Struct, array_like=True, tag=63, gc=False):
    """Move one timer to `due_ms`."""

    ref: int
    tenant: str
    sid: str
    due_ms: Instant


class Cancel(Struct, array_like=True, tag=64, gc=False):
    """Cancel one timer."""

    ref: int
    tenant: str
    sid: str


class ListTimers(Struct, array_like=True, tag=65, gc=False):
    """The armed timers of one user, soonest first, at most `limit`; those of one `collapse` key, or all when it is "".

    A longer listing goes on behind the last timer of the page before, which is due at `after_ms` and has the scheduled id `after_sid`.
    """

    ref: int
    key: str
    limit: int
    collapse: str = ""
    after_ms: Instant = 0
    after_sid: str = ""


class CancelAll(Struct, array_like=True, tag=66, gc=False):
    """Cancel the timers of one user: those of one `collapse` key, or all when it is "". `count` of the answer is their number.

    Those that may have been sent to a shard are not cancelled; the `detail` says so.
    """

    ref: int
    key: str
    collapse: str = ""


# Outcomes of the timer requests above, beside SCHEDULED, DUPLICATE, CONFLICT and UNAVAILABLE.
GONE: Final = "gone"  # detail of SCHEDULED: under this scheduled id there was a timer, which has fired or was cancelled
FIRING: Final = "firing"  # detail of the answer to CancelAll: a timer may have been sent to a shard
OK: Final = 20
NOT_FOUND: Final = 21  # 404
ALREADY_FIRED: Final = 22  # 409


class TimerAnswer(Struct, array_like=True, tag=71, gc=False):
    """Answer to Schedule, Inspect, Reschedule, Cancel, CancelAll or ListTimers with the same `ref`.

    For DUPLICATE, `detail` is the scheduled id of the first result, or `seq=<number>` when that was not delayed; `timers` has
    the first timer while it waits. For SCHEDULED, `timers` has the timer where it is not the one asked for. For OVERLOADED, `retry_ms` is
    when to ask again, 0 for soon.
    """

    ref: int
    status: int
    timers: list[Timer] = []
    detail: str = ""
    count: int = 0
    retry_ms: int = 0


# -- Shard <-> Scheduler -----------------------------------------------------------------------------------------------
class Arm(Struct, array_like=True, tag=81, gc=False):
    """Arm a volatile timer: `Due` for this mailbox at `at_ms`. One per (link session, key); arming again replaces it."""

    key: str
    at_ms: Instant


class FireDone(Struct, array_like=True, tag=82, gc=False):
    """These durable timers took effect (journalled, or found to have fired before): remove them."""

    sids: list[str]


class FireFailed(Struct, array_like=True, tag=83, gc=False):
    """These durable timers could not take effect now: storage is unavailable, or another shard owns the user. Hand them out again."""

    sids: list[str]


class FireAgain(Struct, array_like=True, tag=84, gc=False):
    """These durable timers had no effect yet: move each to another time, [(scheduled id, due time)]."""

    moves: list[tuple[str, Instant]]


class Due(Struct, array_like=True, tag=91, gc=False):
    """Volatile timers that are due."""

    keys: list[str]


class Fire(Struct, array_like=True, tag=92, gc=False):
    """Durable timers that are due. Sent again until `FireDone`; the shard ensures that each takes effect once."""

    timers: list[Timer]


ToShard = (
    Post
    | Attach
    | Detach
    | Ack
    | AckIds
    | Nack
    | Rejoin
    | Settle
    | Refuse
    | Probe
    | Written
    | Subscribe
    | SetProfile
    | ChangeProfile
    | GetProfile
    | Explain
    | Trace
    | ReadBacklog
    | Happened
    | Erase
    | ReadInbox
    | MarkInbox
    | ReadUser
    | Show
)
FromShard = (
    Posted
    | Welcome
    | Deliver
    | DeliverEarly
    | Shared
    | DeliverShared
    | Revoke
    | NacksStored
    | GapRange
    | Hangup
    | Settled
    | Probed
    | Subscribed
    | ProfileIs
    | Explained
    | Traced
    | BacklogIs
    | Followed
    | ErasureDone
    | InboxIs
    | InboxMarked
    | Counts
    | UserIs
    | Shown
    | Rejected
    | Moved
    | Fault
)
EdgeToScheduler = Schedule | Inspect | Reschedule | Cancel | CancelAll | ListTimers
SchedulerToEdge = TimerAnswer | Moved
ShardToScheduler = Arm | FireDone | FireFailed | FireAgain
SchedulerToShard = Due | Fire

TIMER_REQUESTS: Final = frozenset(get_args(EdgeToScheduler))
"""Those of edges that are for schedulers; all others are for the shard of their `key`."""

ANSWERS: Final = frozenset(kind for kind in get_args(FromShard) if "ref" in kind.__struct_fields__) - {Moved}
"""What a shard answers to a request, by the `ref` that this has."""

NEWER: Final[Mapping[type[Struct], int]] = {}
"""Requests of edges that earlier releases do not read, with the formats that have them (`engine.core.model.formats`)."""

UPGRADING: Final = "an upgrade is under way: this works once every process of the engine runs the new version"  # detail of UNAVAILABLE
UPGRADING_RETRY_MS: Final = 5_000  # an upgrade takes tens of seconds

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions of decoding invalid bytes: malformed, of a wrong type, not UTF-8, nested too deeply."""

_encoder = msgspec.msgpack.Encoder()


def encode(records: Sequence[Struct]) -> bytes:
    """One batch: a MessagePack array of tagged arrays."""
    return _encoder.encode(records)


to_shard: Final = msgspec.msgpack.Decoder(list[ToShard])
from_shard: Final = msgspec.msgpack.Decoder(list[FromShard])
to_scheduler: Final = msgspec.msgpack.Decoder(list[EdgeToScheduler | ShardToScheduler])
scheduler_to_edge: Final = msgspec.msgpack.Decoder(list[SchedulerToEdge])
scheduler_to_shard: Final = msgspec.msgpack.Decoder(list[SchedulerToShard])
