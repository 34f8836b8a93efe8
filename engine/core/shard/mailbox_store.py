"""The mailboxes in memory, which of them storage does not have yet, and the checkpoints that write them.

A mailbox is dirty while it differs from its page. It is also urgent when its user went offline, a message used up its tries, or memory is
short: its messages are then moved to the offline stream before the next full checkpoint.

A mailbox may be evicted when it has no connection and nothing that only memory has: it is clean and empty, and nothing waits for it. Then
its page is all of it. It joins a queue whenever that may have become true: read from its page, written by a checkpoint, its last connection
ended. The queue is in order of last use, about: a mailbox used since it joined goes to the end when its turn comes. So eviction takes the
least recently used first and costs the same however many mailboxes are in memory. It leaves those idle for less than `mailbox_idle_ms`,
unless memory is wanted: somebody who asks about a million users must not fill it for the others.

At most one checkpoint is under way: taken -> filled, some mailboxes at a time -> done, some at a time; or, before that, failed, and all its
mailboxes are dirty again.
Groups are committed and messages delivered between two fillings, so a page may be newer than the journal entries that the checkpoint
covers, which replay tolerates, and never older.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from msgspec import Struct

from engine.config import Config
from engine.core.commit import broadcast_step
from engine.core.commit.group import apply_stored
from engine.core.commit.judge import NO_JUDGE, MakeJudge
from engine.core.commit.user_step import acknowledged_by, apply_mark, apply_note
from engine.core.inbox.inbox import InboxLimits
from engine.core.journal.journal_records import (
    PAGE_RECENT_IDS,
    Adopted,
    AnyPage,
    Checkpoint,
    Decided,
    Erased,
    Handled,
    Inboxed,
    Marked,
    Noticed,
    Profiled,
    Record,
    Remembered,
    Spill,
    StoredMessage,
    Topics,
    removal_of,
    restore,
    spill_of,
)
from engine.core.mailbox.attachment import Conn
from engine.core.mailbox.broadcast_log import BroadcastMirror
from engine.core.mailbox.id_lookup import oldest_of
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.memory import Memory
from engine.core.mailbox.retry import RetryPolicy
from engine.core.mailbox.tally import Tallies
from engine.core.model.constants import LOW
from engine.core.model.message import Message
from engine.core.model.routing import slot_of

_EVICTIONS_MAX: Final = 2000
"""Mailboxes that one call of `evict` looks at: a few milliseconds."""

_FORGETS_MAX: Final = 250
"""Mailboxes that one call of `forget_ids` looks at: a few milliseconds."""

_LETTERS_MAX: Final = 100
"""Dead letters of one write, 7 MB with the largest bodies: those of a long outage, all at once, would exceed `redis_timeout_ms`."""

_MAILBOXES_OF_A_MESSAGE: Final = 0.15
"""To add a message to a checkpoint takes so much of what a mailbox without one takes: 0.9 of 5.6 us."""


class DeadLetter(Struct):
    """A nacked message on its way to the dead-letter stream; `by` are the connections to be sent the confirmation."""

    key: str
    message: Message
    reason: str
    by: list[Conn] = []


class Overdue(Struct, frozen=True):
    """Entries of the stream of a user with an inbox that are over if they are pending (`expired`), or if they are not (`aged`), and when
    the next one is too old, 0: never."""

    expired: list[int] = []
    aged: list[int] = []
    due_ms: int = 0


NONE_OVERDUE: Final = Overdue()


class Swept(Struct, frozen=True):
    """A page that the sweep of storage has looked at. `expires`: entries of its stream had expired, and the first of the others expires at
    `oldest_expires_ms`, 0 without others. Otherwise nothing has happened for `user_forget_ms`."""

    key: str
    page: AnyPage
    expires: bool
    oldest_expires_ms: int
    overdue: Overdue = NONE_OVERDUE


class JudgeDue(Struct, frozen=True):
    """The judge has something to do for a mailbox that is not in memory. It is loaded for that."""

    key: str


class StreamRead(Struct, frozen=True):
    """A range of an offline stream to read: the numbers `first`..`last`, both included."""

    key: str
    first: int
    last: int


class MailboxStore:
    """Every mailbox of a shard that is in memory.

    Args:
        config: how much of a mailbox stays in memory (`hot_messages_max`, `hot_bytes_max`), for how long (`mailbox_idle_ms`), and what
            is kept of it (`recent_ids`, `collapse_keys_max`).
        log: the broadcasts that mailboxes refer to.
        make_judge: see `engine.core.commit.judge`; None: special messages are delivered at once.
    """

    def __init__(self, config: Config, log: BroadcastMirror, make_judge: MakeJudge | None = None) -> None:
        self.mailboxes: dict[str, Mailbox] = {}
        self._keys_by_slot: defaultdict[int, dict[str, None]] = defaultdict(dict)  # of these mailboxes
        self.log = log
        self.memory = Memory()
        self.judge: Final = NO_JUDGE if make_judge is None else make_judge(self.mailboxes, self.memory)
        self.tallies = Tallies()
        self.tight = False  # memory is short: messages that storage has leave it
        self._idle: deque[Mailbox] = deque()  # that may be evicted, about the least recently used first
        self._aging: OrderedDict[str, tuple[int, str]] = OrderedDict()  # who has more ids than a page: since when, the newest then
        self._config = config
        self.retry: Final = RetryPolicy.of(config)
        self._inbox_limits = InboxLimits.of(config)
        self._dirty: dict[str, Mailbox] = {}
        self.urgent: Final[dict[str, Mailbox]] = {}  # whose messages are to be moved to the offline stream at once
        self.reads_wanted: Final[dict[str, StreamRead]] = {}
        self.dead_letters: Final[list[DeadLetter]] = []  # to be written
        self._letters: dict[tuple[str, int], DeadLetter] = {}  # those and the ones being written, by mailbox and number
        self._writing_letters: list[DeadLetter] = []
        self._checkpoint: Checkpoint | None = None
        self._committed = 0  # number of the last group in the journal
        self._trimmed = -1  # number of the last group that a checkpoint covered; below 0: entries of earlier owners are to be trimmed too
        self._removals: dict[str, bool] = {}  # see `Checkpoint.removals`
        self._floors: dict[int, int] = {}  # by slot: no number up to this one is given out again, as a deleted page may have had it
        self._replaying = False
        self.counts_due: dict[str, Mailbox] = {}  # connected users whose inbox may have changed, for `engine.core.shard.inbox_counts`
        self.erased: list[str] = []  # keys of erased users of whom storage has nothing more, for `take_erased`

    def mark(self, mailbox: Mailbox) -> None:
        """Mark the mailbox dirty: it differs from its page."""
        self._dirty[mailbox.key] = mailbox

    def committed(self, number: int, changed: Mapping[str, Mailbox]) -> None:
        """The group of this number is durable; it changed these mailboxes, by key: each as by `mark` and `counts_changed`."""
        self._committed = number
        self._dirty.update(changed)
        for key, mailbox in changed.items():
            if mailbox.inbox is not None and mailbox.connections:
                self.counts_due[key] = mailbox

    def mark_urgent(self, mailbox: Mailbox) -> None:
        """Mark the mailbox dirty and urgent: its messages are to be moved to the offline stream at once."""
        self.urgent[mailbox.key] = self._dirty[mailbox.key] = mailbox

    def restore(self, key: str, page: AnyPage | None, now_ms: int) -> None:
        """Restore a mailbox from its page, None for a new user; one that is in memory already is newer and stays."""
        if key not in self.mailboxes:
            mailbox = self.mailboxes[key] = restore(key, page, now_ms, self._inbox_limits)
            self._keys_by_slot[mailbox.slot][key] = None
            if page is None and not self._replaying and (floor := self._floors.get(mailbox.slot, 0)):
                mailbox.begin(floor)
            mailbox.count_in(self.memory)
            mailbox.tally = self.tallies.of(key)
            self.judge.deadlines.watch(mailbox)
            self.unused(mailbox)

    def judged(self, mailbox: Mailbox) -> None:
        """The judge's state of the mailbox may have changed."""
        mailbox.count_held()
        self.judge.deadlines.watch(mailbox)

    def replay(self, slot: int, pages: Mapping[str, AnyPage | None], records: Sequence[Record], now_ms: int) -> None:
        """Apply what the journal of a slot has of earlier owners, oldest first, on top of the pages of all its users.

        The broadcast log must be loaded. Users who have neither a page nor a message may have had both once.
        """
        self._replaying = True
        for key, page in pages.items():
            self.restore(key, page, now_ms)
        self._apply(_since_erasures(records), now_ms)
        self._replaying = False
        self._trimmed = -1
        floor = self._floors.get(slot, 0)
        for key in pages:
            if floor and not self.mailboxes[key].head:
                self.mailboxes[key].begin(floor)

    def _begin(self, key: str, seq: int) -> None:
        """The journal has this as the first number of a mailbox without a page: it began there, if a page of its slot was deleted."""
        mailbox = self.mailboxes[key]
        if not mailbox.head and 1 < seq <= self._floors.get(mailbox.slot, 0) + 1:
            mailbox.begin(seq - 1)

    def _apply(self, records: Iterable[Record], now_ms: int) -> None:
        for record in records:
            if isinstance(record, Adopted):
                inbox_only = frozenset(record.inbox_only)
                for key, seq in record.numbers:
                    self._begin(key, seq)
                    mailbox = self._dirty[key] = self.mailboxes[key]
                    broadcast_step.replay(mailbox, record, seq, self.log, self._config.recent_ids, inbox_only=key in inbox_only)
                continue
            mailbox = self._dirty[record.key] = self.mailboxes[record.key]
            if isinstance(record, Erased):
                self._removals[record.key] = True
            if isinstance(record, Erased | Remembered | Inboxed) and 0 <= record.head < mailbox.head:
                continue  # the page has what came since
            if isinstance(record, StoredMessage):
                self._begin(record.key, record.seq)
                apply_stored(mailbox, record, self._config, self.judge)
            elif isinstance(record, Topics):
                mailbox.topics = dict(record.topics)
                mailbox.log_pos = max(mailbox.log_pos, record.log_pos)
            elif isinstance(record, Profiled | Noticed | Erased | Decided | Remembered):
                apply_note(mailbox, record, self._config.decisions_max)
            elif isinstance(record, Marked | Inboxed):
                apply_mark(mailbox, record)
                mailbox.settle(acknowledged_by(mailbox, record), None, now_ms, self.retry)
            elif not isinstance(record, Handled):
                self.judge.apply(mailbox, record)
                self.judged(mailbox)
            else:
                mailbox.reach(record.head, record.acked)
                acked = [seq for seq in record.acked if seq <= mailbox.head]
                mailbox.settle_through(min(record.floor, mailbox.head), None, now_ms, self.retry)
                mailbox.settle(acked, None, now_ms, self.retry)
                for seq in record.refused:
                    mailbox.leave_inbox(seq)

    # -- reads --------------------------------------------------------------------------------------------------------

    def want_read(self, mailbox: Mailbox, first: int, count_max: int) -> None:
        """Request a read of up to `count_max` cold messages from number `first` on. Does nothing while the mailbox has a read under way."""
        if mailbox.loading or mailbox.cold is None:
            return
        mailbox.loading = True
        self.reads_wanted[mailbox.key] = StreamRead(mailbox.key, first, min(mailbox.cold[1], first + count_max - 1))

    def take_reads_wanted(self, count_max: int) -> list[StreamRead]:
        """Removes and returns the next stream ranges to read; answer each with `ShardCore.read_done` or `read_failed`."""
        return [self.reads_wanted.pop(key) for key in list(islice(self.reads_wanted, count_max))]

    def read_failed(self, read: StreamRead) -> None:
        """The range could not be read: it is wanted again."""
        self.reads_wanted[read.key] = read

    # -- dead letters -------------------------------------------------------------------------------------------------

    def refuse(self, mailbox: Mailbox, ids: Collection[str], reason: str, by: Conn) -> tuple[list[str], list[str]]:
        """Queue the messages of these ids for the dead-letter stream, as far as they are in memory.

        Returns:
            The ids that have no pending message, and those that may be of cold messages, which have to be read first.
        """
        over, unread = [], []
        oldest = oldest_of(mailbox, ids)
        for id in ids:
            seq = oldest.get(id, 0)
            if refused := mailbox.refuse((seq,)):
                letter = self._letters[mailbox.key, seq] = DeadLetter(mailbox.key, refused[0], reason, [by])
                self.dead_letters.append(letter)
            elif seq in mailbox.dying:
                if by not in (asking := self._letters[mailbox.key, seq].by):
                    asking.append(by)
            elif mailbox.is_cold(seq) if seq else mailbox.cold:
                unread.append(id)
            else:
                over.append(id)
        self.mark(mailbox)
        return over, unread

    def take_dead_letters(self) -> list[DeadLetter]:
        """Removes and returns the next messages for the dead-letter stream; answer with `dead_lettered` or `dead_letters_failed`."""
        letters = self._writing_letters = self.dead_letters[:_LETTERS_MAX]
        del self.dead_letters[:_LETTERS_MAX]
        return letters

    def is_writing_letters_of(self, keys: Container[str]) -> bool:
        """Whether dead letters of one of these users are being written."""
        return any(letter.key in keys for letter in self._writing_letters)

    def dead_lettered(self, letters: Iterable[DeadLetter]) -> list[DeadLetter]:
        """They are written. Returns those whose user was not erased meanwhile."""
        self._writing_letters = []
        return [letter for letter in letters if self._letters.pop((letter.key, letter.message.seq), None) is not None]

    def dead_letters_failed(self, letters: Iterable[DeadLetter]) -> None:
        """They could not be written: they are wanted again, unless their user was erased meanwhile."""
        self._writing_letters = []
        self.dead_letters.extend(letter for letter in letters if (letter.key, letter.message.seq) in self._letters)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is under way."""
        return self._checkpoint is not None

    def take_checkpoint(self, full: bool, messages_max: int) -> Checkpoint | None:
        """Begin a checkpoint, to be filled: of all dirty mailboxes and the journal (`full`), or of the urgent mailboxes only.

        A partial one has at most about `messages_max` messages. Returns None while one is under way, or if there is nothing to write.
        """
        if self._checkpoint is not None:
            return None
        removals: dict[str, bool] = {}
        if full:
            removals, self._removals = self._removals, removals
            chosen = list((self._dirty | {key: self.mailboxes[key] for key in removals}).values())
        else:
            chosen, count = [], 0
            for mailbox in self.urgent.values():
                chosen.append(mailbox)
                count += len(mailbox.hot) + (0 if mailbox.inbox is None else len(mailbox.inbox.unwritten))
                if count >= messages_max:
                    break
        through = self._committed if full and self._committed > self._trimmed else None
        if not chosen and through is None:
            return None
        if through is not None:
            self._trimmed = through
        chosen.reverse()  # they are taken from the end
        self._checkpoint = Checkpoint([], through, {}, chosen, removals)
        return self._checkpoint

    def take_whole(self, slots: Collection[int], *, quiet: bool) -> Checkpoint | None:
        """Begin a checkpoint, to be filled, of all that storage lacks of the mailboxes of these slots, so that they can be dropped.

        None when there is nothing to write. No other may be under way.

        Args:
            quiet: nothing more is journalled of these slots, so it covers their journals.
        """
        assert self._checkpoint is None, "one checkpoint at a time"
        keys = self.keys_in(slots)
        removals = {key: self._removals.pop(key) for key in keys if key in self._removals}
        chosen = [
            mailbox
            for mailbox in map(self.mailboxes.__getitem__, keys)
            if mailbox.key in self._dirty
            or mailbox.key in removals
            or mailbox.hot
            or mailbox.dying
            or len(mailbox.recent) > PAGE_RECENT_IDS
            or (mailbox.connections and not quiet and not mailbox.is_new)  # the page keeps when the user was last seen
        ]
        if not chosen and not quiet:
            return None
        through = self._committed if quiet else None
        self._checkpoint = Checkpoint([], through, {}, chosen, removals, whole=True, slots=frozenset(slots))
        return self._checkpoint

    def fill_checkpoint(self, mailboxes_max: int, now_ms: int) -> bool:
        """Add the next mailboxes, in their present state, to the checkpoint: `mailboxes_max` of them, or what takes as long.

        Returns whether more are left.
        """
        checkpoint = self._checkpoint
        assert checkpoint is not None, "no checkpoint is under way"
        waiting, left = checkpoint.waiting, float(mailboxes_max)
        while waiting and left > 0:
            mailbox = self.mailboxes.get(waiting.pop().key)
            if mailbox is None:  # it was evicted, so its page is all of it
                continue
            self.urgent.pop(mailbox.key, None)
            self._dirty.pop(mailbox.key, None)
            mailbox.weigh()
            self._age(mailbox, now_ms)
            spill = self._spill(mailbox, checkpoint, now_ms + self._config.user_forget_s * 1000)
            checkpoint.spills.append(spill)
            checkpoint.upto[mailbox.key] = mailbox.head
            left -= 1 + len(spill.entries) * _MAILBOXES_OF_A_MESSAGE
        return bool(waiting)

    def _spill(self, mailbox: Mailbox, checkpoint: Checkpoint, forget_at_ms: int) -> Spill:
        key, removals = mailbox.key, checkpoint.removals
        if key not in removals or not (removals[key] or (mailbox.idle and not mailbox.has_preferences)):
            return spill_of(mailbox, forget_at_ms, whole=checkpoint.whole)
        self._floors[mailbox.slot] = max(mailbox.head, self._floors.get(mailbox.slot, 0))
        return removal_of(mailbox, forget_at_ms, whole=checkpoint.whole, erased=removals[key])

    def checkpoint_done(self, mailboxes_max: int | None = None) -> bool:
        """The checkpoint is written: drop bodies from memory that the offline streams have, where memory or the limits require it.

        Args:
            mailboxes_max: so many mailboxes; None for all of them.

        Returns:
            Whether more are left. Until they are done too, the checkpoint is under way.
        """
        checkpoint = self._checkpoint
        assert checkpoint is not None, "no checkpoint is under way"
        upto = checkpoint.upto
        for _ in range(len(upto) if mailboxes_max is None else min(mailboxes_max, len(upto))):
            key, head = upto.popitem()
            if checkpoint.removals.pop(key, False):
                self.erased.append(key)
            self._written(key, head)
        if upto:
            return True
        self._checkpoint = None
        return False

    def _written(self, key: str, upto: int) -> None:
        mailbox = self.mailboxes.get(key)
        if mailbox is None:
            return
        mailbox.spilled = max(mailbox.spilled, upto)
        if mailbox.inbox is not None:
            mailbox.inbox.checkpointed(upto)
            mailbox.weigh()
        if self.tight or self._may_cool(mailbox):
            self.cool(mailbox)
        if key not in self._dirty and not mailbox.connections:
            self.unused(mailbox)

    def _may_cool(self, mailbox: Mailbox) -> bool:
        """Whether its bodies should leave memory: no connection takes them now, or they exceed the limits."""
        if len(mailbox.hot) > self._config.hot_messages_max or mailbox.hot_bytes > self._config.hot_bytes_max:
            return True
        return all(connection.silent for connection in mailbox.connections.values())

    def written(self, mailbox: Mailbox) -> None:
        """A client that acknowledges nothing on its connection was sent more. While memory is short, its bodies leave again."""
        if self.tight and mailbox.takes_none():
            self.cool(mailbox)

    def cool(self, mailbox: Mailbox) -> None:
        """Drop bodies from memory that the offline stream has."""
        cooled = mailbox.cool()
        self.memory.low_spilled += sum(message.envelope.priority == LOW for message in cooled)
        oldest = min((message.expires_ms for message in cooled if message.envelope.retain), default=0)
        if oldest:
            mailbox.oldest_expires_ms = min(oldest, mailbox.oldest_expires_ms or oldest)

    def spill_idle(self, held: Iterable[Mailbox]) -> None:
        """Memory is short: mark mailboxes urgent that no connection takes soon, those with held low-priority messages first.

        What streams have of messages that were sent to clients who acknowledge nothing leaves memory at once.
        """
        for mailbox in self.mailboxes.values():
            if mailbox.hot and mailbox.connections and mailbox.takes_none():
                self.cool(mailbox)
        for mailbox in held:
            self.mark_urgent(mailbox)
        for mailbox in list(self._dirty.values()):
            if mailbox.is_behind():
                self.mark_urgent(mailbox)

    def _age(self, mailbox: Mailbox, now_ms: int) -> None:
        if len(mailbox.recent) > PAGE_RECENT_IDS and mailbox.key not in self._aging:
            self._aging[mailbox.key] = now_ms, next(reversed(mailbox.recent))

    def forget_ids(self, now_ms: int) -> None:
        """Memory is short: forget ids that no edge repeats any more, of users who stay connected too. Those that a page has are kept.

        An id takes 180 bytes. A publisher's own ids are in storage as well.
        """
        for _ in range(min(len(self._aging), _FORGETS_MAX)):
            key = next(iter(self._aging))
            seen_ms, through = self._aging[key]
            if now_ms - seen_ms < self._config.publish_timeout_ms:
                return
            del self._aging[key]
            mailbox = self.mailboxes[key]
            mailbox.forget_ids(through, PAGE_RECENT_IDS)
            self._age(mailbox, now_ms)

    def checkpoint_failed(self) -> None:
        """The checkpoint could not be written, or only in part: all its mailboxes are dirty again."""
        checkpoint, self._checkpoint = self._checkpoint, None
        assert checkpoint is not None, "no checkpoint is under way"
        self._trimmed = -1
        for key in checkpoint.upto:
            if key in self.mailboxes:
                self._dirty[key] = self.mailboxes[key]
        for key, erased in checkpoint.removals.items():
            self._removals[key] = erased or self._removals.get(key, False)

    # -- slots --------------------------------------------------------------------------------------------------------

    def keys_in(self, slots: Iterable[int]) -> list[str]:
        """Keys of the mailboxes of these slots that are in memory."""
        return [key for slot in sorted(slots) for key in self._keys_by_slot.get(slot, ())]

    def release_dead_letters(self, slots: Container[int]) -> set[str]:
        """Drop the dead letters of these slots that are not being written: storage has their messages as pending, and edges repeat their
        nacks. Returns the keys of the mailboxes whose letters are being written."""
        kept = []
        for letter in self.dead_letters:
            if slot_of(letter.key) in slots:
                del self._letters[letter.key, letter.message.seq]
            else:
                kept.append(letter)
        self.dead_letters[:] = kept
        return {key for key, _ in self._letters if slot_of(key) in slots}

    def drop(self, keys: Collection[str]) -> None:
        """Forget these mailboxes, of which storage has everything: they are another shard's, or read again."""
        gone = set(keys)
        if any(mailbox.key in gone for mailbox in self._idle):
            self._idle = deque(mailbox for mailbox in self._idle if mailbox.key not in gone)
        for key in keys:
            self._dirty.pop(key, None)
            self.urgent.pop(key, None)
            self.reads_wanted.pop(key, None)
            self._removals.pop(key, None)
            self.judge.deadlines.forget(self.mailboxes[key])
            self.counts_due.pop(key, None)
            self.mailboxes[key].release_all()
            self._leave(key)

    def _leave(self, key: str) -> None:
        mailbox = self.mailboxes.pop(key)
        self._aging.pop(key, None)
        mailbox.count_out()
        del self._keys_by_slot[mailbox.slot][key]

    def adopt_floors(self, floors: Mapping[int, int]) -> None:
        """By slot, the highest number of a page that was deleted: of slots that another shard had."""
        self._floors.update(floors)

    # -- eviction -----------------------------------------------------------------------------------------------------

    def unused(self, mailbox: Mailbox) -> None:
        """The mailbox may have nothing left that only memory has: queue it, once."""
        if mailbox.queued_ms < 0:
            mailbox.queued_ms = mailbox.active_ms
            self._idle.append(mailbox)

    def evict(self, busy: Callable[[], Container[str]], now_ms: int, wanted_bytes: int = 0) -> int:
        """Evict mailboxes that are idle, and the least recently used until `wanted_bytes` are free; returns how many.

        Args:
            busy: returns the keys of mailboxes that something waits for; called at most once.
        """
        idle, config = self._idle, self._config
        freed_bytes = evicted = 0
        needed: Container[str] | None = None
        looks = min(2 * len(idle), _EVICTIONS_MAX)  # twice: one that was used since it joined is looked at again
        while idle and looks:
            looks -= 1
            mailbox = idle[0]
            if mailbox.active_ms > mailbox.queued_ms:
                self._requeue()
                continue
            if now_ms - mailbox.active_ms < config.mailbox_idle_ms and freed_bytes >= wanted_bytes:
                break
            if self._comes_back(mailbox):
                idle.popleft()
                mailbox.queued_ms = -1
                continue
            if needed is None:
                needed = busy()
            if mailbox.key in needed or mailbox.hot or mailbox.loading or self._has_more_than_its_page(mailbox, now_ms):
                self._requeue()
                continue
            idle.popleft()
            freed_bytes += mailbox.weight
            self._leave(mailbox.key)
            evicted += 1
        return evicted

    def _requeue(self) -> None:
        """Move the first mailbox of the queue to its end."""
        mailbox = self._idle.popleft()
        mailbox.queued_ms = mailbox.active_ms
        self._idle.append(mailbox)

    def _comes_back(self, mailbox: Mailbox) -> bool:
        """Whether the mailbox joins the queue again by itself: when its last connection ends, or a checkpoint has written it."""
        if mailbox.connections or mailbox.key in self._dirty or mailbox.key in self._removals:
            return True
        if self._checkpoint is not None and (mailbox.key in self._checkpoint.upto or mailbox.key in self._checkpoint.removals):
            return True
        return bool(mailbox.dying)  # a group writes that they are among the dead letters

    def _has_more_than_its_page(self, mailbox: Mailbox, now_ms: int) -> bool:
        """Whether it has what its page leaves out, and somebody may still ask for it.

        That is ids beyond the newest, by which a repeat of an edge is recognised, and when a user without any page was last active.
        """
        idle_ms, config = now_ms - mailbox.active_ms, self._config
        if len(mailbox.recent) > PAGE_RECENT_IDS and idle_ms < config.publish_timeout_ms:
            return True
        return bool(mailbox.seen_ms) and mailbox.head == mailbox.start and mailbox.user_state is None and idle_ms < config.mailbox_idle_ms

    def erase(self, mailbox: Mailbox) -> None:
        """The user is erased in the journal: forget them here, and delete what storage has with the next full checkpoint."""
        self.dead_letters[:] = [letter for letter in self.dead_letters if letter.key != mailbox.key]
        self._letters = {place: letter for place, letter in self._letters.items() if letter.key != mailbox.key}
        mailbox.erase()
        self.judge.deadlines.forget(mailbox)
        self._removals[mailbox.key] = True
        self.mark(mailbox)

    def take_erased(self) -> list[str]:
        """Removes and returns the keys of erased users of whom neither pages, streams nor journal have anything."""
        erased, self.erased = self.erased, []
        return erased

    def is_to_be_erased(self, key: str) -> bool:
        """Whether the user was erased and `take_erased` has not returned the key since."""
        written = self._checkpoint is not None and self._checkpoint.removals.get(key, False)
        return written or self._removals.get(key, False) or key in self.erased

    def swept(self, found: Swept) -> None:
        """Apply what the sweep found to the mailbox, which is in memory."""
        if found.expires:
            self._expired(found)
        else:
            self._forget(found.key)

    def _forget(self, key: str) -> None:
        """Nobody has used this mailbox for `user_forget_ms`: delete its page, unless something has happened since."""
        mailbox = self.mailboxes[key]
        self._removals.setdefault(key, False)
        if not mailbox.connections:
            mailbox.active_ms = 0  # the next eviction takes it
            if mailbox.cold and not mailbox.oldest_expires_ms:
                mailbox.loaded(*mailbox.cold, ())  # all of them have expired
        self.mark(mailbox)

    def _expired(self, found: Swept) -> None:
        """The sweep removed expired entries of an offline user's stream; the page gets the new oldest expiry.

        Of a user with an inbox it removed none: `overdue` has them, and the next checkpoint deletes those that memory has as over too.
        Messages that came since the sweep has read the page are not in what it found: then the page stays due for the next sweep.
        """
        mailbox, overdue = self.mailboxes[found.key], found.overdue
        is_current = mailbox.head == found.page.head
        if is_current:
            mailbox.oldest_expires_ms = found.oldest_expires_ms
        if mailbox.inbox is not None:
            mailbox.outdated(overdue.expired, overdue.aged, overdue.due_ms if is_current else mailbox.inbox.due_ms)
            self.counts_changed(mailbox)
        self._dirty[found.key] = mailbox

    def settled(self, mailbox: Mailbox) -> None:
        """Messages of a mailbox with an inbox were acknowledged: a checkpoint is to write them, at once when many wait for one."""
        if self.memory.unwritten_bytes > self._config.inbox_unwritten_bytes_max:
            self.mark_urgent(mailbox)
        else:
            self.mark(mailbox)

    def counts_changed(self, mailbox: Mailbox) -> None:
        """The counts of the user's inbox may have changed: they are sent with the next tick."""
        if mailbox.inbox is not None and mailbox.connections:
            self.counts_due[mailbox.key] = mailbox


def _since_erasures(records: Sequence[Record]) -> Sequence[Record]:
    """Without what an erasure ended: a page of after it has nothing of that. Records with numbers stay, which only grow."""
    erasures = {record.key: place for place, record in enumerate(records) if isinstance(record, Erased)}
    if not erasures:
        return records
    return [
        record
        for place, record in enumerate(records)
        if isinstance(record, StoredMessage | Handled | Adopted) or place >= erasures.get(record.key, 0)
    ]
