"""Subscriptions of users to topics: durable, part of the mailbox, each valid from the log position at which it was made.

A request that changes nothing, or exceeds the limit, is answered at once. Any other waits for the next journal group, which carries the
user's topics after the change (`engine.core.journal.journal_records.Topics`), and is answered once that group is durable.

    waiting -> in the group -> committed: the mailbox has the topics, the requests are answered
                            -> refused: the outcome is unknown until the rollback is done, then the answer is "unavailable"

Subscribing again keeps the first position, so a request repeated because its answer was lost changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from msgspec import Struct

from engine.core.mailbox.mailbox import Mailbox
from engine.core.wire.records import OK, OVERLOADED, UNAVAILABLE, Subscribe, Subscribed

Answers = list[tuple[str, Subscribed]]
"""For the edges: (link session, record)."""


class SubscriptionChange(Struct):
    """A user's topics after a group, and the answers to send once it is committed."""

    mailbox: Mailbox
    topics: dict[str, int]
    answers: Answers


class SubscriptionStep:
    """Subscription requests that wait for the journal.

    Args:
        topics_max: topics of one user.
    """

    def __init__(self, topics_max: int) -> None:
        self._topics_max = topics_max
        self.waiting: Final[list[tuple[str, Subscribe, Mailbox]]] = []
        self._waiting_keys: set[str] = set()  # of the mailboxes in `waiting`
        self._taken_keys: Collection[str] = ()  # of those in the group that is under way
        self._undecided: list[tuple[str, Subscribed]] = []  # of a group that is being rolled back

    def ask(self, mailbox: Mailbox, session: str, record: Subscribe) -> Subscribed | None:
        """Take a request for a mailbox in memory. Returns the answer, or `None` when a group has to be durable first."""
        # Behind a request that is not durable yet, the topics are not final: what changes nothing now may undo that one.
        if mailbox.key in self._waiting_keys or mailbox.key in self._taken_keys or _changes(record, mailbox.topics):
            self.waiting.append((session, record, mailbox))
            self._waiting_keys.add(mailbox.key)
            return None
        return Subscribed(record.ref, OK, sorted(mailbox.topics))

    def busy(self) -> set[str]:
        """Keys of the mailboxes with waiting requests."""
        return self._waiting_keys.copy()

    def take(self, pos: int) -> tuple[list[SubscriptionChange], Answers]:
        """Take all waiting requests: one change per mailbox for the next group, and the answers that need no group.

        Args:
            pos: the head of the broadcast log; a subscription made now covers what follows it.
        """
        waiting = self._take_waiting()
        changes: dict[str, SubscriptionChange] = {}
        at_once: Answers = []
        for session, record, mailbox in waiting:
            change = changes.get(mailbox.key)
            before = mailbox.topics if change is None else change.topics
            after = {topic: since for topic, since in before.items() if topic not in record.remove}
            for topic in record.add:
                after.setdefault(topic, pos)
            if len(after) > self._topics_max and len(after) > len(before):
                at_once.append((session, Subscribed(record.ref, OVERLOADED, sorted(before))))
                continue
            if change is None:
                change = changes[mailbox.key] = SubscriptionChange(mailbox, after, [])
            change.topics = after
            change.answers.append((session, Subscribed(record.ref, OK, sorted(after))))
        self._taken_keys = changes.keys()
        return list(changes.values()), at_once

    def committed(self) -> None:
        """The group with the changes is durable."""
        self._taken_keys = ()

    def refused(self, changes: Iterable[SubscriptionChange]) -> Answers:
        """Storage is unavailable. Returns the answers of the requests outside the group; the others are answered by `rolled_back`."""
        self._taken_keys = ()
        self._undecided = [(session, _unavailable(answer.ref)) for change in changes for session, answer in change.answers]
        waiting = self._take_waiting()
        return [(session, _unavailable(record.ref)) for session, record, _ in waiting]

    def rolled_back(self) -> Answers:
        """It is certain that the refused group is not in the journal. Returns the answers of its requests."""
        undecided, self._undecided = self._undecided, []
        return undecided

    def _take_waiting(self) -> list[tuple[str, Subscribe, Mailbox]]:
        waiting = self.waiting.copy()
        self.waiting.clear()
        self._waiting_keys.clear()
        return waiting


def _changes(record: Subscribe, topics: dict[str, int]) -> bool:
    return any(topic not in topics for topic in record.add) or any(topic in topics for topic in record.remove)


def _unavailable(ref: int) -> Subscribed:
    return Subscribed(ref, UNAVAILABLE, [])
