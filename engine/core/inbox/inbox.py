"""The inbox of one user: which of their messages are kept, also when they are acknowledged, and what the user did with each.

A message enters the inbox with its sequence number, when it is journalled, and leaves it when it is gone (expired, superseded, trimmed),
refused by a client, older than its time, or when `messages_max` newer ones came. An acknowledgement changes nothing here: the
messages of the inbox are the pending ones and the archive of those that were acknowledged.

    unread -> read          and back
    unseen -> seen          a read message is seen
    listed -> archived      and back; an archived message counts neither as unread nor as unseen
    held   -> pinned        and back; a pinned message is kept regardless of its age and of newer ones, at most `pinned_max` of them

Owner: the shard that owns the user. Bodies are where the mailbox has them: in memory, or in the user's offline stream, which keeps
the entries of the inbox after they are acknowledged. Every mark is journalled before it is answered, and setting one again changes
nothing; what enters and leaves by number follows from the journalled messages. So page and journal together give the same inbox after
a crash and after a move of the slot, but for a message that expired unacknowledged: it leaves when that is noticed, and a crash brings it
back until it is noticed again.

    a crash before the checkpoint      the journal has messages, acknowledgements and marks: replay moves them through the same states
    a crash in the middle of it        a mailbox's page, new entries and deletions are one script: all of them, or none
    a late copy of an old checkpoint   is rejected by the slot's epoch or by its mark

Each state is a set of numbers, a bit mask whose bit 0 is `base`: 32 bytes for 256 messages, and a count is one instruction a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from engine.config import Config
from engine.core.model.category import PolicyTerms
from engine.core.model.message import Message

READ: Final = 1
SEEN: Final = 2
ARCHIVED: Final = 4
PINNED: Final = 8
"""What the user did with a message: flags of `Inbox.flags`, and the mark of `Inbox.mark`."""

ALL: Final = 0
UNREAD: Final = 1
IN_ARCHIVE: Final = 2
"""What `Inbox.select` lists: what is not archived, or what is; with `UNREAD` beside it, what of that is unread."""

_SHIFT_MIN: Final = 256
"""Numbers by which the base moves at least: moving it copies the masks."""

_UNWRITTEN_BYTES: Final = 400
"""Of memory of an acknowledged message without its body, about."""

INBOX_BYTES: Final = 700
"""Of memory of an inbox of up to 256 messages, about."""


class InboxLimits(Struct, frozen=True):
    """What an inbox keeps.

    Args:
        messages_max: messages beside the pinned ones.
        keep_ms: how long, from when a message was accepted; its category may say otherwise.
        pinned_max: pinned messages.
        numbers_max: sequence numbers from the oldest message to the newest, pinned ones aside: as many as an offline stream has.
    """

    messages_max: int
    keep_ms: int
    pinned_max: int
    numbers_max: int

    @staticmethod
    def of(config: Config) -> InboxLimits | None:
        """Those of this configuration; None: there are no inboxes."""
        if not config.inbox_max:
            return None
        return InboxLimits(config.inbox_max, config.inbox_ttl_s * 1000, config.inbox_pinned_max, config.offline_max)

    def keep_of(self, terms: PolicyTerms | None) -> int:
        """How long a message with these terms is kept, ms; 0: not at all."""
        return self.keep_ms if terms is None or terms.limits.inbox_ms < 0 else terms.limits.inbox_ms


class StoredInbox(Struct, array_like=True, gc=False):
    """An inbox as a page has it. Masks as bytes, little endian."""

    base: int
    held: bytes
    read: bytes
    seen: bytes
    archived: bytes
    stored: bytes
    pins: dict[int, int]
    due_ms: int
    revision: int
    told: tuple[int, int] | None = None  # the counts that have this revision


class Inbox:
    """The state described in the module docstring.

    Attributes:
        pins: pinned messages, by number, with their other flags.
        due_ms: the first of the others is too old then, or earlier; 0 while there is none.
        revision, told: of the counts, and what they were then, see `revise`.
        condemned: numbers whose entries are to be deleted from the offline stream by the checkpoint that is being written.
        sent_revision: of the counts that connections were sent.
        counted_bytes: of `unwritten_bytes`, those that the shard's totals have.
        unwritten: acknowledged messages that no checkpoint has written yet, by number: a few seconds' worth.
    """

    __slots__ = (
        "_archived",
        "_base",
        "_deleted",
        "_held",
        "_read",
        "_seen",
        "_size",
        "_stored",
        "condemned",
        "counted_bytes",
        "due_ms",
        "pins",
        "revision",
        "sent_revision",
        "told",
        "unwritten",
        "unwritten_bytes",
    )

    def __init__(self, base: int) -> None:
        self._base = base
        self._held = self._read = self._seen = self._archived = 0
        self._stored = 0  # numbers whose entry is, or may be, in the offline stream and that are not pinned
        self._size = 0  # of `_held`
        self.told: tuple[int, int] | None = None
        self.pins: dict[int, int] = {}
        self.due_ms = 0
        self.revision = 0
        self.condemned: list[int] = []
        self._deleted = 0  # of these, those that the checkpoint deletes
        self.unwritten: dict[int, Message] = {}
        self.unwritten_bytes = 0
        self.counted_bytes = 0
        self.sent_revision = 0

    # -- messages -----------------------------------------------------------------------------------------------------

    def add(self, seq: int, due_ms: int, limits: InboxLimits) -> None:
        """Add a message, with a number above all others. Beyond `messages_max` the oldest leaves for it."""
        offset = seq - self._base
        if offset >= limits.numbers_max:
            self._forget_below(seq - limits.numbers_max + 1)
            offset = seq - self._base
        self._held |= 1 << offset
        self._size += 1
        if not self.due_ms or due_ms < self.due_ms:
            self.due_ms = due_ms
        if self._size <= limits.messages_max:
            return
        oldest = _lowest(self._held)
        self._drop(1 << oldest)
        self._rebase()

    def advance(self, seq: int, limits: InboxLimits) -> None:
        """A message that is not kept has this number, above all others: what is `numbers_max` below leaves."""
        if seq - self._base >= limits.numbers_max:
            self._forget_below(seq - limits.numbers_max + 1)

    def holds(self, seq: int) -> bool:
        """Whether the message is in the inbox."""
        return (seq >= self._base and bool(self._held >> (seq - self._base) & 1)) or seq in self.pins

    def remove(self, first: int, last: int) -> None:
        """The messages of these numbers, both included, are gone: remove those that are in it."""
        gone = self._held & self._range(first, last)
        if gone:
            self._drop(gone)
        if self.pins:
            for seq in [seq for seq in self.pins if first <= seq <= last]:
                self._unpin(seq, 0)

    def age(self, seqs: Iterable[int], due_ms: int) -> None:
        """Remove these, which are too old, unless they are pinned. The first of the others is too old at `due_ms`; 0: there is none."""
        self._drop(self._held & self._mask(filter(self.holds, seqs)))  # a stream may have any number
        self.due_ms = due_ms

    def keep(self, message: Message) -> int:
        """An acknowledged message, if it is in the inbox, stays in memory until a checkpoint has written it. Returns the bytes it takes."""
        if not self.holds(message.seq):
            return 0
        self.unwritten[message.seq] = message
        size = message.size + _UNWRITTEN_BYTES
        self.unwritten_bytes += size
        return size

    def release(self, upto: int) -> None:
        """The offline stream has everything up to this number: drop it from memory."""
        for seq in [seq for seq in self.unwritten if seq <= upto]:
            self._release(seq)

    def checkpointed(self, upto: int) -> None:
        """A checkpoint is written: storage has everything up to this number, and the condemned entries are deleted."""
        self.release(upto)
        del self.condemned[: self._deleted]
        self._deleted = 0

    def _release(self, seq: int) -> None:
        message = self.unwritten.pop(seq, None)
        if message is not None:
            self.unwritten_bytes -= message.size + _UNWRITTEN_BYTES

    def _drop(self, mask: int) -> None:
        self._clear(mask)
        if self.unwritten:
            for seq in self._numbers(mask):
                self._release(seq)

    def _clear(self, mask: int) -> None:
        keep = ~mask
        self._held &= keep
        self._read &= keep
        self._seen &= keep
        self._archived &= keep
        self._size = self._held.bit_count()

    def _forget_below(self, seq: int) -> None:
        """Storage trims what is below: forget these numbers, pinned ones aside."""
        keep = ~self._range(self._base, seq - 1)
        self._stored &= keep
        self._drop(~keep & self._held)
        self._rebase()
        if not self._held | self._stored:
            self._base = seq

    def _rebase(self) -> None:
        """Move the base up to the first number that is in any set, when that is far enough."""
        used = self._held | self._stored
        if not used:
            return
        shift = _lowest(used)
        if shift >= _SHIFT_MIN:
            self._base += shift
            self._held >>= shift
            self._read >>= shift
            self._seen >>= shift
            self._archived >>= shift
            self._stored >>= shift

    def _range(self, first: int, last: int) -> int:
        """The mask of the numbers from `first` to `last`, as far as there are bits for them."""
        low, high = max(first - self._base, 0), last - self._base
        return ((1 << high + 1) - 1) >> low << low if high >= low else 0

    def _below(self, before: int) -> int:
        """The mask of the messages below a number that a client gave: a bit for each number up to that one would be too many."""
        return self._range(self._base, min(before, self._base + self._held.bit_length()) - 1)

    def _mask(self, seqs: Iterable[int]) -> int:
        base, mask = self._base, 0
        for seq in seqs:
            if seq >= base:
                mask |= 1 << seq - base
        return mask

    # -- what the user does -------------------------------------------------------------------------------------------

    def upto(self, seq: int) -> list[int]:
        """The numbers of the messages up to `seq`, ascending."""
        return sorted([*(pin for pin in self.pins if pin <= seq), *self._numbers(self._held & self._below(seq + 1))])

    def mark(self, mark: int, seqs: Iterable[int], limits: InboxLimits, *, on: bool) -> None:
        """Set or take away a mark of these messages; numbers that are not in it, and pins beyond `pinned_max`, are ignored."""
        if mark == PINNED:
            (self._pin if on else self._take_pins)(seqs, limits)
            return
        flags = mark | SEEN if mark == READ and on else mark
        chosen = list(seqs)
        mask = self._mask(chosen) & self._held
        if mask:
            if flags & READ:
                self._read = self._read | mask if on else self._read & ~mask
            if flags & SEEN:
                self._seen = self._seen | mask if on else self._seen & ~mask
            if flags & ARCHIVED:
                self._archived = self._archived | mask if on else self._archived & ~mask
        if self.pins:
            for seq in chosen:
                if seq in self.pins:
                    self.pins[seq] = self.pins[seq] | flags if on else self.pins[seq] & ~flags

    def _pin(self, seqs: Iterable[int], limits: InboxLimits) -> None:
        for seq in seqs:
            if len(self.pins) >= limits.pinned_max or seq in self.pins or not self.holds(seq):
                continue
            self.pins[seq] = self.flags(seq)
            bit = 1 << seq - self._base
            self._clear(bit)
            self._stored &= ~bit

    def _take_pins(self, seqs: Iterable[int], limits: InboxLimits) -> None:
        for seq in seqs:
            if seq in self.pins:
                self._unpin(seq, limits.numbers_max)
                if self._size > limits.messages_max:
                    self._drop(1 << _lowest(self._held))

    def _unpin(self, seq: int, numbers_max: int) -> None:
        """End the pin; the message becomes one like any other, unless the newest is `numbers_max` ahead: then it leaves."""
        flags = self.pins.pop(seq)
        newest = self._base + (self._held | self._stored).bit_length() - 1
        stays = numbers_max > 0 and newest - seq < numbers_max
        if stays and seq < self._base:
            self._lower_base(seq)
        if seq >= self._base:
            self._stored |= 1 << seq - self._base
        else:
            self.condemned.append(seq)
        if not stays:
            self._release(seq)
            return
        bit = 1 << seq - self._base
        self._held |= bit
        self._size += 1
        self._read |= bit if flags & READ else 0
        self._seen |= bit if flags & SEEN else 0
        self._archived |= bit if flags & ARCHIVED else 0
        self.due_ms = 1  # when it is too old, the next sweep finds out

    def _lower_base(self, base: int) -> None:
        shift = self._base - base
        self._base = base
        self._held <<= shift
        self._read <<= shift
        self._seen <<= shift
        self._archived <<= shift
        self._stored <<= shift

    # -- what the user sees -------------------------------------------------------------------------------------------

    def flags(self, seq: int) -> int:
        """READ, SEEN, ARCHIVED and PINNED of a message that is in it."""
        if seq in self.pins:
            return self.pins[seq] | PINNED
        offset = seq - self._base
        read, seen, archived = self._read >> offset & 1, self._seen >> offset & 1, self._archived >> offset & 1
        return read * READ | seen * SEEN | archived * ARCHIVED

    def counts(self) -> tuple[int, int]:
        """How many messages are unread and how many unseen; archived ones do not count."""
        listed = self._held & ~self._archived
        unread, unseen = (listed & ~self._read).bit_count(), (listed & ~self._seen).bit_count()
        for flags in self.pins.values():
            if not flags & ARCHIVED:
                unread += not flags & READ
                unseen += not flags & SEEN
        return unread, unseen

    def select(self, before: int, count_max: int, view: int) -> list[int]:
        """The numbers of up to `count_max` messages below `before` of a view (UNREAD and IN_ARCHIVE, or ALL), the newest first."""
        mask = self._held & self._archived if view & IN_ARCHIVE else self._held & ~self._archived
        if view & UNREAD:
            mask &= ~self._read
        mask &= self._below(before)
        base, found = self._base, []
        for _ in range(count_max):
            if not mask:
                break
            highest = mask.bit_length() - 1
            mask ^= 1 << highest
            found.append(base + highest)
        if not self.pins:
            return found
        pinned = [seq for seq, flags in self.pins.items() if seq < before and _is_shown(flags, view)]
        return sorted([*found, *pinned], reverse=True)[:count_max]

    def revise(self, floor: int) -> bool:
        """Give the counts a new revision, above `floor` and all earlier ones, if they differ from those of the last call.

        `floor`: above every revision that an earlier owner of the user can have given.
        """
        counts = self.counts()
        if counts == self.told and self.revision > floor:
            return False
        self.told = counts
        self.revision = max(self.revision, floor) + 1
        return True

    # -- storage ------------------------------------------------------------------------------------------------------

    @property
    def is_used(self) -> bool:
        """Whether any message is in it."""
        return bool(self._held or self.pins)

    @property
    def size(self) -> int:
        """Bytes it takes in memory, about."""
        return INBOX_BYTES + 100 * len(self.pins) + self.unwritten_bytes

    @property
    def low(self) -> int:
        """Entries of the offline stream below this number are not in the inbox."""
        used = self._held | self._stored
        low = self._base + (_lowest(used) if used else 0)
        return min([low, *self.pins])

    def written(self, seqs: Iterable[int]) -> None:
        """The checkpoint that is being made adds these numbers to the offline stream."""
        self._stored |= self._mask(seq for seq in seqs if seq not in self.pins)

    def condemn(self, floor: int, others: Iterable[int], gone: Sequence[tuple[int, int]], dying: Iterable[int], count_max: int) -> None:
        """Add to `condemned` the entries that nobody needs: in the offline stream, neither in the inbox nor pending.

        Args:
            floor, others, gone, dying: numbers that are not pending are those up to `floor`, `others`, and in the ranges `gone`, but not
                `dying`.
            count_max: so many in one call; the rest come in later ones.
        """
        idle = self._stored & ~self._held
        self._deleted = len(self.condemned)
        if not idle:
            return
        settled = self._range(self._base, floor) | self._mask(others)
        for first, last in gone:
            settled |= self._range(first, last)
        idle &= settled & ~self._mask(dying)
        for seq in self._numbers(idle):
            if len(self.condemned) >= count_max:
                break
            self.condemned.append(seq)
            self._stored &= ~(1 << seq - self._base)
        self._deleted = len(self.condemned)
        self._rebase()

    def _numbers(self, mask: int) -> Iterator[int]:
        while mask:
            offset = _lowest(mask)
            yield self._base + offset
            mask &= mask - 1

    def to_stored(self) -> StoredInbox:
        held, read, seen, archived, stored = map(_to_bytes, (self._held, self._read, self._seen, self._archived, self._stored))
        return StoredInbox(self._base, held, read, seen, archived, stored, dict(self.pins), self.due_ms, self.revision, self.told)


def inbox_of(stored: StoredInbox) -> Inbox:
    """The inbox of a page."""
    inbox = Inbox(stored.base)
    inbox._held, inbox._read, inbox._seen, inbox._archived, inbox._stored = (
        int.from_bytes(mask, "little") for mask in (stored.held, stored.read, stored.seen, stored.archived, stored.stored)
    )
    inbox._size = inbox._held.bit_count()
    inbox.pins = dict(stored.pins)
    inbox.due_ms = stored.due_ms
    inbox.revision = stored.revision
    inbox.told = stored.told
    return inbox


def _is_shown(flags: int, view: int) -> bool:
    return bool(flags & ARCHIVED) == bool(view & IN_ARCHIVE) and not (view & UNREAD and flags & READ)


def _lowest(mask: int) -> int:
    """The position of the lowest bit that is set."""
    return (mask & -mask).bit_length() - 1


def _to_bytes(mask: int) -> bytes:
    return mask.to_bytes(-(-mask.bit_length() // 8), "little")
