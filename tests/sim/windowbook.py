"""The book of aggregation windows: every message that counts, and what each window has to send at its end.

A model of its own, fed with the journal's records one after the other: a window is the list of the messages that count in it. Checked:
records of a user are numbered without a hole, also over crashes and rollbacks, so replay can apply each once; a message counts once, and
is not delivered beside that; a window's notification tells as many as count in it; what was answered "merged" counts; nothing about
windows leaves the journal before a page has it; and in the end every window is closed.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engine.core.journal.journal_records import Record, StoredMessage
from engine.features.policy.core.policy_step import DIGEST
from engine.features.windows.core.aggregation import DIGEST_TYPE
from engine.features.windows.core.aggregation_window import Counted, Ended, merge_of


class Broken(AssertionError):
    """What must not be; the books say of whom."""


class Window:
    def __init__(self, closes_ms: int, leading: bool) -> None:
        self.closes_ms = closes_ms
        self.leading = leading
        self.ids: list[str] = []
        self.retain = False
        self.expires_ms = 0


class Windows:
    def __init__(self) -> None:
        self.number = 0
        self.open: dict[str, Window] = {}
        self.counted: dict[str, int] = {}  # id -> number of the record
        self._undo: list[Callable[[], None]] = []

    def count(self, record: Counted, *, named: bool) -> None:
        self._next(record.number)
        item = record.item
        if named and item.envelope.id in self.counted:
            raise Broken(f"{item.envelope.id} counts in a window again")
        window = self.open.get(item.envelope.collapse)
        opens = window is None
        if window is None:
            window = self.open[item.envelope.collapse] = Window(
                item.at_ms + merge_of(item.envelope).window_ms, merge_of(item.envelope).leading
            )
        before = (window.retain, window.expires_ms, self.counted.get(item.envelope.id))
        window.ids.append(item.envelope.id)
        window.retain |= item.envelope.retain
        window.expires_ms = max(window.expires_ms, item.expires_ms)
        self.counted[item.envelope.id] = record.number

        def undo() -> None:
            window.ids.pop()
            window.retain, window.expires_ms = before[:2]
            if before[2] is None:
                del self.counted[item.envelope.id]
            if opens:
                del self.open[item.envelope.collapse]

        self._undo.append(undo)

    def end(self, record: Ended, following: Record | None, now_ms: int) -> int:
        """A window is closed; `following` comes next in its group. Returns how many counted."""
        self._next(record.number)
        window = self.open.pop(record.collapse, None)
        if window is None:
            raise Broken(f"the window {record.collapse} ends, and is not open")
        self._undo.append(lambda: self.open.update({record.collapse: window}))
        count = len(window.ids)
        sent = following if isinstance(following, StoredMessage) and following.key == record.key else None
        told = _count_told(sent, record.collapse) if sent is not None else 0
        if count == 1:
            # A single message that was held is itself what the window sends; a leading one was delivered.
            if sent is not None and sent.envelope.id == window.ids[0]:
                told = 1
            if told and window.leading:
                raise Broken(f"{window.ids[0]} was delivered, and its window sends it again")
            if window.leading:
                return count
        if told != count and (told or (window.retain and window.expires_ms > now_ms)):
            raise Broken(f"the window {record.collapse} sends word of {told} messages, and {window.ids} count in it")
        return count

    def _next(self, number: int) -> None:
        if number != self.number + 1:
            raise Broken(f"window record {number} follows {self.number}")
        self.number = number

    def rolled_back(self, record: Counted | Ended) -> None:
        """The newest record never was."""
        if record.number != self.number:
            raise Broken(f"window record {record.number} is rolled back, and {self.number} is the newest")
        self.number -= 1
        self._undo.pop()()


def _count_told(sent: StoredMessage, collapse: str) -> int:
    members = msgspec.json.decode(b"{%b}" % sent.envelope.body)
    is_of_it = members["type"] == DIGEST_TYPE if collapse == DIGEST else members.get("collapse") == collapse
    return int(members.get("count", 0)) if sent.envelope.id.startswith("window-") and is_of_it else 0
