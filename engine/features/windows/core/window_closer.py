"""When the aggregation windows of a shard's users close.

`WindowCloser` tracks when windows end, also those of mailboxes that are not in memory. It is rebuilt from storage, which knows when the
windows of each page end (`store.pages.Pages.deadlines`), and from the journal. A window that ended meanwhile is due at the first tick.
A mailbox with an open window may leave memory, as every other: when its windows end, its page is read, and they close.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from heapq import heappop, heappush
from typing import Final

from engine.config import Config
from engine.core.commit.judge import Deadlines
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.memory import Memory
from engine.core.model.routing import slot_of
from engine.features.windows.core.aggregation import due, windows_of

ENTRY_BYTES: Final = 210
"""Bytes of memory of a tracked mailbox: its key, its entries in table and heap. Measured with CPython 3.11; see the test of this module."""

LOADS_MAX: Final = 500
"""Mailboxes under way from storage at a time, because their windows have ended: some megabytes, 65 if each has all windows full."""


class WindowCloser(Deadlines):
    """As `Deadlines`.

    Args:
        memory: the shard's totals; what is tracked counts in them.
    """

    def __init__(self, config: Config, mailboxes: Mapping[str, Mailbox], memory: Memory) -> None:
        self._config = config
        self._mailboxes = mailboxes
        self._memory = memory
        self._heap: list[tuple[int, int, str]] = []  # when the next window of a mailbox ends, its slot, its key
        self._armed: dict[int, dict[str, int]] = {}  # slot -> key -> its valid entry in the heap; others are outdated
        self._loading: set[str] = set()  # not in memory, and asked for
        self.due: dict[str, Mailbox] = {}
        self._left: Collection[int] = ()

    @property
    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def watch(self, mailbox: Mailbox) -> None:
        self._loading.discard(mailbox.key)
        closes_ms = 0 if mailbox.judge_state is None else mailbox.judge_state.next_ms
        if closes_ms:
            self._arm(closes_ms, mailbox.slot, mailbox.key)

    def stored(self, slot: int, times: Iterable[tuple[str, int]]) -> None:
        for key, closes_ms in times:
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
        self._left = slots
        for key in [key for key in self.due if slot_of(key) in slots]:
            del self.due[key]

    def forget(self, mailbox: Mailbox) -> None:
        self._disarm(mailbox.slot, mailbox.key)
        self._loading.discard(mailbox.key)
        self.due.pop(mailbox.key, None)

    def forget_slots(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._memory.resize(-ENTRY_BYTES * len(self._armed.pop(slot, ())))

    def tick(self, now_ms: int) -> list[str]:
        """As of `Deadlines`. While `LOADS_MAX` mailboxes are to be loaded, it finds no more."""
        heap, ended = self._heap, []
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
                ended.append(key)
            elif mailbox.judge_state is not None and 0 < mailbox.judge_state.next_ms <= now_ms:
                self.due[key] = mailbox
            else:
                self.watch(mailbox)
        return ended

    def take(self, now_ms: int) -> list[Mailbox]:
        """As of `Deadlines`: about `windows_close_max` windows and `commit_bytes_max` bytes in total."""
        windows_max, bytes_max = self._config.windows_close_max, self._config.commit_bytes_max
        taken: list[Mailbox] = []
        count = size = 0
        while self.due and count < windows_max and size < bytes_max:
            key = next(iter(self.due))
            mailbox = self.due.pop(key)
            taken.append(mailbox)
            windows = windows_of(mailbox)
            if windows is not None:
                ended = due(windows, now_ms)
                count += len(ended)
                size += sum(windows.open[collapse].size for collapse in ended)
        return taken
