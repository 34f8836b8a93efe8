"""One user's mailbox: its sequence numbers, its pending messages, and the send position of each connection.

Every sequence number from 1 to `head` is in exactly one state:

    settled   acknowledged by some device (or dead-lettered, or for the inbox only): at or below `floor`, or in `acked`
    gone      expired, trimmed, superseded, never kept, or one of too many settled ones; in `gone`; a connection gets a `Gap` for it
              before any later number
    dying     refused by a client; in `dying` until the dead-letter stream stores it, regardless of other acknowledgements
    hot       pending, its body in memory, in `hot`
    cold      pending or gone, its body only in the offline stream: within `cold`, an inclusive range, and in no other state

Numbers leave `cold` by an acknowledgement, by being superseded, or by a range read. A number that a read does not find and that was not
acknowledged is gone: trimming, expiry and losses are all detected at this one place, so a gap is never silent.

Numbers are sent on each connection in order (`engine.core.mailbox.send`); one that used up its tries is left out there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable
from itertools import islice
from operator import itemgetter
from typing import Final

from msgspec import Struct

from engine.core.inbox.inbox import Inbox, InboxLimits
from engine.core.mailbox.attachment import Attachment, Conn
from engine.core.mailbox.judge_state import JudgeState
from engine.core.mailbox.memory import MAILBOX_BYTES, RECENT_BYTES, Memory
from engine.core.mailbox.passed_topics import PassedTopics
from engine.core.mailbox.retry import RetryPolicy
from engine.core.mailbox.tally import UNCOUNTED
from engine.core.model.constants import HIGH, LOW
from engine.core.model.message import Collapsing, Message, SharedBody
from engine.core.model.routing import slot_of
from engine.core.policy.user_state import UserState

_first_of: Final = itemgetter(0)
_last_of: Final = itemgetter(1)

NONE_SETTLED: Final[frozenset[int]] = frozenset()
"""`Mailbox.acked` of nearly everybody: an empty set of its own takes a tenth of an idle mailbox."""

_GAP_ACKED_MAX: Final = 1000
"""Maximum length of a gap that is settled number by number: 60 KB of memory, and as much in a page."""


_ACKED_MAX: Final = 10_000
"""Single settled numbers above a message that stays pending: what a page has of them, 9 bytes each, has to be bounded. Those beyond join a
range of `gone`, which connections are sent as a gap; they stay in the inbox."""


class Settlement(Struct, gc=False):
    """The result of an acknowledgement.

    Attributes:
        messages: each settled message that was in memory, and when it was first sent on the acknowledging connection, 0 when it was not
            in flight there.
        revoked: for each other connection, the ids of the settled messages that it was sent.
        news: whether anything was settled.
        cold: of settled messages that were not in memory, ranges of numbers, and those of them that were settled before.
    """

    messages: list[tuple[Message, int]]
    revoked: dict[Conn, list[str]]
    news: bool = False
    cold: tuple[tuple[int, int, Collection[int]], ...] = ()


class Mailbox:
    """The state described in the module docstring. It holds no storage policy: the shard decides what to journal, load and write."""

    __slots__ = (
        "acked",
        "active_ms",
        "attached_pos",
        "cold",
        "cold_attempts",
        "collapsing",
        "connections",
        "dying",
        "floor",
        "gone",
        "head",
        "held",
        "hot",
        "hot_bytes",
        "inbox",
        "inbox_limits",
        "judge_state",
        "key",
        "left_ms",
        "live_pos",
        "loading",
        "log_pos",
        "memory",
        "newest_above_low",
        "newest_high",
        "oldest_expires_ms",
        "passed",
        "queued_ms",
        "recent",
        "seen_ms",
        "slot",
        "spilled",
        "start",
        "tally",
        "timer_ms",
        "topics",
        "user_state",
        "weight",
    )

    def __init__(self, key: str, now_ms: int) -> None:
        self.key = key
        self.slot = slot_of(key)
        self.memory = Memory()  # replaced by the shard's in `count_in`
        self.tally = UNCOUNTED  # replaced by that of its tenant, by the shard
        self.head = 0  # the newest committed number
        self.floor = 0
        self.start = 0  # the number before its first one, see `begin`
        self.acked: set[int] | frozenset[int] = NONE_SETTLED  # changed by `_settled` and `_pass_acked`
        self.gone: list[tuple[int, int]] = []  # ranges above floor, ascending, not touching
        self.dying: dict[int, Message] = {}
        self.hot: dict[int, Message] = {}
        self.hot_bytes = 0  # total size of the bodies in `hot`
        self.cold: tuple[int, int] | None = None
        self.cold_attempts: dict[int, int] = {}
        self.newest_above_low = 0  # every number above it has low priority; includes settled numbers
        self.newest_high = 0  # the newest number of high priority that was in memory; includes settled numbers
        self.collapsing: dict[str, Collapsing] = {}  # collapse key -> its newest message, oldest first
        self.spilled = 0  # every retained pending number up to here is in the offline stream
        self.connections: dict[Conn, Attachment] = {}
        self.recent: dict[str, tuple[int, bytes]] = {}  # id -> (seq, digest), oldest first
        self.oldest_expires_ms = 0  # earliest expiry of the cold messages; 0 when none is cold
        self.timer_ms = 0  # when the armed retry timer fires; 0 when none is armed
        self.active_ms = now_ms
        self.queued_ms = -1  # `active_ms` when it joined the queue of mailboxes to evict; -1: it is not in it
        self.loading = False
        self.log_pos = 0  # cursor over the broadcast log, see `engine.core.commit.broadcast_step`
        self.live_pos = 0  # the log's head at the last check that found the user connected
        self.attached_pos = -1  # `log_pos` when its first connection was attached to this shard; -1: none was
        self.passed: PassedTopics | None = None  # None until a token's topic has left or was late
        self.topics: dict[str, int] = {}  # subscriptions: topic -> log position from which it applies
        self.judge_state: JudgeState | None = None  # None until the judge has some, then kept for the numbers of its records
        self.user_state: UserState | None = None  # the user's state; None when there is none
        self.seen_ms = 0  # time of the user's last connect or acknowledgement; 0 for never
        self.left_ms = 0  # `seen_ms` before the newest connect: when the user was active before an absence; 0 when it is not known
        self.weight = 0  # bytes without the messages, as counted in `memory`
        self.held = 0  # by the judge, as counted in `memory`
        self.inbox: Inbox | None = None  # None until the first message that is kept
        self.inbox_limits: InboxLimits | None = None  # None: nothing is kept

    # -- beginning and end --------------------------------------------------------------------------------------------

    def begin(self, start: int) -> None:
        """Number the first message `start` + 1. For a mailbox without numbers: those up to `start` may have been another incarnation's."""
        assert not self.head, "it has numbers"
        self.start = self.head = self.floor = self.spilled = self.newest_above_low = start

    def erase(self) -> None:
        """Forget the user: every message, setting and fact. Only the numbers go on where they were. No connection may be attached."""
        assert not self.connections, "connections refer to its messages"
        self.release_all()
        self._set_cold(None)
        self.start = self.floor = self.spilled = self.newest_above_low = self.head
        self.acked, self.gone, self.cold_attempts = NONE_SETTLED, [], {}
        self.recent, self.collapsing, self.topics = {}, {}, {}
        self.judge_state = self.user_state = self.inbox = self.passed = None
        self.oldest_expires_ms = self.seen_ms = self.left_ms = 0
        self.attached_pos = -1
        self.count_held()
        self.weigh()

    @property
    def idle(self) -> bool:
        """Whether it holds nothing that anybody may still want: no connection, no message, none in the inbox, nothing held back."""
        if self.inbox is not None and self.inbox.is_used:
            return False
        return not (self.connections or self.hot or self.dying or self.cold or self.loading or self.held)

    @property
    def is_new(self) -> bool:
        """Whether the user was never sent anything and has chosen nothing: no page is stored of them."""
        return self.head == self.start and self.judge_state is None and self.user_state is None and not self.topics

    @property
    def has_preferences(self) -> bool:
        """Whether the user, or the application for them, has chosen something: a profile or subscriptions."""
        return bool(self.topics) or (self.user_state is not None and self.user_state.profile is not None)

    # -- numbers ------------------------------------------------------------------------------------------------------

    def pending_count(self) -> int:
        """Return the number of pending messages: an upper bound if some cold numbers are gone."""
        over = len(self.acked)
        if self.gone or self.dying:  # rarely
            over += sum(last - first + 1 for first, last in self.gone) + sum(seq > self.floor for seq in self.dying)
        return self.head - self.floor - over

    def is_cold(self, seq: int) -> bool:
        """Return whether the body of `seq`, if it exists, is only in the offline stream. `seq` must not be hot."""
        cold = self.cold
        return (
            cold is not None and cold[0] <= seq <= cold[1] and seq not in self.acked and seq not in self.dying and self.gap_at(seq) is None
        )

    def is_behind(self) -> bool:
        """Return whether every connection is silent or has unsent numbers; true without connections."""
        return all(connection.silent or connection.sent < self.head for connection in self.connections.values())

    def takes_none(self) -> bool:
        """Return whether no connection wants a body that it was sent: each is silent, or acknowledges nothing and has read everything."""
        return all(connection.silent or not (connection.retries or connection.flight) for connection in self.connections.values())

    def oldest_pending(self) -> int:
        """Return the lowest number that is neither settled nor dying, including gone numbers; `head` + 1 when there is none."""
        seq = self.floor + 1
        while seq <= self.head and (seq in self.acked or seq in self.dying):
            seq += 1
        return seq

    def append(self, message: Message, digest: bytes, recent_max: int) -> None:
        """Add a committed message, numbered `head` + 1, and advance `head`. Stores its id with `remember`."""
        assert message.seq == self.head + 1, "numbers are given without holes"
        self.head = message.seq
        self._hold(message)
        if self.inbox_limits is not None and message.envelope.retain:
            self._enter(message, self.inbox_limits)
        self.remember(message.envelope.id, message.seq, digest, recent_max)

    def _enter(self, message: Message, limits: InboxLimits) -> None:
        """Add the message to the inbox, unless its category is not kept. A broadcast is kept no longer than its entry in the log."""
        keep_ms = limits.keep_of(message.envelope.policy_terms)
        if keep_ms:
            if self.inbox is None:
                self.inbox = Inbox(message.seq)
            due_ms = message.accepted_ms + keep_ms
            if type(message.envelope.body) is SharedBody:
                due_ms = min(due_ms, message.expires_ms)
            self.inbox.add(message.seq, due_ms, limits)
        elif self.inbox is not None:
            self.inbox.advance(message.seq, limits)

    def settle_unsent(self, seq: int) -> None:
        """The newest message, which was just added, is for the inbox only: settle it before anybody is sent it."""
        message = self._release(seq)
        if message is not None:
            self._keep(message)
        self._pass_over(seq)
        self._advance()

    def _pass_over(self, seq: int) -> None:
        """The number, above the floor, is settled."""
        if seq == self.floor + 1 or len(self.acked) < _ACKED_MAX:
            self._settled((seq,))
        else:
            self._add_gone(seq, seq)

    def _settled(self, seqs: Collection[int]) -> None:
        """These numbers, above the floor, are settled one by one."""
        if isinstance(self.acked, set):
            self.acked.update(seqs)
        elif seqs:
            self.acked = set(seqs)

    def leave_inbox(self, seq: int) -> None:
        """The message is among the dead letters."""
        if self.inbox is not None:
            self.inbox.remove(seq, seq)

    def _keep(self, message: Message) -> None:
        """The message is acknowledged: if it is in the inbox and in no offline stream, keep it until a checkpoint has written it."""
        if self.inbox is not None and message.seq > self.spilled:
            size = self.inbox.keep(message)
            self.inbox.counted_bytes += size
            self.memory.unwritten_bytes += size
            self.weight += size
            self.memory.resize(size)

    def remember(self, id: str, seq: int, digest: bytes, recent_max: int) -> None:
        """Store the id, to detect repeated publishes. Above `recent_max` ids, evicts the oldest."""
        recent = self.recent
        recent[id] = (seq, digest)
        if len(recent) > recent_max:
            del recent[next(iter(recent))]

    def forget_ids(self, through: str, keep: int) -> None:
        """Forget the ids from the oldest through this one, but none of the newest `keep`."""
        recent = self.recent
        if through in recent:
            for id in list(islice(recent, max(len(recent) - keep, 0))):
                del recent[id]
                if id == through:
                    break
            self.weigh()

    def reach(self, head: int, acked: Iterable[int]) -> None:
        """Advance to `head` if it is higher. Of the new numbers, those in `acked` are settled and all others are gone."""
        settled = {seq for seq in acked if self.head < seq <= head}
        self.lose(self.head + 1, head, settled)
        self._settled(settled)
        self.head = max(self.head, head)

    def count_in(self, memory: Memory) -> None:
        """Add the mailbox, as loaded from its page, to the totals of a shard, and update them from now on."""
        assert not self.hot, "a page has no bodies"
        self.memory = memory
        memory.cold += _span(self.cold)
        self.weigh()
        if self.judge_state is not None:
            self.count_held()

    def count_out(self) -> None:
        """Subtract the mailbox from its shard's totals, as it leaves memory. No message may be hot."""
        assert not self.hot, "it has messages that are nowhere else"
        memory = self.memory
        memory.cold -= _span(self.cold)
        memory.held -= self.held
        memory.resize(-self.weight)

    def release_all(self) -> None:
        """Drop every body from memory, as the mailbox leaves it: storage has them."""
        for seq in list(self.hot):
            self._release(seq)
        for message in self.dying.values():
            self.memory.remove(1, message.size)
        self.dying = {}
        if self.inbox is not None:
            self.inbox.release(self.head)
            self.weigh()

    def count_held(self) -> None:
        """Update the total of what the judge holds back. Call it after each change of `judge_state`."""
        count = 0 if self.judge_state is None else self.judge_state.held
        self.memory.held += count - self.held
        self.held = count

    def _set_cold(self, cold: tuple[int, int] | None) -> None:
        self.memory.cold += _span(cold) - _span(self.cold)
        self.cold = cold

    def weigh(self) -> None:
        """Update `weight` and the memory total to the current size of the mailbox without its messages, in bytes."""
        weight = MAILBOX_BYTES + RECENT_BYTES * len(self.recent)
        if self.judge_state is not None:
            weight += self.judge_state.size
        if self.user_state is not None:
            weight += self.user_state.size
        if self.inbox is not None:
            weight += self.inbox.size
            self.memory.unwritten_bytes += self.inbox.unwritten_bytes - self.inbox.counted_bytes
            self.inbox.counted_bytes = self.inbox.unwritten_bytes
        self.memory.resize(weight - self.weight)
        self.weight = weight

    def _hold(self, message: Message) -> None:
        """Store the message in `hot` and count it."""
        body = message.envelope.body
        size = len(body) if type(body) is bytes else 0  # as in `Message.size`
        memory = self.memory
        memory.messages_in += 1
        memory.bytes_in += size
        self.hot_bytes += size
        self.hot[message.seq] = message
        if message.envelope.priority != LOW and message.seq > self.newest_above_low:
            self.newest_above_low = message.seq
            if message.envelope.priority == HIGH:
                self.newest_high = message.seq

    def _release(self, seq: int) -> Message | None:
        """Remove the message from `hot` and return it; `None` when it was not in memory."""
        message = self.hot.pop(seq, None)
        if message is not None:
            size = message.size
            self.hot_bytes -= size
            self.memory.remove(1, size)
        return message

    def lose(self, first: int, last: int, kept: Iterable[int] = ()) -> None:
        """Mark the numbers `first`..`last` (inclusive) as gone, except those in `kept` and those up to `floor`."""
        for seq in sorted(seq for seq in kept if first <= seq <= last):
            self.lose(first, seq - 1)
            first = seq + 1
        first = max(first, self.floor + 1)
        if first > last:
            return
        if self.inbox is not None:
            self.inbox.remove(first, last)
        for connection in self.connections.values():
            if first <= connection.sent:
                connection.untold = max(connection.untold, min(last, connection.sent))
        self._add_gone(first, last)

    def _add_gone(self, first: int, last: int) -> None:
        gone = self.gone
        start = bisect_left(gone, first - 1, key=_last_of)  # the first range that overlaps, touches or follows
        end = bisect_right(gone, last + 1, key=_first_of)
        if start < end:
            first, last = min(first, gone[start][0]), max(last, gone[end - 1][1])
        gone[start:end] = [(first, last)]

    def gap_at(self, seq: int) -> tuple[int, int] | None:
        """Return the range of gone numbers (inclusive) that contains `seq`; `None` when `seq` is not gone."""
        index = bisect_left(self.gone, seq, key=_last_of)
        return self.gone[index] if index < len(self.gone) and self.gone[index][0] <= seq else None

    def supersede(self, seq: int) -> Message | None:
        """Mark a message replaced by a newer one as gone, if it is still pending. Returns it if it was in memory."""
        if seq <= self.floor or seq in self.acked or seq in self.dying or self.gap_at(seq) is not None:
            return None
        message = self._release(seq)
        if message is not None:
            for connection in self.connections.values():
                if seq <= connection.sent:  # else it may have an early copy, which is to be revoked
                    connection.land(message)
        self.cold_attempts.pop(seq, None)
        self.lose(seq, seq)
        return message

    def trim(self, kept_max: int) -> list[Message]:
        """Drop the oldest pending numbers beyond the newest `kept_max`, and forget what is settled before the last of them: all these are
        gone, except dying ones. What is settled stays in the inbox. Returns the dropped messages from memory.

        What is settled, gone or dying counts for nothing: messages for the inbox only use up numbers, and trim none that is pending. The
        cost without anything to drop is that of adding up `gone` and `dying`.
        """
        excess = self.pending_count() - kept_max
        if excess <= 0:
            return []
        first = self.floor + 1
        if self.gone and self.gone[0][0] == first:
            first = self.gone[0][1] + 1
        low = first - 1
        while excess:
            low += 1
            gap = self.gap_at(low)
            if gap is not None:
                low = gap[1]
            elif low not in self.acked and low not in self.dying:
                excess -= 1
        numbers: Iterable[int] = range(first, low + 1)
        if low - first > len(self.hot):  # after a jump of the head, most of these were never in memory
            numbers = sorted(seq for seq in self.hot if first <= seq <= low)
        dropped = [message for seq in numbers if (message := self._release(seq)) is not None]
        for message in dropped:
            self._land(message)
        self._absolve(low)
        settled = [seq for seq in self.acked if seq <= low]
        self.acked = {seq for seq in self.acked if seq > low} or NONE_SETTLED
        self._warm(low)
        self.lose(first, low, (*self.dying, *settled))
        for seq in sorted(settled):
            self._add_gone(seq, seq)
        return dropped

    def _warm(self, low: int) -> None:
        """Remove the numbers up to `low` from `cold` and `cold_attempts`."""
        if self.cold and self.cold[0] <= low:
            self._set_cold((low + 1, self.cold[1]) if low < self.cold[1] else None)
            for seq in [seq for seq in self.cold_attempts if seq <= low]:
                del self.cold_attempts[seq]

    def _land(self, message: Message) -> None:
        """Remove the message from the flight of every connection."""
        for connection in self.connections.values():
            connection.land(message)

    def _absolve(self, low: int) -> None:
        """Remove the numbers up to `low` from the exhausted of every connection."""
        for connection in self.connections.values():
            if connection.exhausted:
                connection.exhausted = {seq: known for seq, known in connection.exhausted.items() if seq > low}

    # -- settling -----------------------------------------------------------------------------------------------------

    def settle_through(self, seq: int, by: Attachment | None, now_ms: int, policy: RetryPolicy) -> Settlement:
        """Settle all numbers up to and including `seq`, which is at most `head`.

        Args:
            by: the connection that acknowledged; `None` for an acknowledgement without a connection.
        """
        assert seq <= self.head, "nobody can have handled what was never numbered"
        floor = self.floor
        if seq <= floor:
            return Settlement([], {})
        if by is None:
            return self._settle_range(seq, None)
        by.measure(seq, now_ms, policy)
        if by.exhausted or by.first_sent_ms or self.cold or self.acked or self.gone or self.dying or len(self.connections) != 1:
            return self._settle_range(seq, by)
        # The common case: everything above the floor is in memory, nothing was retried, and no other connection needs a revocation.
        hot, flight, inbox = self.hot, by.flight, self.inbox
        messages: list[tuple[Message, int]] = []
        size = landed = 0
        while floor < seq:  # nearly always once
            floor += 1
            message = hot.pop(floor)
            body = message.envelope.body
            length = len(body)
            if type(body) is bytes:  # as in `Message.size`
                size += length
            flown = flight.pop(floor, None)
            if flown is None:
                messages.append((message, 0))
            else:
                landed += length
                messages.append((message, flown[0]))
            if inbox is not None:
                self._keep(message)
        by.flight_bytes -= landed
        self.hot_bytes -= size
        self.memory.remove(len(messages), size)
        self.floor = seq
        return Settlement(messages, {}, True)

    def _settle_range(self, seq: int, by: Attachment | None) -> Settlement:
        result = Settlement([], {}, True)
        if seq - self.floor <= len(self.hot) + 8:
            numbers: Iterable[int] = range(self.floor + 1, seq + 1)
        else:
            numbers = sorted(number for number in self.hot if number <= seq)
        size = 0
        for number in numbers:
            message = self.hot.pop(number, None)
            if message is not None:
                size += message.size
                self._settle(message, by, result)
        self.hot_bytes -= size
        self.memory.remove(len(result.messages), size)
        if self.cold and self.cold[0] <= seq:
            self._revoke_cold(self.cold[0], seq, by, result)
        self._absolve(seq)
        self.floor = seq
        if self.acked:
            self.acked = {number for number in self.acked if number > seq} or NONE_SETTLED
        self._warm(seq)
        self._advance()
        return result

    def settle(self, seqs: Iterable[int], by: Attachment | None, now_ms: int, policy: RetryPolicy) -> Settlement:
        """Settle exactly these numbers; ignores numbers that are neither pending nor dying."""
        result = Settlement([], {})
        in_place = 0
        for seq in seqs:
            if seq not in self.hot and seq not in self.dying and not self.is_cold(seq):
                continue
            message = self._release(seq)
            if message is not None:
                if by is not None:
                    by.measure(seq, now_ms, policy)
                    if message.envelope.priority != HIGH or not (message.attempts or message.accepted_ms <= by.since_ms):
                        in_place = max(in_place, seq)
                self._settle(message, by, result)
            elif seq not in self.dying:
                self._revoke_cold(seq, seq, by, result)
            if (dead := self.dying.pop(seq, None)) is not None:
                self.memory.remove(1, dead.size)
                self.leave_inbox(seq)
            if seq > self.floor:
                self._pass_over(seq)
            result.news = True
        for connection in self.connections.values():
            if connection.exhausted:
                connection.exhausted = {seq: known for seq, known in connection.exhausted.items() if self.is_pending(seq)}
        self._advance()
        if by is not None and in_place:
            self._settle_gaps(min(in_place, by.sent), by.untold)
        return result

    def _settle_gaps(self, seq: int, untold: int) -> None:
        """Settle the gaps below `seq`, which a connection acknowledged: a gap above `untold` is sent before any later number.

        Its client must have got `seq` in its place. It may have acknowledged an early copy, of before the gaps, where the message has high
        priority and was sent before, also on another connection or by a shard that has died since.

        A gap of any length at the floor raises the floor. Above a number that is still pending, only a gap of at most
        `_GAP_ACKED_MAX` numbers moves to `acked`, which holds single numbers; a longer one stays a range in `gone`, and may be sent again.
        So does every gap once `acked` is full.
        """
        kept = []
        told, passed = bisect_right(self.gone, untold, key=_first_of), bisect_left(self.gone, seq, key=_last_of)
        for first, last in self.gone[told:passed]:
            if first <= self.floor + 1:
                self.floor = max(self.floor, last)
                self._pass_acked()
            elif last - first < _GAP_ACKED_MAX and len(self.acked) < _ACKED_MAX:
                self._settled(range(first, last + 1))
            else:
                kept.append((first, last))
        self.gone[told:passed] = kept
        self._advance()

    def refuse(self, seqs: Iterable[int]) -> list[Message]:
        """Move these messages from `hot` to `dying` and return them; ignores numbers that are not hot.

        They are not sent again; `settle` settles them once the dead-letter stream has stored them.
        """
        refused = []
        for seq in seqs:
            message = self.hot.pop(seq, None)
            if message is not None:  # it stays in the totals of memory
                self.hot_bytes -= message.size
                self._land(message)
                self.dying[seq] = message
                refused.append(message)
        return refused

    def _revoke_cold(self, first: int, last: int, by: Attachment | None, result: Settlement) -> None:
        """Add the cold numbers, and revocations for the connections on which they are exhausted or early."""
        result.cold = (*result.cold, (first, min(last, self.cold[1] if self.cold else last), self.acked if first < last else ()))
        for connection in self.connections.values():
            for shown in (connection.exhausted, connection.early):
                if connection is not by and shown:
                    told = result.revoked.setdefault(connection.conn, [])
                    told += [id for seq, (_, id) in shown.items() if first <= seq <= last and self.is_cold(seq)]

    def _settle(self, message: Message, by: Attachment | None, result: Settlement) -> None:
        seq, first_sent_ms = message.seq, 0
        for connection in self.connections.values():
            copied = connection.early is not None and seq in connection.early
            sent_ms = connection.land(message)
            if connection is by:
                first_sent_ms = sent_ms or 0
            elif sent_ms is not None or seq <= connection.sent or copied:
                result.revoked.setdefault(connection.conn, []).append(message.envelope.id)
        result.messages.append((message, first_sent_ms))
        if self.inbox is not None:
            self._keep(message)

    def _pass_acked(self) -> None:
        acked = self.acked
        if isinstance(acked, set):
            while self.floor + 1 in acked:
                self.floor += 1
                acked.discard(self.floor)
            if not acked:
                self.acked = NONE_SETTLED

    def _advance(self) -> None:
        self._pass_acked()
        self._warm(self.floor)
        if self.gone and self.gone[0][0] <= self.floor:
            self.gone = [(max(first, self.floor + 1), last) for first, last in self.gone if last > self.floor]

    # -- inbox --------------------------------------------------------------------------------------------------------

    def is_pending(self, seq: int) -> bool:
        """Whether the number is unsettled, and not known to be gone."""
        return seq in self.hot or seq in self.dying or self.is_cold(seq)

    def kept(self, seq: int) -> Message | None:
        """The message of the inbox with this number, if its body is in memory."""
        found = self.hot.get(seq) or self.dying.get(seq)
        return found if found is not None or self.inbox is None else self.inbox.unwritten.get(seq)

    def condemn(self, count_max: int) -> None:
        """Collect in the inbox the entries of the offline stream that nobody needs, for the checkpoint that is being made."""
        if self.inbox is not None:
            self.inbox.condemn(self.floor, self.acked, self.gone, self.dying, count_max)

    def outdated(self, expired: Iterable[int], aged: Iterable[int], due_ms: int) -> None:
        """The sweep found entries of the offline stream that are over: those of `expired` if they are pending, those of `aged` if not.

        `due_ms`: when the first of the other acknowledged ones is too old; 0 when there is none.
        """
        for seq in expired:
            if seq not in self.hot and seq not in self.dying and self.is_cold(seq):
                self.lose(seq, seq)
        if self.inbox is not None:
            self.inbox.age([seq for seq in aged if not self.is_pending(seq)], due_ms)

    # -- sending ------------------------------------------------------------------------------------------------------

    def expire(self, first: int, now_ms: int) -> list[Message]:
        """Mark the unbroken run of expired hot messages that starts at `first` as gone. Returns them."""
        seq, expired = first, list[Message]()
        while (message := self.hot.get(seq)) is not None and message.expires_ms <= now_ms:
            self._release(seq)
            self._land(message)
            expired.append(message)
            seq += 1
        self.lose(first, seq - 1)
        return expired

    def expire_all(self, now_ms: int) -> tuple[list[Message], int]:
        """Mark what has expired as gone, of cold messages those that are exhausted on a connection.

        Returns the messages that were in memory, and when the next one expires, ms; 0 when none is known.
        """
        expired = [message for seq in list(self.hot) for message in self.expire(seq, now_ms)]
        moments = [message.expires_ms for message in self.hot.values()]
        for connection in self.connections.values():
            for seq, (expires_ms, _) in connection.exhausted.items():
                if expires_ms > now_ms:
                    moments.append(expires_ms)
                elif seq not in self.hot and self.is_cold(seq):
                    self.lose(seq, seq)
        return expired, min(moments, default=0)

    def next_retry_ms(self, now_ms: int, policy: RetryPolicy) -> int:
        """Return the earliest retry time over all connections, in ms; 0 when no message is to be retried."""
        moments = [connection.next_retry_ms(now_ms, policy) for connection in self.connections.values() if connection.flight]
        return min(filter(None, moments), default=0) if moments else 0

    def detach(self, conn: Conn) -> Attachment | None:
        """Remove an ended connection: its messages in flight are pending again. Returns it; `None` when it is not attached."""
        connection = self.connections.pop(conn, None)
        if connection is not None:
            connection.spend(self.hot)
        return connection

    # -- memory -------------------------------------------------------------------------------------------------------

    def loaded(self, first: int, last: int, messages: Iterable[Message]) -> int:
        """Apply the result of a stream read of the cold numbers `first`..`last`. Returns how many messages became hot.

        Numbers in the range that the read did not find and that are still cold are gone.
        """
        if not self.cold or last < self.cold[0]:
            return 0
        found = {message.seq: message for message in messages}
        added = 0
        start = max(first, self.cold[0])
        for seq in range(start, last + 1):
            message = found.get(seq)
            if seq <= self.floor or seq in self.hot or seq in self.dying or not self.is_cold(seq):
                continue
            if message is None:
                self.lose(seq, seq)
                continue
            message.attempts = max(message.attempts, self.cold_attempts.get(seq, 0))
            self._hold(message)
            added += 1
        if first <= self.cold[0]:
            self._warm(last)
        elif last >= self.cold[1]:
            self._set_cold((self.cold[0], first - 1))
        # Else the range stays: every number of it that was read now has another state.
        return added

    def cool(self) -> list[Message]:
        """Evict the messages up to `spilled` that are in no flight, and return them.

        Retained messages become cold: the offline stream stores them. The others are gone.
        """
        flying = {seq for connection in self.connections.values() for seq in connection.flight}
        droppable = sorted(seq for seq in self.hot if seq <= self.spilled and seq not in flying)
        dropped = []
        for message in [self.hot[seq] for seq in droppable]:
            self._release(seq := message.seq)
            dropped.append(message)
            if not message.envelope.retain:
                self.lose(seq, seq)
            elif message.attempts:
                self.cold_attempts[seq] = message.attempts
        kept = [message.seq for message in dropped if message.envelope.retain]
        if kept:
            low, high = min(kept), max(kept)
            self._set_cold((min(self.cold[0], low), max(self.cold[1], high)) if self.cold else (low, high))
        return dropped


def _span(numbers: tuple[int, int] | None) -> int:
    """Return the length of an inclusive range; 0 for `None`."""
    return 0 if numbers is None else numbers[1] - numbers[0] + 1
