"""The seam between a shard and the features that decide about its messages.

A post is special when its envelope has policy terms or is to be merged, when its user has state, or when its timer has an unmet condition.
`engine.core.commit.group` asks a `JudgeStep` about special posts only, and makes it for a group that has one. The classes here are the
judge of a shard without such a feature: it delivers each post at once, whatever its timer's conditions. A feature extends them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from engine.core.journal.journal_records import Decided, StoredMessage
from engine.core.mailbox.broadcast_log import Broadcast
from engine.core.mailbox.judge_state import JudgeRecord
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.memory import Memory
from engine.core.policy.conditions import GO, Again, Conditions, Drop, Go
from engine.core.wire.outcomes import Outcome
from engine.core.wire.records import Post, Timer

Events = list[StoredMessage | JudgeRecord | Decided]
"""The records of a group about messages, in the order in which they apply."""


class Pending(Struct, gc=False):
    """A post that waits for its commit, with the link session to answer, or the durable timer that caused it."""

    session: str
    post: Post
    timer: str = ""
    unmet: Drop | None = None  # the condition of the timer that is not met


class Answer(Struct, gc=False):
    """The outcome of a pending post."""

    pending: Pending
    status: int
    seq: int = 0
    detail: str = ""
    retry_ms: int = 0
    until_ms: int = 0  # of a DEFERRED one


class JudgeStep:
    """Decides about the special posts of one group, on copies, and is discarded with it.

    Attributes:
        records: of the group; those of decisions are appended.
        decisions: the number of messages by (event of the timeline or `delivered`, code of the reason, category).
        heads: the newest numbers that the group assigns, by mailbox key.
        now_ms: when the group is built.
    """

    def __init__(self, records: Events, heads: dict[str, int], now_ms: int) -> None:
        self.records = records
        self.decisions: Counter[tuple[str, str, str]] = Counter()
        self.heads = heads
        self.now_ms = now_ms

    def at_deadline(self, mailbox: Mailbox) -> None:
        """Do what is due for the mailbox. Called before any post is decided, so that what it sends is numbered first."""

    def decide(self, pending: Pending, mailbox: Mailbox) -> Answer | None:
        """Decide about a special post that is no repeat. The caller numbers the message, and remembers the id of the post.

        Returns:
            None to deliver the message. Else its answer: ACCEPTED for the inbox only, MERGED, DUPLICATE, SUPPRESSED or DEFERRED.
        """
        return None


class Deadlines:
    """Tracks when the judge has something to do for mailboxes, also for those that are not in memory. This one tracks none.

    Attributes:
        due: the mailboxes whose time has come.
        next_ms: when `tick` has a mailbox to find, or earlier; None while there is none.
    """

    due: Mapping[str, Mailbox] = MappingProxyType({})

    @property
    def next_ms(self) -> int | None:
        return None

    def watch(self, mailbox: Mailbox) -> None:
        """Track the mailbox: the judge's state of it has changed, or it was loaded into memory."""

    def stored(self, slot: int, times: Iterable[tuple[str, int]]) -> None:
        """Storage has pages of this slot with a time: (key, `JudgeState.next_ms`). Those in memory are newer."""

    def leave(self, slots: Collection[int]) -> None:
        """Do nothing more for these slots: their next owner does."""

    def forget(self, mailbox: Mailbox) -> None:
        """The judge has no state of the mailbox any more, or it is another shard's."""

    def forget_slots(self, slots: Iterable[int]) -> None:
        """All mailboxes of these slots are another shard's, also those that are not in memory."""

    def tick(self, now_ms: int) -> list[str]:
        """Find the mailboxes whose time has come. Returns the keys of those that are not in memory: they are to be loaded."""
        return []

    def take(self, now_ms: int) -> list[Mailbox]:
        """Mailboxes for the step of the next group. Call `watch` for each after the group, whatever its outcome."""
        return []


class Judge:
    """Decides about the messages of one shard."""

    deadlines: Deadlines = Deadlines()

    def step(self, records: Events, heads: dict[str, int], now_ms: int) -> JudgeStep:
        """Decide about the posts of a group, see `JudgeStep`."""
        return JudgeStep(records, heads, now_ms)

    def count(self, mailbox: Mailbox, stored: StoredMessage) -> None:
        """A journalled message with policy terms was added to its mailbox, at commit or replay."""

    def apply(self, mailbox: Mailbox, record: JudgeRecord) -> None:
        """Apply a journalled record to the state of a mailbox, at commit or replay. No effect when it is applied already."""

    def committed(self, record: JudgeRecord) -> None:
        """A group with the record is stored. Replay does not say so, as counters are of one process."""

    def outcome(self, record: JudgeRecord) -> Outcome | None:
        """The outcome of a message that follows from the record alone, at commit and at replay; None: none does."""
        return None

    def figures(self) -> Mapping[str, int]:
        """Plain numbers of the shard's row in the status."""
        return {}

    def quiet_until(self, mailbox: Mailbox, now_ms: int) -> int:
        """When the quiet hours end in which broadcasts wait for the user, ms; 0 when there are none now."""
        return 0

    def unwanted(self, mailbox: Mailbox, broadcast: Broadcast) -> bool:
        """Whether the user, who has state, does not want the broadcast."""
        return False

    def inbox_only(self, mailbox: Mailbox, broadcasts: Sequence[Broadcast]) -> frozenset[int]:
        """The positions of the broadcasts that the user, who has state, wants in the inbox only."""
        return frozenset()

    def at_fire(self, timer: Timer, conditions: Conditions, mailbox: Mailbox, number: int | None, now_ms: int) -> Go | Drop | Again:
        """Evaluate the conditions of a timer that fires now.

        Args:
            number: that storage has for the message of a step, 0 for none; None: it was not asked.
        """
        return GO


NO_JUDGE: Final = Judge()

MakeJudge = Callable[[Mapping[str, Mailbox], Memory], Judge]
"""(the mailboxes of a shard, its totals) -> its judge."""
