"""The mailboxes in memory, and what of them is not in storage yet.

A mailbox is dirty from the moment it differs from its page until a checkpoint that carries it is written. It is urgent when
its user went offline or stalled, so that its messages move to the offline stream without waiting for the next full
checkpoint. It may leave memory when it is idle, clean and empty.

One checkpoint is under way at a time: taken -> filled, some mailboxes at a time -> done, or failed, and then all in it is dirty again.
Between two fillings groups are committed and messages delivered: a page may be newer than the journal's part that the checkpoint covers,
which replay does not mind, and never older.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable

from msgspec import Struct

from engine.core.commit import broadcast_step
from engine.core.commit.group import apply_stored
from engine.core.commit.user_step import apply_note
from engine.core.commit.window_step import WindowCloser, apply_window
from engine.core.journal.journal_records import (
    Adopted,
    Checkpoint,
    Decided,
    Handled,
    MailboxPage,
    Noticed,
    Profiled,
    Record,
    Remembered,
    StoredMessage,
    Topics,
    restore,
    spill_of,
)
from engine.core.mailbox.attachment import Conn
from engine.core.mailbox.broadcast_log import BroadcastMirror
from engine.core.mailbox.id_lookup import oldest_of
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.memory import Memory
from engine.core.model.constants import LOW
from engine.core.model.message import Message
from engine.core.shard.limits import ShardLimits


class DeadLetter(Struct):
    """A message that connections refused, on its way to the dead-letter stream."""

    key: str
    message: Message
    reason: str
    by: list[Conn] = []


class StreamRead(Struct, frozen=True):
    """A range of an offline stream to read: the numbers `first`..`last`, both included."""

    key: str
    first: int
    last: int


class MailboxStore:
    """Every mailbox of a shard that is in memory.

    Args:
        limits: how much of a mailbox stays in memory (`hot_messages_max`, `hot_bytes_max`), for how long (`mailbox_idle_ms`), and what
            is remembered of it (`recent_ids`, `collapse_keys_max`, `policy_limits`).
        log: the broadcasts that mailboxes refer to.
    """

    def __init__(
        self,
        limits: ShardLimits,
        log: BroadcastMirror,
    ) -> None:
        self.mailboxes: dict[str, Mailbox] = {}
        self.window_closer = WindowCloser(self.mailboxes)
        self.log = log
        self.memory = Memory()
        self.tight = False  # memory is short: whatever is in storage too leaves it
        self._limits = limits
        self._dirty: dict[str, Mailbox] = {}
        self._urgent: dict[str, Mailbox] = {}
        self._reads: dict[str, StreamRead] = {}
        self._dead: list[DeadLetter] = []  # to be written
        self._letters: dict[tuple[str, int], DeadLetter] = {}  # those and the ones being written, by mailbox and number
        self._checkpoint: Checkpoint | None = None
        self._committed = 0  # number of the last group in the journal
        self._trimmed = -1  # below 0: what earlier incarnations left is to be trimmed too

    def mark(self, mailbox: Mailbox) -> None:
        """The mailbox differs from its page."""
        self._dirty[mailbox.key] = mailbox

    def mark_urgent(self, mailbox: Mailbox) -> None:
        """And its messages are to be moved to the offline stream at once."""
        self._urgent[mailbox.key] = self._dirty[mailbox.key] = mailbox

    def committed(self, number: int) -> None:
        """The journal has the group of this number."""
        self._committed = number

    def restore(self, key: str, page: MailboxPage | None, now_ms: int) -> None:
        """A page was read; a mailbox already in memory is newer."""
        if key not in self.mailboxes:
            mailbox = self.mailboxes[key] = restore(key, page, now_ms)
            mailbox.count_in(self.memory)
            self.window_closer.watch(mailbox)

    def windows_changed(self, mailbox: Mailbox) -> None:
        """Windows of the mailbox were opened, closed or extended."""
        mailbox.count_windows()
        self.window_closer.watch(mailbox)

    def replay(self, records: Iterable[Record], now_ms: int) -> None:
        """Journal records of a predecessor, oldest first; the pages of all their keys are loaded, and the broadcast log is."""
        for record in records:
            if isinstance(record, Adopted):
                for key, seq in record.numbers:
                    mailbox = self._dirty[key] = self.mailboxes[key]
                    broadcast_step.replay(mailbox, record, seq, self.log, self._limits.recent_ids)
                continue
            mailbox = self._dirty[record.key] = self.mailboxes[record.key]
            if isinstance(record, StoredMessage):
                apply_stored(
                    mailbox, record, self._limits.recent_ids, self._limits.collapse_keys_max, self._limits.policy_limits.counted_max
                )
            elif isinstance(record, Topics):
                mailbox.topics = dict(record.topics)
                mailbox.log_pos = max(mailbox.log_pos, record.log_pos)
            elif isinstance(record, Profiled | Noticed | Decided | Remembered):
                apply_note(mailbox, record, self._limits.policy_limits.decisions_max)
            elif not isinstance(record, Handled):
                apply_window(mailbox, record, self._limits.recent_ids)
                self.windows_changed(mailbox)
            else:
                mailbox.reach(record.head, record.acked)
                acked = [seq for seq in record.acked if seq <= mailbox.head]
                mailbox.settle_through(min(record.floor, mailbox.head), None, now_ms, self._limits.retry)
                mailbox.settle(acked, None, now_ms, self._limits.retry)

    # -- reads --------------------------------------------------------------------------------------------------------

    @property
    def wants_io(self) -> bool:
        """Is there a range to read, or a dead letter to write?"""
        return bool(self._reads or self._dead)

    def want_read(self, mailbox: Mailbox, first: int, count_max: int) -> None:
        """Cold messages from number `first` on are needed; one read per mailbox at a time."""
        if mailbox.loading or mailbox.cold is None:
            return
        mailbox.loading = True
        self._reads[mailbox.key] = StreamRead(mailbox.key, first, min(mailbox.cold[1], first + count_max - 1))

    def take_reads_wanted(self) -> list[StreamRead]:
        """Stream ranges to read; answer each with `read_done` or `read_failed`."""
        wanted = list(self._reads.values())
        self._reads.clear()
        return wanted

    def read_failed(self, read: StreamRead) -> None:
        """The range could not be read: it is wanted again."""
        self._reads[read.key] = read

    # -- dead letters -------------------------------------------------------------------------------------------------

    def refuse(self, mailbox: Mailbox, ids: Collection[str], reason: str, by: Conn) -> tuple[list[str], list[str]]:
        """A client cannot handle these: on their way to the dead-letter stream.

        Returns the ids of which nothing is left to refuse, and those that may be among the cold messages: to be read first.
        """
        over, unread = [], []
        oldest = oldest_of(mailbox, ids)
        for id in ids:
            seq = oldest.get(id, 0)
            if refused := mailbox.refuse((seq,)):
                letter = self._letters[mailbox.key, seq] = DeadLetter(mailbox.key, refused[0], reason, [by])
                self._dead.append(letter)
            elif seq in mailbox.dying:
                self._letters[mailbox.key, seq].by.append(by)
            elif mailbox.is_cold(seq) if seq else mailbox.cold:
                unread.append(id)
            else:
                over.append(id)
        self.mark(mailbox)
        return over, unread

    def take_dead_letters(self) -> list[DeadLetter]:
        """Messages to write to the dead-letter stream; answer with `dead_lettered` or `dead_letters_failed`."""
        letters, self._dead = self._dead, []
        return letters

    def dead_lettered(self, letters: Iterable[DeadLetter]) -> None:
        """They are written."""
        for letter in letters:
            del self._letters[letter.key, letter.message.seq]

    def dead_letters_failed(self, letters: Iterable[DeadLetter]) -> None:
        """They could not be written: they are wanted again."""
        self._dead.extend(letters)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    @property
    def wants_spill(self) -> bool:
        """Has a user gone offline, or stalled, whose messages are to be moved to the offline stream at once?"""
        return bool(self._urgent)

    def take_checkpoint(self, full: bool, messages_max: int) -> Checkpoint | None:
        """Which mailboxes to write: all dirty ones and the journal's end (`full`), or those that went offline; then to be filled.

        A partial one carries at most about `messages_max` messages. At most one checkpoint is under way.
        """
        if self._checkpoint is not None:
            return None
        if full:
            chosen = list(self._dirty.values())
        else:
            chosen, count = [], 0
            for mailbox in self._urgent.values():
                chosen.append(mailbox)
                count += len(mailbox.hot)
                if count >= messages_max:
                    break
        through = self._committed if full and self._committed > self._trimmed else None
        if not chosen and through is None:
            return None
        chosen.reverse()  # they are taken from the end
        self._checkpoint = Checkpoint([], through, {}, chosen)
        return self._checkpoint

    def fill_checkpoint(self, mailboxes_max: int) -> bool:
        """Put the next so many mailboxes, as they are now, into the checkpoint under way. Returns whether that was not all."""
        checkpoint = self._checkpoint
        assert checkpoint is not None, "no checkpoint is under way"
        waiting = checkpoint.waiting
        for mailbox in reversed(waiting[-mailboxes_max:]):
            self._urgent.pop(mailbox.key, None)
            self._dirty.pop(mailbox.key, None)
            mailbox.weigh()
            checkpoint.spills.append(spill_of(mailbox))
            checkpoint.upto[mailbox.key] = mailbox.head
        del waiting[-mailboxes_max:]
        return bool(waiting)

    def checkpoint_done(self) -> None:
        """It is written: what is offline leaves memory."""
        checkpoint, self._checkpoint = self._checkpoint, None
        assert checkpoint is not None, "no checkpoint is under way"
        if checkpoint.through_commit is not None:
            self._trimmed = checkpoint.through_commit
        for key, upto in checkpoint.upto.items():
            mailbox = self.mailboxes.get(key)
            if mailbox is None:
                continue
            mailbox.spilled = max(mailbox.spilled, upto)
            if self.tight or self._may_cool(mailbox):
                self.cool(mailbox)
            if self.tight and key not in self._dirty and not mailbox.connections:
                mailbox.active_ms = 0  # the next eviction takes it

    def _may_cool(self, mailbox: Mailbox) -> bool:
        """Is it not worth its memory? Nobody is there to be sent it, or the client is too far behind."""
        if len(mailbox.hot) > self._limits.hot_messages_max or mailbox.hot_bytes > self._limits.hot_bytes_max:
            return True
        return all(connection.stalled for connection in mailbox.connections.values())

    def cool(self, mailbox: Mailbox) -> None:
        """What the offline stream has leaves memory."""
        cooled = mailbox.cool()
        self.memory.low_spilled += sum(message.envelope.priority == LOW for message in cooled)
        oldest = min((message.expires_ms for message in cooled if message.envelope.retain), default=0)
        if oldest:
            mailbox.oldest_expires_ms = min(oldest, mailbox.oldest_expires_ms or oldest)

    def spill_idle(self, held: Iterable[Mailbox]) -> None:
        """Memory is short from now on: what nobody is sent soon is written at once, mailboxes with held low messages first."""
        for mailbox in held:
            self.mark_urgent(mailbox)
        for mailbox in list(self._dirty.values()):
            if mailbox.is_behind():
                self.mark_urgent(mailbox)

    def checkpoint_failed(self) -> None:
        """It could not be written, or only in part: everything in it is dirty again."""
        checkpoint, self._checkpoint = self._checkpoint, None
        assert checkpoint is not None, "no checkpoint is under way"
        for key in checkpoint.upto:
            if key in self.mailboxes:
                self._dirty[key] = self.mailboxes[key]

    def evict(self, busy: Container[str], now_ms: int) -> int:
        """Idle mailboxes leave memory, except those of `busy` keys. Returns how many did."""
        idle = [
            key
            for key, mailbox in self.mailboxes.items()
            if not mailbox.connections
            and now_ms - mailbox.active_ms >= self._limits.mailbox_idle_ms
            and key not in self._dirty
            and key not in busy
            and not mailbox.hot
            and not mailbox.dying
            and not mailbox.loading
            and not (mailbox.windows and mailbox.windows.open)  # nobody would close them
            and (self._checkpoint is None or key not in self._checkpoint.upto)
        ]
        for key in idle:
            self.mailboxes.pop(key).count_out()
        return len(idle)

    def swept(self, key: str, page: MailboxPage, oldest_expires_ms: int, now_ms: int) -> None:
        """The sweeper removed expired entries of an offline user's stream; the page gets the new oldest expiry."""
        self.restore(key, page, now_ms)
        mailbox = self.mailboxes[key]
        mailbox.oldest_expires_ms = oldest_expires_ms
        self._dirty[key] = mailbox
