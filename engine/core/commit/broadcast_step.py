"""Adoption: adds a broadcast to the mailboxes that it concerns, each under the mailbox's own next sequence number.

A mailbox has a cursor over the broadcast log (`Mailbox.log_pos`): entries up to it were adopted, or did not concern it. An entry
concerns a mailbox of its tenant when it is for everyone, when the user is subscribed to its topic since before it
(`Mailbox.topics`), or when the token of a connection names the topic (`Attachment.topics`): such a token makes its bearer a
member of the topic as every user is one of "everyone".

States of a mailbox here
    away     nobody is connected. Nothing happens; the entries wait in the log, not in the mailbox
    behind   connected, and entries may concern it: it takes them with one of the next group commits, posts first
    taking   in the group that is under way, which adopts for it or changes its topics: until that is durable, the log has not passed it
    full     behind, with a window of pending messages already: it continues when its user has acknowledged half of them, or some have
             expired, so that the broadcasts of a slow user stay in the log, where they need no memory of the mailbox
    asleep   behind, and its user has quiet hours: it continues when they end, or when the profile changes. An entry of high priority
             is adopted nevertheless, with those before it
    even     connected, and everything up to the log's head was adopted or did not concern it; its cursor is not updated, it
             counts as the head

A type or target that the user has muted does not concern the mailbox. What the user wants in the inbox only is adopted, and settled at
once. Caps and the digest are for messages to users: a broadcast counts against none, and comes by itself
(`engine.core.commit.judge`).

An entry that is adopted is a message like any other: journalled, as its position and the numbers it got in up to `adopt_max`
mailboxes (`checkpoint.Adopted`), then delivered, repeated, acknowledged, spilled. Its body is the log's own object.

An entry gets no number, and so leaves no gap, when it is not retained and was published while the user was not connected. One that was
dropped from the log before the mailbox could adopt it gets a number that is gone at once: a gap, sent and acknowledged as every other. One
such number stands for one or more entries that were lost. A user who was never connected has lost nothing.

After a crash a group in the journal is replayed, with the cursor. A group that is not there had no effect, and the successor's mailboxes
are behind as soon as their connections are announced. A cursor that was not stored is older than the last one in memory: the entries after
it either were adopted (then the journal or the page has moved the cursor) or did not concern the mailbox, and are checked once more. Edges
announce connections with the time they began, so that an entry that is not retained reaches nobody who came after it. What a mailbox has
passed without the topics of a connection that is announced late it adopts first (`engine.core.mailbox.passed_topics`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, merge
from itertools import islice
from typing import Final

from msgspec import Struct

from engine.core.commit.judge import NO_JUDGE, Judge
from engine.core.journal.journal_records import Adopted
from engine.core.mailbox.attachment import Attachment
from engine.core.mailbox.broadcast_log import EVERYONE, LOST, Broadcast, BroadcastMirror, lost_at
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.passed_topics import PassedTopics, Range
from engine.core.model.constants import HIGH, LOW
from engine.core.model.message import Message
from engine.core.model.routing import split_key

_LOOKS_MAX: Final = 4
"""Mailboxes checked per group, as a multiple of `adopt_max`; a check without a result takes a microsecond."""


_FULL_MS_MAX: Final = 5_000
"""Between two looks at a full mailbox: messages that came since the last one may expire earlier than those of then, and some leave without
an acknowledgement, trimmed or not kept. A look takes some 10 us: a fiftieth of a core for ten thousand slow users."""


_WAKES_MIN: Final = 64
"""Outdated entries that the heap of wake-ups may always hold."""


class Adoption(Struct):
    """The entries that one mailbox adopts with one group. `first` is the number of the first entry; the numbers are consecutive."""

    mailbox: Mailbox
    broadcasts: list[Broadcast]
    cursor: int  # everything up to it is adopted once the group is committed
    first: int = 0
    adopted_ms: int = 0
    inbox_only: frozenset[int] = frozenset()  # positions of those that the user wants in the inbox only
    owed: Mapping[str, Sequence[Range]] = {}  # topic -> ranges before the cursor, of which it adopts what the mailbox has passed


class BroadcastStep:
    """Tracks which mailboxes of a shard are behind the log, and adopts for them.

    `full` has the keys of the mailboxes that adopt nothing until half of their window is free. It is nearly always empty: test it before
    calling `settled` on a hot path.

    Args:
        pending_max: a mailbox with so many messages pending is full.
        adopt_max: broadcasts adopted with one group, counted once per mailbox.
        recent_max: ids remembered per mailbox.
        judge: knows what users wish.
    """

    def __init__(self, log: BroadcastMirror, pending_max: int, adopt_max: int, recent_max: int, judge: Judge = NO_JUDGE) -> None:
        self._log = log
        self._read_from = 0  # the head of the log before the last read
        self._recent_max = recent_max
        self._judge = judge
        self._pending_max = pending_max
        self._adopt_max = adopt_max
        self._tenants: dict[str, dict[str, Mailbox]] = {}  # connected mailboxes
        self._members: dict[tuple[str, str], dict[str, Mailbox]] = {}  # of them, by tenant and topic
        self._topics: dict[str, frozenset[str]] = {}  # key -> where the mailbox is in `_members`; only those with topics
        self.behind: Final[dict[str, Mailbox]] = {}
        self.urgent: Final[dict[str, Mailbox]] = {}  # those of them for which an entry of more than low priority came
        self.full: set[str] = set()
        self._asleep: dict[str, tuple[int, Mailbox]] = {}  # until when; also full ones, until some of their messages may have expired
        self._wakes: list[tuple[int, str]] = []  # a heap of (when, key); an entry of a mailbox that was woken before is outdated
        self._taking: set[str] = set()
        # Key of these -> topics that joined or left meanwhile -> whether the group adopts of them.
        self._moved: dict[str, dict[str, bool]] = {}
        self.expired: list[tuple[Mailbox, list[Message]]] = []  # pending messages found to have expired

    def wants_commit(self, *, low: bool, high: bool) -> bool:
        """Whether a mailbox is behind: with `low` any, with `high` one that an entry of more than low priority concerns."""
        return bool((high and self.urgent) or (low and self.behind))

    # -- Connections. -------------------------------------------------------------------------------------------------

    def attached(self, mailbox: Mailbox, connection: Attachment, now_ms: int, since_ms: int | None) -> bool:
        """A connection of the mailbox began, or was announced again on a new link session: then `since_ms` is when it began.

        Returns whether broadcasts wait for it.
        """
        key, log = mailbox.key, self._log
        if len(mailbox.connections) == 1:
            mailbox.live_pos = log.head
            if mailbox.attached_pos < 0:
                mailbox.attached_pos = mailbox.log_pos
            self._tenants.setdefault(split_key(key)[0], {})[key] = mailbox
        else:
            # Its topics count from here on. What is not retained and came since it began is live, for the first time perhaps.
            self._even(mailbox, log.head if since_ms is None else since_ms * 1000)
        if since_ms is not None:  # what came since is live; the cursor may be older, where the shard is another one
            mailbox.live_pos = max(mailbox.log_pos, min(since_ms * 1000, mailbox.live_pos))
            connection.announced_pos = since_ms * 1000
        if connection.topics or mailbox.topics:
            self._enlist(mailbox)
        due = self._due(mailbox, now_ms, 1)
        if not due:
            return False
        self._fall_behind(mailbox)
        return not self._judge.quiet_until(mailbox, now_ms) or bool(_through_high(self._all_due(mailbox, now_ms)))

    def rejoined(self, mailbox: Mailbox, connection: Attachment, topics: Sequence[str], now_ms: int) -> None:
        """The connection's memberships are `topics` from now on. New ones count from here on, and nothing is owed of them."""
        self._even(mailbox, self._log.head)
        gained = set(topics).difference(connection.topics)
        connection.topics = tuple(topics)
        self._enlist(mailbox)
        for topic in gained:
            self._moved.get(mailbox.key, {}).pop(topic, None)
            if mailbox.passed is not None:
                mailbox.passed.forget(topic)
        if self._due(mailbox, now_ms, 1):
            self._fall_behind(mailbox)

    def detached(self, mailbox: Mailbox) -> None:
        """A connection of the mailbox ended."""
        key = mailbox.key
        if not mailbox.connections:
            self._even(mailbox, self._log.head)
            self.behind.pop(key, None)
            self.urgent.pop(key, None)
            self.full.discard(key)
            self._asleep.pop(key, None)
            tenant = split_key(key)[0]
            connected = self._tenants[tenant]
            del connected[key]
            if not connected:
                del self._tenants[tenant]
        if key in self._topics:
            self._enlist(mailbox)

    def subscribed(self, mailbox: Mailbox) -> None:
        """The mailbox's topics have changed."""
        if mailbox.connections:
            self._even(mailbox, max(mailbox.topics.values(), default=0))  # a new subscription applies from there on
            self._enlist(mailbox)
            self._fall_behind(mailbox)

    @property
    def next_ms(self) -> int | None:
        """When `tick` has a mailbox to wake, or earlier; None while none sleeps."""
        return self._wakes[0][0] if self._wakes else None

    def tick(self, now_ms: int) -> None:
        """Wake the mailboxes with quiet hours that have ended by now, and full ones that are to be looked at."""
        wakes = self._wakes
        while wakes and wakes[0][0] <= now_ms:
            until_ms, key = heappop(wakes)
            sleeper = self._asleep.get(key)
            if sleeper is not None and sleeper[0] == until_ms:
                del self._asleep[key]
                self._fall_behind(sleeper[1])

    def wake(self, mailbox: Mailbox) -> None:
        """The user's profile has changed."""
        if self._asleep.pop(mailbox.key, None) is not None:
            self._fall_behind(mailbox)

    def _sleep(self, mailbox: Mailbox, until_ms: int) -> None:
        """Mark the mailbox as asleep. It may sleep and wake any number of times: with mostly outdated entries the heap is rebuilt."""
        self._asleep[mailbox.key] = (until_ms, mailbox)
        heappush(self._wakes, (until_ms, mailbox.key))
        if len(self._wakes) > _WAKES_MIN + 2 * len(self._asleep):
            self._wakes = [(moment_ms, key) for key, (moment_ms, _) in self._asleep.items()]
            heapify(self._wakes)

    def settled(self, mailbox: Mailbox) -> None:
        """Messages of the mailbox were acknowledged: a full one continues when half of its window is free."""
        if mailbox.key in self.full and mailbox.pending_count() <= self._pending_max // 2:
            self._fall_behind(mailbox)

    def _fall_behind(self, mailbox: Mailbox) -> None:
        """Entries that are held may concern the mailbox, which has a connection."""
        log, key, cursor = self._log, mailbox.key, mailbox.log_pos
        tenant = split_key(key)[0]
        urgent = any(log.newest_urgent.get((tenant, topic), 0) > cursor for topic in (EVERYONE, *self._topics.get(key, ())))
        (self.urgent if urgent else self.behind)[key] = mailbox

    def _even(self, mailbox: Mailbox, pos: int) -> None:
        """Pass the log up to this position, at most to its head, if the mailbox is even."""
        key = mailbox.key
        if not any(key in some for some in (self.behind, self.urgent, self.full, self._asleep, self._taking)):
            self._pass_log(mailbox, pos)

    def _pass_log(self, mailbox: Mailbox, pos: int) -> None:
        """Nothing up to this position is due. The mailbox may be beyond it, as another shard's was that has read more."""
        mailbox.log_pos = max(mailbox.log_pos, min(pos, self._log.head))

    def _enlist(self, mailbox: Mailbox) -> None:
        """Index the mailbox under its topics while it has a connection."""
        key = mailbox.key
        tenant = split_key(key)[0]
        topics: frozenset[str] = frozenset()
        if mailbox.connections:
            topics = topics.union(mailbox.topics, *(connection.topics for connection in mailbox.connections.values()))
        before = self._topics.pop(key, frozenset())
        if topics:
            self._topics[key] = topics
        moved = self._moved.setdefault(key, {}) if key in self._taking and topics != before else None
        for topic in topics - before:
            self._members.setdefault((tenant, topic), {})[key] = mailbox
            self._counts(mailbox, topic)
            if moved is not None:
                moved.setdefault(topic, False)
        for topic in before - topics:
            members = self._members[(tenant, topic)]
            del members[key]
            if not members:
                del self._members[(tenant, topic)]
            _passed_topics(mailbox).left(topic, mailbox.log_pos)
            if moved is not None:
                moved.setdefault(topic, True)

    def _counts(self, mailbox: Mailbox, topic: str) -> None:
        """From here on the topic counts. What has passed without it ends where the mailbox is."""
        if mailbox.passed is not None or mailbox.attached_pos < mailbox.log_pos:  # nearly never
            _passed_topics(mailbox).counts(topic, mailbox.attached_pos, mailbox.log_pos)

    # -- Adoption. ----------------------------------------------------------------------------------------------------

    def read(self, broadcasts: Iterable[Broadcast]) -> None:
        """Take in entries of the log, ascending: connected mailboxes that they concern are behind."""
        self._read_from = self._log.head
        for broadcast in self._log.add(broadcasts):
            if concerned := self._concerned(broadcast.tenant, broadcast.topic):
                (self.behind if broadcast.envelope.priority == LOW else self.urgent).update(concerned)

    def lose(self, tenant: str, topic: str, pos: int) -> None:
        """A retained entry has left the log. What the mirror holds was offered to all; otherwise, whoever is connected is behind."""
        unread = self._log.get(pos) is None  # also before the head: what was read since may concern nobody
        if self._log.lose(tenant, topic, pos) and unread and (concerned := self._concerned(tenant, topic)):
            self.behind.update(concerned)

    def forget(self, horizon: int) -> None:
        """Losses up to this position may be forgotten. Where some may be unread, all who are connected are behind."""
        self._log.forget(horizon)
        if horizon > self._read_from:
            for connected in self._tenants.values():
                self.behind.update(connected)

    def _concerned(self, tenant: str, topic: str) -> dict[str, Mailbox] | None:
        """Connected mailboxes."""
        return self._tenants.get(tenant) if topic == EVERYONE else self._members.get((tenant, topic))

    def _due(self, mailbox: Mailbox, now_ms: int, count_max: int) -> list[Broadcast]:
        """The next entries that concern the mailbox, ascending, `count_max` at most; not to be changed."""
        log, cursor = self._log, mailbox.log_pos
        if cursor >= log.head and not mailbox.passed:
            return []
        tenant = split_key(mailbox.key)[0]
        of_everyone = log.after(tenant, EVERYONE, cursor)
        found: Iterable[Broadcast] = of_everyone
        topics = self._topics.get(mailbox.key)
        if cursor >= log.lost_head and topics is None and len(of_everyone) == 1 and mailbox.user_state is None:  # nearly always
            return of_everyone if _is_live(of_everyone[0], mailbox, now_ms) else _lost([*of_everyone], mailbox)
        if topics or cursor < log.lost_head:
            beginnings = self._beginnings(mailbox, topics)
            channels = [log.after(tenant, topic, max(cursor, since)) for topic, since in beginnings]
            channels += [log.lost_after(tenant, topic, max(cursor, since)) for topic, since in beginnings]
            if mailbox.passed:
                channels += self._passed(mailbox, mailbox.passed)
            found = merge(*channels, key=_position)
        due: list[Broadcast] = []
        lost: list[Broadcast] = []  # behind the last one that is due
        unwanted = None if mailbox.user_state is None else self._judge.unwanted
        for broadcast in found:
            if broadcast.envelope is not LOST and unwanted is not None and unwanted(mailbox, broadcast):
                continue
            if broadcast.envelope is LOST or not _is_live(broadcast, mailbox, now_ms):
                lost.append(broadcast)
                continue
            due += _lost(lost, mailbox)
            due.append(broadcast)
            lost.clear()
            if len(due) >= count_max:
                return due[:count_max]
        return due + _lost(lost, mailbox)

    def _all_due(self, mailbox: Mailbox, now_ms: int) -> list[Broadcast]:
        return self._due(mailbox, now_ms, 2 * len(self._log) + 1)  # before each entry there may be one that was lost

    def _passed(self, mailbox: Mailbox, passed: PassedTopics) -> Iterator[list[Broadcast]]:
        """What the mailbox has passed and its user is owed, by topic and range."""
        tenant = split_key(mailbox.key)[0]
        for topic, ranges in _owed(mailbox, passed).items():
            for first, last in ranges:
                for channel in (self._log.after(tenant, topic, first), self._log.lost_after(tenant, topic, first)):
                    yield [entry for entry in channel if entry.pos <= last]

    def _beginnings(self, mailbox: Mailbox, topics: Iterable[str] | None) -> list[tuple[str, int]]:
        """The topics that concern the mailbox, and from which position on."""
        if not topics:
            return [(EVERYONE, 0)]
        claimed = frozenset().union(*(connection.topics for connection in mailbox.connections.values()))
        return [(EVERYONE, 0), *((topic, 0 if topic in claimed else mailbox.topics[topic]) for topic in topics)]

    def take(self, now_ms: int, *, low: bool = True, high: bool = True, changing: Iterable[str] = ()) -> list[Adoption]:
        """The adoptions of the next group. Call `committed` or `refused` before the next call.

        `low` and `high` as in `wants_commit`. A mailbox takes what is before it in the log's order, so an urgent broadcast takes
        the low ones before it along. `changing` has the keys of the mailboxes whose topics the group changes.
        """
        assert not self._taking, "one group at a time"
        taken: list[Adoption] = []
        left = self._adopt_max
        if high:
            left = self._take_from(self.urgent, taken, left, now_ms)
        if low:
            self._take_from(self.behind, taken, left, now_ms)
        self._taking.update(changing)
        return taken

    def _take_from(self, behind: dict[str, Mailbox], taken: list[Adoption], left: int, now_ms: int) -> int:
        """Take at most `left` broadcasts into these mailboxes; returns how many more could be taken."""
        # All keys at once: finding a dictionary's first key again skips every entry that was removed from its front.
        for key in list(islice(behind, _LOOKS_MAX * self._adopt_max)):
            if left <= 0:
                break
            mailbox = behind.pop(key)
            if key in self._taking:
                behind[key] = mailbox
                continue
            room = min(self._pending_max - mailbox.pending_count(), left)
            if room <= 0 or key in self.full:
                room = min(self._make_room(mailbox, now_ms), left)
            if room <= 0:
                continue
            due = self._due(mailbox, now_ms, room + 1)
            owed = _owed(mailbox, mailbox.passed) if mailbox.passed else {}
            if not due:
                self._pass_log(mailbox, self._log.head)
                if mailbox.passed is not None:
                    mailbox.passed.adopted(owed, self._log.head)
                continue
            cursor = self._log.head
            until_ms = 0 if mailbox.user_state is None else self._judge.quiet_until(mailbox, now_ms)
            if until_ms and due[-1].envelope.priority != HIGH:
                self._sleep(mailbox, until_ms)
                if len(due) > room:
                    due = self._all_due(mailbox, now_ms)
                due = _through_high(due)
                if not due:
                    continue
                cursor = due[-1].pos
            if len(due) > room:
                due = due[:room]
                cursor = due[-1].pos
                behind[key] = mailbox  # at the end, after all others
            taken.append(Adoption(mailbox, due, cursor, owed=owed))
            self._taking.add(key)
            left -= len(due)
        return left

    def _make_room(self, mailbox: Mailbox, now_ms: int) -> int:
        """Drop expired messages of a full mailbox; returns how many broadcasts it may adopt now. With 0 it is full, until it wakes."""
        key = mailbox.key
        room = self._pending_max - mailbox.pending_count()
        if room <= 0:
            if key in self.full and key in self._asleep:
                return 0
            expired, next_ms = mailbox.expire_all(now_ms)
            if expired:
                self.expired.append((mailbox, expired))
            room = self._pending_max - mailbox.pending_count()
            if room <= 0:
                self.full.add(key)
                self._sleep(mailbox, min(next_ms or now_ms + _FULL_MS_MAX, now_ms + _FULL_MS_MAX))
                return 0
        if key in self.full:
            self.full.discard(key)
            self._asleep.pop(key, None)
        return room

    def committed(self, adoptions: Sequence[Adoption]) -> int:
        """The group is in the journal: add the broadcasts to their mailboxes. Returns the number of messages."""
        self._taking.clear()
        if self._moved:
            self._account(adoptions)
        count = 0
        for adoption in adoptions:
            mailbox = adoption.mailbox
            for seq, broadcast in enumerate(adoption.broadcasts, adoption.first):
                inbox_only = broadcast.pos in adoption.inbox_only
                adopt(mailbox, broadcast, seq, adoption.adopted_ms, self._recent_max, inbox_only=inbox_only)
            mailbox.log_pos = max(mailbox.log_pos, adoption.cursor)
            if mailbox.passed is not None:
                mailbox.passed.adopted(adoption.owed, adoption.cursor)
            count += len(adoption.broadcasts)
        return count

    def _account(self, adoptions: Iterable[Adoption]) -> None:
        """What the group adopts of topics that left meanwhile has not passed; what it passes of those that joined has."""
        for adoption in adoptions:
            mailbox, first, last = adoption.mailbox, adoption.mailbox.log_pos, adoption.cursor
            if first >= last:  # it adopts nothing but what it has passed
                continue
            for topic, adopts in self._moved.get(mailbox.key, {}).items():
                if adopts:
                    _passed_topics(mailbox).remove(topic, first, last)
                else:
                    _passed_topics(mailbox).add(topic, first, last)
        self._moved.clear()

    def refused(self, adoptions: Iterable[Adoption]) -> None:
        """The group was rolled back: its mailboxes are behind again."""
        self._taking.clear()
        self._moved.clear()
        for adoption in adoptions:
            if adoption.mailbox.connections:
                self._fall_behind(adoption.mailbox)


