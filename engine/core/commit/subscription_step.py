"""Subscriptions of users to topics: durable, part of the mailbox, each counting from the log position at which it was made.

A request is answered at once when it changes nothing or cannot be; otherwise it waits for the next journal group, which carries
the user's topics as they will be (`checkpoint.Topics`), and is answered when that is durable.

    waiting -> in the group -> committed: the mailbox has the topics, the requests are answered
                            -> refused: storage may have them until the rollback is through; then "unavailable" is the truth

A subscription made again keeps its position, so a request that is repeated because its answer was lost changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from engine.core.mailbox.mailbox import Mailbox
from engine.core.wire.records import OK, OVERLOADED, UNAVAILABLE, Subscribe, Subscribed

Answers = list[tuple[str, Subscribed]]
"""For the edges: (link session, record)."""


class SubscriptionChange(Struct):
    """A user's topics as a group has them, and what to answer once it is committed."""

    mailbox: Mailbox
    topics: dict[str, int]
    answers: Answers


class SubscriptionStep:
    """Requests on their way into the journal.

    Args:
        topics_max: topics of one user.
    """

    def __init__(self, topics_max: int) -> None:
        self._topics_max = topics_max
        self._waiting: list[tuple[str, Subscribe, Mailbox]] = []
        self._undecided: list[tuple[str, Subscribed]] = []  # of a group that is being rolled back

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, mailbox: Mailbox, session: str, record: Subscribe) -> Subscribed | None:
        """A request for a mailbox in memory; `None` when its answer comes with a group."""
        if any(mailbox is other for _, _, other in self._waiting) or _changes(record, mailbox.topics):
            self._waiting.append((session, record, mailbox))
            return None
        return Subscribed(record.ref, OK, sorted(mailbox.topics))

    def busy(self) -> set[str]:
        """Keys of the mailboxes that requests wait for."""
        return {mailbox.key for _, _, mailbox in self._waiting}

    def take(self, pos: int) -> tuple[list[SubscriptionChange], Answers]:
        """What the next group carries, one change per mailbox, and answers that need no group.

        Args:
            pos: of the log now: what comes behind it is for those who subscribe now.
        """
        waiting, self._waiting = self._waiting, []
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
        return list(changes.values()), at_once

    def refused(self, changes: Iterable[SubscriptionChange]) -> Answers:
        """Storage is away: the answers of those that no group carried. Those of the group wait for `rolled_back`."""
        self._undecided = [(session, _unavailable(answer.ref)) for change in changes for session, answer in change.answers]
        waiting, self._waiting = self._waiting, []
        return [(session, _unavailable(record.ref)) for session, record, _ in waiting]

    def rolled_back(self) -> Answers:
        """The group is not in the journal: the answers of what it carried."""
        undecided, self._undecided = self._undecided, []
        return undecided


def _changes(record: Subscribe, topics: dict[str, int]) -> bool:
    return any(topic not in topics for topic in record.add) or any(topic in topics for topic in record.remove)


def _unavailable(ref: int) -> Subscribed:
    return Subscribed(ref, UNAVAILABLE, [])
