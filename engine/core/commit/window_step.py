"""The aggregation windows of a shard's users: when they close, and what a journal group does to them.

    opened --its end is reached--> due --in the next group--> policy --> closed, with or without a message
                                                                     --> kept open: the user has quiet hours (`Extended`)
           --a message of its key arrives first--> closed in that message's group, before the message opens the next window

`WindowCloser` tracks when windows end, also those of mailboxes that are not in memory. It is rebuilt from storage, which knows when the
windows of each page end (`store.pages.Pages.with_windows`), and from the journal. A window that ended meanwhile is due at the first tick.
A mailbox with an open window may leave memory, as every other: when its windows end, its page is read, and they close.

`WindowStep` is the effect of one group. It works on copies; the mailboxes change when the group is committed (`apply_window`). After a
refused group only `WindowCloser.watch` has to be called for its mailboxes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from heapq import heappop, heappush
from typing import Final

from msgspec import Struct

from engine.core.commit.policy_step import PolicyStep, facts_of
from engine.core.journal.journal_records import Decided, Kept, StoredMessage
from engine.core.mailbox.aggregation_window import DIGEST, Counted, Ended, Extended, WindowItem, WindowOutcome, Windows, merge_of
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.memory import Memory
from engine.core.model.envelope import Envelope
from engine.core.model.message import timer_effect_id
from engine.core.model.routing import slot_of
from engine.core.policy.contact_policy import Decision
from engine.core.wire.records import ACCEPTED, DUPLICATE, MERGED

ENTRY_BYTES: Final = 210
"""Bytes of memory of a tracked mailbox: its key, its entries in table and heap. Measured with CPython 3.11; see the test of this module."""

LOADS_MAX: Final = 500
"""Mailboxes under way from storage at a time, because their windows have ended: some megabytes, 65 if each has all windows full."""

Events = list[StoredMessage | Counted | Ended | Extended | Decided]
"""The records of a group about messages and windows, in the order in which they apply."""


class WindowCloser:
    """Tracks when the windows of a shard's mailboxes end.

    Args:
        memory: the shard's totals; what is tracked counts in them.

    Attributes:
        due: the mailboxes with windows that have ended.
    """

    def __init__(self, mailboxes: Mapping[str, Mailbox], memory: Memory) -> None:
        self._mailboxes = mailboxes
        self._memory = memory
        self._heap: list[tuple[int, int, str]] = []  # when the next window of a mailbox ends, its slot, its key
        self._armed: dict[int, dict[str, int]] = {}  # slot -> key -> its valid entry in the heap; others are outdated
        self._ended: list[str] = []  # not in memory, and not taken yet
        self._loading: set[str] = set()  # those, and the ones that were taken
        self.due: Final[dict[str, Mailbox]] = {}
        self._left: Collection[int] = ()

    @property
    def next_ms(self) -> int | None:
        """When `tick` has a window to find, or earlier; None while there is none."""
        return self._heap[0][0] if self._heap else None

    def watch(self, mailbox: Mailbox) -> None:
        """Track the mailbox: its windows have changed, or it was loaded into memory."""
        self._loading.discard(mailbox.key)
        closes_ms = mailbox.windows.next_ms if mailbox.windows is not None else 0
        if closes_ms:
            self._arm(closes_ms, mailbox.slot, mailbox.key)

    def stored(self, slot: int, ends: Iterable[tuple[str, int]]) -> None:
        """Storage has pages of this slot with open windows: (key, when the next one ends). Those in memory are newer."""
        for key, closes_ms in ends:
            if key not in self._mailboxes:
                self._arm(closes_ms, slot, key)

    def _arm(self, closes_ms: int, slot: int, key: str) -> None:
        armed = self._armed.setdefault(slot, {})
        before = armed.get(key)
        if before is None:
            self._memory.resize(ENTRY_BYTES)
        elif before <= closes_ms:
            return
        armed[key] = closes_ms
        heappush(self._heap, (closes_ms, slot, key))

    def _disarm(self, slot: int, key: str) -> None:
        if self._armed.get(slot, {}).pop(key, None) is not None:
            self._memory.resize(-ENTRY_BYTES)

    def leave(self, slots: Collection[int]) -> None:
        """Close no more windows of these slots: their next owner does."""
        self._left = slots
        for key in [key for key in self.due if slot_of(key) in slots]:
            del self.due[key]

    def forget(self, mailbox: Mailbox) -> None:
        """The mailbox has no windows any more, or they are another shard's."""
        self._disarm(mailbox.slot, mailbox.key)
        self._loading.discard(mailbox.key)
        self.due.pop(mailbox.key, None)

    def forget_slots(self, slots: Iterable[int]) -> None:
        """All mailboxes of these slots are another shard's, also those that are not in memory."""
        for slot in slots:
            self._memory.resize(-ENTRY_BYTES * len(self._armed.pop(slot, ())))

    def tick(self, now_ms: int) -> None:
        """Find the windows that have ended by now; while `LOADS_MAX` mailboxes are to be loaded, no more."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms and len(self._loading) < LOADS_MAX:
            closes_ms, slot, key = heappop(heap)
            if self._armed.get(slot, {}).get(key) != closes_ms:
                continue
            self._disarm(slot, key)
            if slot in self._left:
                continue
            mailbox = self._mailboxes.get(key)
            if mailbox is None:
                self._loading.add(key)
                self._ended.append(key)
            elif mailbox.windows is not None and 0 < mailbox.windows.next_ms <= now_ms:
                self.due[key] = mailbox
            else:
                self.watch(mailbox)

    def take_ended(self) -> list[str]:
        """Remove and return the keys of mailboxes that are not in memory and whose windows have ended: they are to be loaded."""
        ended, self._ended = self._ended, []
        return ended

    def take(self, windows_max: int, bytes_max: int, now_ms: int) -> list[Mailbox]:
        """Mailboxes with windows for the next group to close, about `windows_max` windows and `bytes_max` bytes in total. Call `watch` for
        each after the group, whatever its outcome."""
        taken: list[Mailbox] = []
        count = size = 0
        while self.due and count < windows_max and size < bytes_max:
            key = next(iter(self.due))
            mailbox = self.due.pop(key)
            taken.append(mailbox)
            if mailbox.windows is not None:
                due = mailbox.windows.due(now_ms)
                count += len(due)
                size += sum(mailbox.windows.open[collapse].size for collapse in due)
        return taken


class Merged(Struct, frozen=True, gc=False):
    """The outcome of a message with a window: ACCEPTED, to be delivered; MERGED, counted in a window that ends at `until_ms`; DUPLICATE,
    with the number of its first delivery, 0 for none."""

    status: int
    until_ms: int = 0
    seq: int = 0


ALONE: Final = Merged(ACCEPTED)


class WindowStep:
    """The effect of one group on the windows of its mailboxes.

    Args:
        records: of the group; the records of windows are appended.
        heads: the newest numbers that the group assigns, by mailbox key; a message that a window sends is assigned the next one.
        windows_max: open at once, per mailbox; a digest is one more.
        now_ms: when the group is built.
    """

    def __init__(self, records: Events, heads: dict[str, int], windows_max: int, now_ms: int, policy_step: PolicyStep) -> None:
        self._records = records
        self._heads = heads
        self._windows_max = windows_max
        self._now_ms = now_ms
        self._policy_step = policy_step
        self._windows: dict[str, Windows] = {}  # as they are once the group is committed

    def _of(self, mailbox: Mailbox) -> Windows:
        windows = self._windows.get(mailbox.key)
        if windows is None:
            windows = self._windows[mailbox.key] = Windows() if mailbox.windows is None else mailbox.windows.copy()
        return windows

    def close_due(self, mailbox: Mailbox) -> None:
        """Close the windows that are due, or extend them."""
        windows = self._of(mailbox)
        for collapse in windows.due(self._now_ms):
            self._close(mailbox, windows, collapse)

    def _close(self, mailbox: Mailbox, windows: Windows, collapse: str) -> None:
        sent, ended = windows.close(mailbox.key, collapse)
        inbox_only = False
        if sent is not None and (sent.expires_ms <= self._now_ms or not (sent.envelope.retain or mailbox.connections)):
            sent = None
        if sent is not None and (sent.envelope.policy_terms is not None or mailbox.user_state is not None):
            facts = facts_of(sent.envelope)
            verdict = self._policy_step.summary(mailbox, facts)
            if verdict.decision is Decision.DEFER:
                extended = windows.extend(mailbox.key, collapse, verdict.until_ms)
                windows.apply(extended)
                self._records += [extended, self._policy_step.decided(mailbox.key, sent.envelope, verdict)]
                return
            if verdict.decision is Decision.DELIVER:
                self._policy_step.delivered(mailbox, facts)
            else:
                self._records.append(self._policy_step.decided(mailbox.key, sent.envelope, verdict))
                inbox_only = verdict.decision is Decision.INBOX
                sent = sent if inbox_only else None
        windows.apply(ended)
        self._records.append(ended)
        if sent is not None:
            number, key = self._number(mailbox), mailbox.key
            self._records.append(StoredMessage(key, number, sent.envelope, sent.expires_ms, self._now_ms, inbox_only=inbox_only))

    def _number(self, mailbox: Mailbox) -> int:
        seq = self._heads[mailbox.key] = self._heads.get(mailbox.key, mailbox.head) + 1
        return seq

    def holds(self, mailbox: Mailbox, envelope: Envelope) -> bool:
        """Whether the message would wait in its window instead of being delivered now."""
        merge = envelope.merge
        if merge is None:
            return False
        windows = self._windows.get(mailbox.key) or mailbox.windows
        window = None if windows is None else windows.open.get(envelope.collapse)
        if window is not None and window.closes_ms > self._now_ms:
            return True
        return not merge.leading and (
            window is not None or windows is None or len(windows.open) < self._windows_max + (envelope.collapse == DIGEST)
        )

    def closes_ms(self, mailbox: Mailbox, envelope: Envelope) -> int:
        """When the window ends in which the message would wait, ms."""
        window = None if mailbox.windows is None else mailbox.windows.open.get(envelope.collapse)
        if window is not None and window.closes_ms > self._now_ms:
            return window.closes_ms
        return self._now_ms + merge_of(envelope).window_ms

    def offer(self, mailbox: Mailbox, envelope: Envelope, expires_ms: int, timer: str) -> Merged:
        """Add a message to its window. When it is delivered as well, the caller assigns the mailbox's next number."""
        windows, collapse = self._of(mailbox), envelope.collapse
        window = windows.open.get(collapse)
        if window is not None and window.closes_ms <= self._now_ms:
            self._close(mailbox, windows, collapse)
        item = WindowItem(envelope, expires_ms, self._now_ms, timer)
        windows_max = self._windows_max + (collapse == DIGEST)
        outcome, counted = windows.offer(mailbox.key, item, windows_max, self._heads.get(mailbox.key, mailbox.head) + 1)
        if counted is not None:
            windows.apply(counted)
            self._records.append(counted)
        if outcome in (WindowOutcome.DELIVER, WindowOutcome.UNMERGED):
            return ALONE
        window = windows.open[collapse]
        if outcome is WindowOutcome.DUPLICATE:
            return Merged(DUPLICATE, seq=window.first_seq if window.envelope.id == envelope.id else 0)
        return Merged(MERGED, until_ms=window.closes_ms)


def apply_window(mailbox: Mailbox, record: Counted | Ended | Extended | Kept, recent_max: int) -> None:
    """Apply a journalled record to the mailbox's windows, at commit or replay. No effect when it is applied already."""
    if isinstance(record, Kept):
        if mailbox.windows is None or mailbox.windows.applied <= record.windows.applied:
            mailbox.windows = record.windows
        return
    if mailbox.windows is None:
        mailbox.windows = Windows()
    if mailbox.windows.apply(record) and isinstance(record, Counted) and not record.seq:
        # Without a number it is not remembered by `apply_stored`; the publisher's quick retry must still be recognised here.
        item = record.item
        mailbox.remember(item.envelope.id, 0, item.envelope.digest, recent_max)
        if item.timer:
            mailbox.remember(timer_effect_id(item.timer), 0, item.envelope.digest, recent_max)
            if mailbox.user_state is not None:
                mailbox.user_state.took_effect(item.timer)