def _passed_topics(mailbox: Mailbox) -> PassedTopics:
    """Those of the mailbox, which has them from now on."""
    if mailbox.passed is None:
        mailbox.passed = PassedTopics()
    return mailbox.passed


def _owed(mailbox: Mailbox, passed: PassedTopics) -> dict[str, list[Range]]:
    """What has passed, by topic, of the topics of connections that were announced again, after these began."""
    owed: dict[str, list[Range]] = {}
    announced = [connection for connection in mailbox.connections.values() if connection.announced_pos >= 0]
    announced.sort(key=_announced_pos, reverse=True)  # the oldest is owed most
    for connection in announced:
        for topic in connection.topics:
            if ranges := passed.after(topic, connection.announced_pos):
                owed[topic] = ranges
    return owed


def _announced_pos(connection: Attachment) -> int:
    return connection.announced_pos


def _is_live(broadcast: Broadcast, mailbox: Mailbox, now_ms: int) -> bool:
    if broadcast.expires_ms <= now_ms:
        return False
    return broadcast.envelope.retain or broadcast.pos > mailbox.live_pos or broadcast.pos <= mailbox.log_pos  # what is owed is before it


def _lost(broadcasts: Sequence[Broadcast], mailbox: Mailbox) -> list[Broadcast]:
    """What stands for these, which are not live, in the mailbox: nothing, or one entry for all that the user has lost."""
    known = 0 if mailbox.log_pos else _known_since(mailbox)
    newest = max((broadcast.pos for broadcast in broadcasts if broadcast.envelope.retain and broadcast.pos > known), default=0)
    return [lost_at(newest)] if newest else []


