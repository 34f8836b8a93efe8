"""The book of choices: what users have chosen for categories, as devices were told, and that every message of these goes where they say.

A change that was answered holds for all messages that are published from then on: what is `off` is suppressed, what is `inbox` has a
number and is sent to nobody, what is `on` is sent. Until a change is answered, both it and the choice before it may hold. A change
without an answer may take effect at any later time, so its choice may hold from then on, whatever is chosen after it.

What may hold grows with each change for all messages that were published before: they may be decided after it. The decision is taken from
the journal, where a group that is rolled back is followed by another decision.
"""

from __future__ import annotations

from typing import Final

from engine.core.journal.journal_records import Decided, StoredMessage
from engine.core.model.category import Category
from engine.core.model.constants import HIGH
from tests.sim.windowbook import Broken

CHOSEN: Final = {"red": Category(), "blue": Category()}
"""Categories without limits, for which users choose."""

WISHES: Final = ("on", "off", "inbox")


class Choices:
    def __init__(self) -> None:
        self._may: dict[str, set[str]] = {name: {"on"} for name in CHOSEN}
        self._loose: dict[str, set[str]] = {name: set() for name in CHOSEN}  # of changes without an answer
        self._messages: dict[str, tuple[str, set[str]]] = {}  # by id: its category, and the choices that may hold for it
        self._retained: set[str] = set()
        self._suppressed: set[str] = set()

    def changing(self, category: str, choice: str) -> None:
        """A device asks for it."""
        self._may[category].add(choice)
        for of, may in self._messages.values():
            if of == category:
                may.add(choice)

    def changed(self, category: str, choice: str) -> None:
        """The device is told that it is durable."""
        self._may[category] = {choice} | self._loose[category]

    def unknown(self, category: str, choice: str) -> None:
        """The device was told nothing."""
        self._loose[category].add(choice)

    def publishing(self, id: str, category: str, *, retain: bool) -> None:
        """A message is about to be published, or is once more."""
        if retain:
            self._retained.add(id)
        self._messages.setdefault(id, (category, set(self._may[category])))

    def numbered(self, record: StoredMessage) -> bool:
        """A message has a number. Returns whether it is one of these. Raises Broken when its user does not want it so."""
        known = self._messages.get(record.envelope.id)
        if known is None:
            return False
        category, may = known
        wanted = {"inbox"} if record.inbox_only else {"on", "inbox"} if record.envelope.priority == HIGH else {"on"}
        if not wanted & may:
            where = "the inbox only" if record.inbox_only else "to be sent"
            raise Broken(f"{record.envelope.id} is {record.seq}, {where}, and {category} may be {sorted(may)}")
        return True

    def decided(self, record: Decided) -> None:
        """A message is suppressed, or goes into the inbox. Raises Broken when its user wants it."""
        id, event = record.entry.id, record.entry.event
        known = self._messages.get(id)
        if known is None or event != "suppressed":
            return
        category, may = known
        choice = "inbox" if record.entry.reason.startswith("inbox:") else "off"
        if choice not in may or (choice == "inbox" and id in self._retained):  # the inbox keeps no `retain: false`, and all others
            raise Broken(f"{id} is suppressed ({record.entry.reason}), and {category} may be {sorted(may)}")
        self._suppressed.add(id)

    def told_suppressed(self, id: str) -> None:
        """Its publisher is told so. Raises Broken when nobody has decided that."""
        if id not in self._suppressed:
            raise Broken(f"{id} is answered as suppressed, and the journal does not have that")
