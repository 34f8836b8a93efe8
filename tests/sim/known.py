"""What the books know: of users and their messages, of delayed messages, of connections as their clients see them."""

from __future__ import annotations

from collections import Counter

from engine.core.journal.journal_records import StoredMessage
from engine.core.model.constants import HIGH
from tests.sim.broadcastbook import Taken
from tests.sim.choicebook import Choices
from tests.sim.inboxbook import InboxBook
from tests.sim.limitbook import Limits
from tests.sim.windowbook import Windows
from tests.sim.wishbook import Wishes


class Violation(AssertionError):
    """A promise is broken. `user` is whom the trace is to be about."""

    def __init__(self, what: str, user: str = "") -> None:
        super().__init__(what)
        self.user = user


class Message:
    """One number of a user, as the journal has it."""

    __slots__ = (
        "body",
        "collapse",
        "count",
        "expires_ms",
        "high",
        "id",
        "inbox_only",
        "pos",
        "replaced",
        "retain",
        "seq",
        "supersedes",
        "timer",
    )

    def __init__(self, stored: StoredMessage) -> None:
        self.collapse = stored.envelope.collapse
        self.count = stored.count
        self.supersedes = stored.supersedes
        self.replaced = False  # a newer one stands for it
        self.high = stored.envelope.priority == HIGH
        self.pos = stored.pos  # of a broadcast
        self.seq = stored.seq
        self.id = stored.envelope.id
        self.body = stored.envelope.body
        self.expires_ms = stored.expires_ms
        self.retain = stored.envelope.retain
        self.timer = stored.timer
        self.inbox_only = stored.inbox_only


class User:
    def __init__(self, key: str) -> None:
        self.key = key
        self.messages: dict[int, Message] = {}  # journalled and not rolled back
        self.seq_of: dict[str, int] = {}
        self.former_seq: dict[int, int] = {}  # of messages with two numbers: the second -> the first
        self.place_of: dict[str, int] = {}  # id -> its place among all that the mailbox was to remember
        self.remembered = 0
        self.to_send: list[int] = []  # of `messages`, ascending, those that are not for the inbox only
        self.head = 0
        self.shown: dict[int, str] = {}  # number -> id
        self.told = 0  # highest number a publisher or client has been told of
        self.accepted: dict[str, int] = {}  # id -> number, answered 202
        self.acked_through = 0  # a client said so, whether or not it arrived
        self.acked: set[int] = set()  # and these, by their ids
        self.refused: set[int] = set()
        self.refused_first: set[str] = set()  # ids of those that nobody had acknowledged when they were refused
        self.dead: set[str] = set()  # ids in the dead-letter stream
        self.devices = 0
        self.accounted_floor = 0
        self.durably_acked: set[int] = set()
        self.acked_by_last_group: list[int] = []  # of them: what the last group of all that carried acknowledgements brought
        self.open_attempts: Counter[str] = Counter()  # id -> publishes that may take effect
        self.unavailable: set[str] = set()  # answered 503 or 429, "nothing was accepted"
        self.windows = Windows()
        self.limits = Limits()
        self.wishes = Wishes()
        self.choices = Choices()
        self.inbox = InboxBook()
        self.taken = Taken()

    def remember(self, id: str, timer: str) -> None:
        """A mailbox remembers an id, and that of its timer if it had one."""
        self.remembered += 2 if timer else 1
        self.place_of[id] = self.remembered

    def has_handled(self, seq: int) -> bool:
        """Did a client acknowledge or refuse it, or the same message under its first number? Its id settles both."""
        handled = seq <= self.acked_through or seq in self.acked or seq in self.refused
        return handled or (seq in self.former_seq and self.has_handled(self.former_seq[seq]))

    def is_crowded_out(self, seq: int, offline_max: int) -> bool:
        """May it be trimmed: can so many others have been pending above it? What is for the inbox only is never pending."""
        return len(self.to_send) >= offline_max and self.to_send[-offline_max] > seq

    def acknowledgements_rolled_back(self) -> None:
        """The last group that carried some is no more: if the shard dies before the next one, they never were."""
        self.durably_acked.difference_update(self.acked_by_last_group)
        self.acked_by_last_group.clear()


class Timer:
    """A delayed message somebody was told about."""

    def __init__(self, key: str, dues: set[int]) -> None:
        self.key = key
        self.dues = dues  # every time it was ever asked to be due
        self.cancelled = False  # and somebody was told so
        self.cancels = 0  # asked for: it may be cancelled, an answer "unavailable", or none, says nothing
        self.fired = False

    @property
    def owed(self) -> bool:
        """Must it take effect still?"""
        return bool(self.dues) and not self.fired and not self.cancels


class Receiving:
    """One connection as its client sees it."""

    def __init__(self, user: User, name: str, repeats: bool) -> None:
        self.user = user
        self.name = name
        self.repeats = repeats  # not on plain SSE and polls
        self.told = user.told  # what was known when it was opened
        self.high = -1  # -1: not welcomed yet
        self.seen: dict[int, int] = {}  # number -> attempt
        self.times: Counter[int] = Counter()  # number -> how often it was shown here
        self.gaps: list[tuple[int, int]] = []
        self.passed: set[int] = set()  # not shown here, because another device had handled them; a crash may forget that
        self.revoked: set[str] = set()
