"""Requests of edges about one user, made without a connection: acknowledge, refuse, probe, subscribe, note an event, erase, and those that
features handle (`engine.core.shard.user_handlers`).

Reads are answered at once, or when a range of the offline stream is read. A change is durable before it is answered:

    waiting -> in a group, as a journal record -> committed: applied to the mailbox, answered "ok"
                                               -> refused: answered "unavailable", but only after the rollback, since until then
                                                  storage may have it

An edge repeats a request whose answer was lost. Changes are idempotent: each holds the new state, not a difference. Of two changes to one
thing the later one wins, at commit and at replay, which both apply records in journal order (`apply_note`). A change of preferences becomes
a whole profile when its group is built (`settle_changes`), one of subscriptions all topics of the user; both are idempotent as well.

Erasing a user is a change whose answer waits longer: the record is journalled, the user's connections end and the mailbox forgets all of
it (`Mailbox.erase`); the next full checkpoint deletes page and stream and trims the journal; then the shell deletes the user's entries in
the streams for other systems (`engine.store.user_entries`), and the edges that asked are answered. A crash on the way: an erasure in the
journal is repeated at replay, and the edge, which has no answer, asks again. When the slot moves, the edge asks its new owner, which erases
the user once more. No number is given out twice: the slot keeps the highest one of its deleted pages.

Crash: waiting changes are lost and unanswered, so their edges repeat them; journalled ones are replayed.
Limit: one change per request; those that wait count in the limit of posts that wait (`engine.core.shard.admission`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, Final

from engine.config import Config
from engine.core.commit.broadcast_step import BroadcastStep
from engine.core.commit.user_step import UserChange, acknowledged_by, apply_mark, apply_note, settle_changes, user_state_of
from engine.core.journal.journal_records import Erased, Marked, Noticed, Profiled, StoredMessage, Topics
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.constants import HIGH, NORMAL
from engine.core.model.routing import slot_of
from engine.core.shard.connections import Connections
from engine.core.shard.inbox_counts import InboxCounts
from engine.core.shard.mailbox_store import MailboxStore
from engine.core.shard.output import ShardOutput
from engine.core.shard.user_handlers import RequestContext, StreamAnswer, UserHandlers
from engine.core.wire.outcomes import ERASED, Outcome
from engine.core.wire.records import (
    OK,
    OVERLOADED,
    UNAVAILABLE,
    ChangeProfile,
    Erase,
    ErasureDone,
    Explain,
    Followed,
    GetProfile,
    Happened,
    MarkInbox,
    Moved,
    Probe,
    ReadBacklog,
    ReadInbox,
    ReadUser,
    Refuse,
    Rejected,
    SetProfile,
    Settle,
    Subscribe,
    Subscribed,
    Trace,
)

_Change = Settle | Refuse | Subscribe | SetProfile | ChangeProfile | Happened | MarkInbox | Erase
UserRequest = _Change | Probe | GetProfile | Explain | Trace | ReadBacklog | ReadInbox | ReadUser

MAKES_USERS: Final = (Subscribe, SetProfile, ChangeProfile, Happened)
"""Questions after which a user has a page."""

URGENT: Final = HIGH - 1
"""Before every priority: only the limit of what waits refuses it."""

_READS: Final = (Probe, GetProfile, Explain, Trace, ReadBacklog, ReadInbox, ReadUser)
_URGENT_KINDS: Final = (Settle, Refuse, Probe, Erase)

_RETRY_MS: Final = 1000


def admission_of(record: UserRequest, *, in_memory: bool) -> int | None:
    """The priority with which a question is admitted; None for one that takes no memory: a read of a mailbox that is in memory.

    Acknowledging, refusing and erasing free memory: were they refused while it is short, it would stay short. A client whose heartbeat is
    refused may pass for one that is gone. These are urgent.
    """
    if in_memory and isinstance(record, _READS):
        return None
    return URGENT if isinstance(record, _URGENT_KINDS) else NORMAL


class UserRequests:
    """Handles the requests of one shard. Answers go into the shard's output.

    Attributes:
        waiting: changes that no group carries yet.
        reads_wanted: answers that wait for the offline stream.
        erasing: by mailbox key, the users whose erasure is journalled and who are still in storage: (link session, answer).
    """

    def __init__(
        self,
        config: Config,
        mailbox_store: MailboxStore,
        connections: Connections,
        broadcast_step: BroadcastStep,
        output: ShardOutput,
        inbox_counts: InboxCounts,
        handlers: UserHandlers,
    ) -> None:
        self._handlers: UserHandlers = {
            Subscribe: self._subscribe,
            Happened: _note_event,
            Erase: _erase,
            **handlers,
        }
        self._inbox_counts = inbox_counts
        self._mailbox_store = mailbox_store
        self._connections = connections
        self._broadcast_step = broadcast_step
        self._config = config
        self._output = output
        self.waiting: Final[list[UserChange]] = []
        self.reads_wanted: Final[list[StreamAnswer]] = []
        self._subscribing: set[str] = set()  # keys of the mailboxes whose topics change, in a group or waiting for one
        self._undecided: Sequence[UserChange] = ()  # of a group that is being rolled back
        self._storage_away = False
        self.erasing: Final[dict[str, list[tuple[str, ErasureDone]]]] = {}

    def ask(self, mailbox: Mailbox, session: str, record: UserRequest, now_ms: int) -> None:
        """Handle a request; the user's mailbox is in memory. Answered now, or after the read or the group that it waits for."""
        if not isinstance(record, _READS):
            mailbox.active_ms = now_ms
        if isinstance(record, Probe):
            self._connections.probe(mailbox, session, record, now_ms)
        elif isinstance(record, Settle):
            self._connections.settle(mailbox, session, record, now_ms)
        elif not isinstance(record, Refuse):
            self._handle(mailbox, session, record, now_ms)
        elif self._storage_away:
            self._output.to_edges.append((session, Rejected(record.ref, UNAVAILABLE, "storage does not answer")))
        else:
            self._connections.refuse(mailbox, session, record)

    def _handle(self, mailbox: Mailbox, session: str, record: Any, now_ms: int) -> None:
        handler = self._handlers.get(type(record))
        if handler is None:
            self._output.to_edges.append((session, Rejected(record.ref, UNAVAILABLE, "this shard does not answer that")))
            return
        data_epoch, presence = self._connections.data_epoch, self._connections.presence.state(mailbox.key)
        context = RequestContext(self._config, self._mailbox_store, self._inbox_counts, session, data_epoch, presence, now_ms)
        answer = handler(mailbox, record, context)
        if isinstance(answer, UserChange):
            self._change(answer)
        elif not isinstance(answer, StreamAnswer):
            self._output.to_edges.append((session, answer))
        elif len(self.reads_wanted) >= self._config.inbox_reads_max:
            self._output.to_edges.append((session, Rejected(record.ref, OVERLOADED, "too many reads of inboxes wait", _RETRY_MS)))
        else:
            answer.session = session
            self.reads_wanted.append(answer)

    def _subscribe(self, mailbox: Mailbox, record: Subscribe, context: RequestContext) -> Subscribed | UserChange:
        topics, failed = mailbox.topics, Subscribed(record.ref, UNAVAILABLE, [])
        # What changes nothing here may change something at a successor that this shard does not know of; the group is fenced. Behind a
        # change that is not durable yet, the topics are not final.
        if record.add or record.remove or mailbox.key in self._subscribing or self._storage_away:
            done = Subscribed(record.ref, OK, [])
            return UserChange(mailbox, context.session, Topics(mailbox.key, topics), done, failed, record)
        return Subscribed(record.ref, OK, sorted(topics))

    def _change(self, change: UserChange) -> None:
        if self._storage_away:
            self._output.to_edges.append((change.session, change.failed))
            return
        self.waiting.append(change)
        if isinstance(change.record, Topics):
            self._subscribing.add(change.mailbox.key)

    def take_reads(self, count_max: int) -> list[StreamAnswer]:
        """Removes and returns the next reads; answer them with `read_done` or `read_failed`."""
        taken = self.reads_wanted[:count_max]
        del self.reads_wanted[:count_max]
        return taken

    def read_failed(self, reads: Iterable[StreamAnswer]) -> None:
        """Storage did not answer."""
        self._output.to_edges.extend((read.session, read.failed) for read in reads)

    def read_done(self, reads: Sequence[StreamAnswer], found: Iterable[Iterable[StoredMessage]]) -> None:
        """The ranges were read: `found` is what the streams have of each."""
        self._output.to_edges.extend((read.session, read.complete(entries)) for read, entries in zip(reads, found, strict=True))

    def busy(self) -> set[str]:
        """Keys of the mailboxes with waiting changes, or that are being erased; they must stay in memory."""
        return self.changing() | self.erasing.keys()

    def changing(self) -> set[str]:
        """Keys of the mailboxes with waiting changes."""
        return {change.mailbox.key for change in self.waiting}

    def release(self, slots: Container[int], version: int) -> None:
        """Another shard gets these users, by this version of the slot map: edges ask it again for the erasures that are not complete."""
        for key in [key for key in self.erasing if slot_of(key) in slots]:
            self._output.to_edges.extend((session, Moved(done.ref, -1, version)) for session, done in self.erasing.pop(key))

    def take(self) -> list[UserChange]:
        """Removes and returns the oldest waiting changes for the next group. Call exactly one of `committed` and `refused` for them."""
        taken = self.waiting[: self._config.commit_records_max]
        del self.waiting[: self._config.commit_records_max]
        settle_changes(taken, self._mailbox_store.log.head, self._config.topics_per_user_max)
        return taken

    def committed(self, changes: Iterable[UserChange], now_ms: int) -> None:
        """The group with these changes is durable: apply and answer them."""
        self._subscribing = {change.mailbox.key for change in self.waiting if isinstance(change.record, Topics)}
        for change in changes:
            if isinstance(change.done, ErasureDone):
                self._connections.end_all(change.mailbox, now_ms)
                self._mailbox_store.erase(change.mailbox)
                if self._output.outcomes is not None:
                    self._output.outcomes.add(Outcome(change.mailbox.key, now_ms, ERASED))
                self.erasing.setdefault(change.mailbox.key, []).append((change.session, change.done))
                continue
            if isinstance(change.record, Marked):
                self._marked(change, change.record, now_ms)
            elif isinstance(change.record, Topics):
                change.mailbox.topics = change.record.topics
                self._broadcast_step.subscribed(change.mailbox)
            else:
                self._noted(change, change.record)
            self._mailbox_store.mark(change.mailbox)
            self._output.to_edges.append((change.session, change.done))

    def _noted(self, change: UserChange, record: Profiled | Noticed | Erased) -> None:
        apply_note(change.mailbox, record, 0)
        if isinstance(change.done, Followed) and isinstance(record, Noticed) and record.follow:
            follows = user_state_of(change.mailbox).follows
            change.done.timers = {rule: follows[rule] for rule in record.follow if rule in follows}
        self._broadcast_step.wake(change.mailbox)

    def _marked(self, change: UserChange, record: Marked, now_ms: int) -> None:
        mailbox = change.mailbox
        apply_mark(mailbox, record)
        self._mailbox_store.counts_changed(mailbox)
        if change.applied is not None:
            change.applied()
        if acknowledged := acknowledged_by(mailbox, record):
            self._connections.settle_seqs(mailbox, acknowledged, now_ms)

    def erased(self, keys: Iterable[str]) -> None:
        """Nothing of these users is in storage any more: answer those who asked for it."""
        for key in keys:
            self._output.to_edges.extend(self.erasing.pop(key, ()))

    def refused(self, changes: Sequence[UserChange]) -> None:
        """The group with these changes was refused. They are answered by `storage_back`; changes that no group carried are answered now."""
        self._storage_away = True
        self._undecided = changes
        self._output.to_edges.extend((change.session, change.failed) for change in self.waiting)
        self.waiting.clear()
        self._subscribing = set()

    def storage_back(self) -> None:
        """The refused group is rolled back: answer its changes "unavailable"."""
        self._storage_away = False
        undecided, self._undecided = self._undecided, ()
        self._output.to_edges.extend((change.session, change.failed) for change in undecided)


def _note_event(mailbox: Mailbox, record: Happened, context: RequestContext) -> UserChange:
    noticed = Noticed(mailbox.key, record.at_ms, record.event, record.follow, record.ended, record.delivery)
    return UserChange(mailbox, context.session, noticed, Followed(record.ref, OK), Followed(record.ref, UNAVAILABLE))


def _erase(mailbox: Mailbox, record: Erase, context: RequestContext) -> UserChange:
    return UserChange(mailbox, context.session, Erased(mailbox.key), ErasureDone(record.ref, OK), ErasureDone(record.ref, UNAVAILABLE))
