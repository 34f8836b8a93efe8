"""What edges ask a shard about one user, without a connection: acknowledge, probe, subscribe, the profile; and
what would become of a message, or became of one (`engine.core.shard.explain`).

What is only looked up is answered at once. What is to be written down, a note, is durable before its answer:

    asked, waits -> in a group, as a journal record -> committed: the record is applied to the mailbox, the request is answered
                                                    -> refused: storage may have it until the rollback is through; then "unavailable"
                                                       is the truth

A request may come again when its answer was lost; a note says how things are, not how they change, so taking it twice is taking it
once. Of two notes about one thing the later one stands, at commit and at replay, which apply records in their order (`apply_note`).

Crash: what waits is lost and nobody was told otherwise, its edge asks again; what is in the journal is replayed.
Limit: one note per request, and edges bound the requests that await answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.core.commit.broadcast_step import BroadcastStep
from engine.core.commit.policy_step import ZoneOf
from engine.core.commit.user_step import UserChange, apply_note, user_state_of
from engine.core.journal.journal_records import Noticed, Profiled
from engine.core.mailbox.mailbox import Mailbox
from engine.core.shard.broadcast_audience import BroadcastAudience
from engine.core.shard.connections import Connections
from engine.core.shard.explain import explain, trace
from engine.core.shard.limits import ShardLimits
from engine.core.shard.mailbox_store import MailboxStore
from engine.core.shard.output import ShardOutput
from engine.core.wire.records import (
    OK,
    UNAVAILABLE,
    Explain,
    Followed,
    GetProfile,
    Happened,
    Probe,
    ProfileIs,
    SetProfile,
    Settle,
    Subscribe,
    Trace,
)

Question = Settle | Probe | Subscribe | SetProfile | GetProfile | Explain | Trace | Happened


class UserRequests:
    """The questions of one shard, and its notes. Answers go into the shard's output."""

    def __init__(
        self,
        limits: ShardLimits,
        mailbox_store: MailboxStore,
        connections: Connections,
        broadcast_step: BroadcastStep,
        broadcast_audience: BroadcastAudience,
        output: ShardOutput,
        zone_of: ZoneOf,
    ) -> None:
        self._mailbox_store = mailbox_store
        self._connections = connections
        self._broadcast_step = broadcast_step
        self._broadcast_audience = broadcast_audience
        self._limits = limits
        self._zone_of = zone_of
        self._output = output
        self._waiting: list[UserChange] = []
        self._undecided: Sequence[UserChange] = ()  # of a group that is being rolled back
        self._storage_away = False

    def __len__(self) -> int:
        """Notes that wait for a group."""
        return len(self._waiting)

    def ask(self, mailbox: Mailbox, session: str, record: Question, now_ms: int) -> None:
        """A question about a user whose mailbox is in memory."""
        if isinstance(record, Probe):
            self._connections.probe(mailbox, session, record, now_ms)
        elif isinstance(record, GetProfile):
            profile = None if mailbox.user_state is None else mailbox.user_state.profile
            self._output.to_edges.append((session, ProfileIs(record.ref, OK, profile, mailbox.seen_ms)))
        elif isinstance(record, Explain):
            limits = self._limits
            self._output.to_edges.append(
                (session, explain(mailbox, record, self._zone_of, limits.policy_limits, limits.windows_max, now_ms))
            )
        elif isinstance(record, Trace):
            self._output.to_edges.append((session, trace(mailbox, record.ref, record.id)))
        else:
            mailbox.active_ms = now_ms
            if isinstance(record, Settle):
                self._connections.settle(mailbox, session, record, now_ms)
            elif isinstance(record, Subscribe):
                self._broadcast_audience.subscribe(mailbox, session, record)
            elif isinstance(record, Happened):
                noticed = Noticed(mailbox.key, record.at_ms, record.event, record.follow, record.ended, record.delivery)
                self._note(UserChange(mailbox, session, noticed, Followed(record.ref, OK), Followed(record.ref, UNAVAILABLE)))
            else:
                done = ProfileIs(record.ref, OK, record.profile, mailbox.seen_ms)
                self._note(UserChange(mailbox, session, Profiled(mailbox.key, record.profile), done, ProfileIs(record.ref, UNAVAILABLE)))

    def _note(self, note: UserChange) -> None:
        if self._storage_away:
            self._output.to_edges.append((note.session, note.failed))
        else:
            self._waiting.append(note)

    def busy(self) -> set[str]:
        """Keys of the mailboxes that notes wait for."""
        return {note.mailbox.key for note in self._waiting}

    def take(self) -> list[UserChange]:
        """What the next group carries; then exactly one of `committed` and `refused` says what became of it."""
        taken, self._waiting = self._waiting, []
        return taken

    def committed(self, notes: Iterable[UserChange]) -> None:
        """They are durable: the mailboxes have them, and the edges are told."""
        for note in notes:
            apply_note(note.mailbox, note.record, 0)
            if isinstance(note.done, Followed) and isinstance(note.record, Noticed) and note.record.follow:
                follows = user_state_of(note.mailbox).follows
                note.done.timers = {rule: follows[rule] for rule in note.record.follow if rule in follows}
            self._mailbox_store.mark(note.mailbox)
            self._broadcast_step.wake(note.mailbox)
            self._output.to_edges.append((note.session, note.done))

    def refused(self, notes: Sequence[UserChange]) -> None:
        """Storage is away: those that no group carried are answered. Those of the group wait for `storage_back`."""
        self._storage_away = True
        self._undecided = notes
        self._output.to_edges.extend((note.session, note.failed) for note in self.take())

    def storage_back(self) -> None:
        """The group is not in the journal: what it carried is answered."""
        self._storage_away = False
        undecided, self._undecided = self._undecided, ()
        self._output.to_edges.extend((note.session, note.failed) for note in undecided)