def _known_since(mailbox: Mailbox) -> int:
    """The position at which a user without a cursor was last there; 0 for a user who never was before."""
    return mailbox.left_ms * 1000 or mailbox.live_pos


def _through_high(broadcasts: Sequence[Broadcast]) -> list[Broadcast]:
    """Those up to the last one of high priority."""
    upto = len(broadcasts)
    while upto and broadcasts[upto - 1].envelope.priority != HIGH:
        upto -= 1
    return list(broadcasts[:upto])


def number(adoptions: Sequence[Adoption], heads: dict[str, int], judge: Judge, now_ms: int) -> list[tuple[int, Adopted]]:
    """Assign every adopted broadcast its number in every mailbox; returns the journal records, each with its slot.

    Args:
        heads: the newest numbers that the same group assigns, by mailbox key: before to posts, afterwards to broadcasts too.
    """
    records: dict[tuple[int, int], Adopted] = {}  # by position and slot
    for adoption in adoptions:
        key, slot = adoption.mailbox.key, adoption.mailbox.slot
        seq = adoption.first = heads.get(key, adoption.mailbox.head) + 1
        adoption.adopted_ms = now_ms
        if adoption.mailbox.user_state is not None:
            adoption.inbox_only = judge.inbox_only(adoption.mailbox, adoption.broadcasts)
        for broadcast in adoption.broadcasts:
            pos = broadcast.pos
            record = records.get((pos, slot))
            if record is None:
                record = records[pos, slot] = Adopted(pos, now_ms, [])
            record.numbers.append((key, seq))
            if pos in adoption.inbox_only:
                record.inbox_only.append(key)
            seq += 1
        heads[key] = seq - 1
    # Replay applies record after record, and the numbers of a mailbox grow with the positions.
    return [(slot, records[pos, slot]) for pos, slot in sorted(records)]


def adopt(mailbox: Mailbox, broadcast: Broadcast, seq: int, now_ms: int, recent_max: int, *, inbox_only: bool) -> None:
    """Add the broadcast to the mailbox under this number. `inbox_only`: it is settled at once; one that was lost is gone."""
    if broadcast.envelope is LOST:
        mailbox.reach(seq, ())
        return
    message = Message(seq, broadcast.envelope, broadcast.expires_ms, now_ms)
    mailbox.append(message, b"", recent_max)
    if inbox_only:
        mailbox.settle_unsent(seq)


def replay(mailbox: Mailbox, record: Adopted, seq: int, log: BroadcastMirror, recent_max: int, *, inbox_only: bool) -> None:
    """Apply one number of a journalled adoption, after a restart. A broadcast that the log has dropped leaves a gap at the number."""
    mailbox.log_pos = max(mailbox.log_pos, record.pos)
    if seq <= mailbox.head:
        return
    broadcast = log.get(record.pos)
    mailbox.reach(seq if broadcast is None else seq - 1, ())
    if broadcast is not None:
        adopt(mailbox, broadcast, seq, record.accepted_ms, recent_max, inbox_only=inbox_only)


def _position(broadcast: Broadcast) -> int:
    return broadcast.pos
