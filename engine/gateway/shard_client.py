"""The requests of an edge to shards and schedulers: publish, acknowledge, refuse, probe, inspect and move timers.

Each is one call (`engine.gateway.pending_calls`), which repeats its records and ends at its deadline.

Every request raises `Overloaded` when too many records await answers or would wait too long (nothing was sent then), or when the peer
refused it under load, and `Unavailable` while the breaker of its shard is open; all but `post` also when no answer came in time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import Struct

from engine.config import Config
from engine.core.model.constants import HIGH, LOW, NORMAL
from engine.core.model.routing import partition_of_timer, split_key
from engine.core.model.trace_context import TRACE_BYTES
from engine.core.wire import records as wire
from engine.core.wire.outcomes import Outcome, OutcomeLog
from engine.errors import Overloaded, Unavailable
from engine.gateway.metrics import EdgeMetrics
from engine.gateway.pending_calls import PendingCall, PendingCalls
from engine.gateway.ports import EdgeContext
from engine.http.problems import over_quota, unprocessable, whole_seconds
from engine.publish.broadcasts import BroadcastPublisher
from engine.publish.drafts import Draft
from engine.publish.results import (
    PUT_OFF,
    ItemResult,
    broadcast_result,
    explain_records,
    over_result,
    raise_unless_taken,
    records_of,
    results_of,
    status_of,
)

_Answer = TypeVar("_Answer", bound=Struct)

_priority_of: Final = attrgetter("envelope.priority")

_NOT_TAKEN: Final = frozenset((wire.PUBLISH_STATUS[wire.CONFLICT], wire.PUBLISH_STATUS[wire.OVERLOADED]))


class OpenedQuestions(NamedTuple):
    """The questions of some drafts, which are stored.

    Attributes:
        over: the places of drafts that are not to be published: their questions are over.
        forget: called with the places of messages that were not accepted. Forgets their questions, if they were not there before.
    """

    over: Collection[int]
    forget: Callable[[Collection[int]], Awaitable[None]]


OpenQuestions = Callable[[Sequence[Draft]], Awaitable[OpenedQuestions]]
"""Stores the questions of these drafts before their messages are published. Raises Problem or StorageUnavailable: nothing is
to be published."""


async def _refuse_questions(_drafts: Sequence[Draft]) -> OpenedQuestions:
    """Of an edge that keeps no questions."""
    raise unprocessable("this engine keeps no questions", [{"path": "$.ask", "detail": "this engine keeps no questions"}])


class ShardClient:
    """The requests of one edge.

    Args:
        context: time and ids.
        pending_calls: records await their answers there.
        broadcast_publisher: appends broadcasts to their log.
        formats: the newest that may be written (`engine.core.model.formats`).
    """

    def __init__(
        self,
        config: Config,
        context: EdgeContext,
        pending_calls: PendingCalls,
        broadcast_publisher: BroadcastPublisher,
        metrics: EdgeMetrics,
        formats: Callable[[], int],
    ) -> None:
        self._config = config
        self._wall_ms = context.wall_ms
        self._clock = context.clock
        self.new_id = context.new_id
        self.new_timer_name = context.new_timer_name
        self._calls = pending_calls
        self._broadcast_publisher = broadcast_publisher
        self._metrics = metrics
        self._formats = formats
        self.open_questions: OpenQuestions = _refuse_questions  # a feature stores them
        self.outcomes = OutcomeLog() if config.history_url else None  # for the history; None: there is none

    async def post(self, drafts: Sequence[Draft]) -> list[ItemResult]:
        """Publish: immediate drafts to their shards or the broadcast log, delayed ones to their scheduler. One future for all of them.

        Returns one result per draft, in the order of `drafts`.

        Raises:
            Overloaded: nothing was sent.
            Problem: at least one draft was not accepted, or not in time (see `engine.publish.results`).
        """
        started_ms = self._clock()
        apart: dict[int, ItemResult] = {}  # results of drafts that no shard and no scheduler gets
        to_log, asks = [], False
        for place, draft in enumerate(drafts):
            asks = asks or draft.question is not None
            if draft.topic is not None and not draft.due_ms:
                to_log.append(place)
        opened = await self.open_questions(drafts) if asks else None
        if opened is not None:
            apart = {place: over_result(drafts[place]) for place in opened.over}
            to_log = [place for place in to_log if place not in apart]
        others = drafts
        if to_log or apart:
            others = [draft for place, draft in enumerate(drafts) if place not in apart and (draft.topic is None or draft.due_ms)]
        tenant = split_key(drafts[0].key)[0] if drafts else ""
        call = self._begin_post(others, tenant) if opened is None else await self._begin_asking(others, tenant, opened, len(drafts))
        broadcast = await self._broadcast([drafts[place] for place in to_log]) if to_log else []
        await call.done
        results = results_of(others, call)
        statuses = list(map(status_of, results))
        if PUT_OFF in statuses:
            await self._schedule_deferred(others, call, results)
        apart.update(zip(to_log, broadcast, strict=True))
        for place in sorted(apart):
            results.insert(place, apart[place])
        if PUT_OFF in statuses or apart:
            statuses = list(map(status_of, results))
        if opened is not None:
            await opened.forget([place for place, status in enumerate(statuses) if status in _NOT_TAKEN])
        if drafts:
            envelope = drafts[0].envelope
            self._metrics.publish_took(self._clock() - started_ms, envelope.id, self._wall_ms(), envelope.body[:TRACE_BYTES])
            self._metrics.published(tenant, statuses)
        if self.outcomes is not None:
            self._record(drafts, results)
        raise_unless_taken(results, statuses, drafts, call.answers)
        return results

    def _record(self, drafts: Sequence[Draft], results: Sequence[ItemResult]) -> None:
        """Record what was scheduled, and broadcasts; shards record the rest."""
        for draft, result in zip(drafts, results, strict=True):
            envelope = draft.envelope
            if result.status == "scheduled":
                self.record(
                    draft.key, "scheduled", envelope.id, reason=result.reason, until_ms=result.scheduled_at, timer=result.scheduled_id
                )
            elif draft.topic is not None and result.status == "accepted":
                self.record(draft.key, "broadcast", envelope.id)

    def record(self, key: str, event: str, id: str = "", **members: Any) -> None:
        """Record an outcome of a user, see `engine.core.wire.outcomes.Outcome`; no effect without a history."""
        if self.outcomes is not None:
            self.outcomes.add(Outcome(key, self._wall_ms(), event, id, **members))

    def _begin_post(self, drafts: Sequence[Draft], tenant: str) -> PendingCall:
        return self._calls.begin(
            len(drafts),
            partial(records_of, drafts, now_ms=self._wall_ms(), new_timer_name=self.new_timer_name),
            list(map(_priority_of, drafts)),
            tenant,
        )

    async def _begin_asking(self, others: Sequence[Draft], tenant: str, opened: OpenedQuestions, count: int) -> PendingCall:
        """As `_begin_post`, of a request of `count` drafts with questions, which are forgotten when nothing is sent."""
        try:
            return self._begin_post(others, tenant)
        except (Overloaded, Unavailable):
            await opened.forget(range(count))
            raise

    async def _broadcast(self, drafts: Sequence[Draft]) -> list[ItemResult]:
        appended = await self._broadcast_publisher.append(drafts)
        self._metrics.broadcasts += sum(one is not None and one.status == wire.ACCEPTED for one in appended)
        return [broadcast_result(draft, one) for draft, one in zip(drafts, appended, strict=True)]

    async def _schedule_deferred(self, drafts: Sequence[Draft], call: PendingCall, results: list[ItemResult]) -> None:
        """Schedule what shards deferred for when it may be delivered, under its id, as if its publisher had asked for that time.

        Replaces the answers in `call` and `results`. Nothing of a deferred message is stored before. So when a process dies meanwhile, the
        publisher gets no answer and its repeat is decided anew; a repeat of what is scheduled, or was delivered, is recognised by the
        scheduler's storage, which has the ids of both.
        """
        places = [place for place, result in enumerate(results) if result.status == PUT_OFF]
        deferred = [drafts[place] for place in places]
        for place in places:
            drafts[place].due_ms = call.answers[place].until_ms
        try:
            scheduling = self._begin_post(deferred, call.tenant)
        except Overloaded as error:
            for place in places:
                results[place].status, results[place].reason = wire.PUBLISH_STATUS[wire.OVERLOADED], str(error)
            return
        await scheduling.done
        for index, (place, result) in enumerate(zip(places, results_of(deferred, scheduling), strict=True)):
            if result.status == "scheduled":
                result.reason = results[place].reason
            results[place], call.answers[place] = result, scheduling.answers[index]

    async def settle(self, key: str, seq: int, ids: list[str], client_ms: int = 0, epoch: str = "") -> str:
        """Acknowledge without a connection; `seq` -1 when only ids are given, `epoch` that of `seq`, "" when unknown.

        Returns "" or why nothing was acknowledged.
        """
        self._metrics.acks += 1
        answer = await self.ask(wire.Settled, lambda ref: wire.Settle(ref, key, seq, ids, client_ms, epoch), HIGH)
        return answer.error

    async def refuse(self, key: str, ids: list[str], reason: str) -> None:
        """Refuse messages without a connection; on return they are in the dead-letter stream, or were settled before."""
        await self.ask(wire.Settled, lambda ref: wire.Refuse(ref, key, ids, reason), HIGH)

    async def probe(self, key: str, client: str, seq: int) -> wire.Probed:
        """Return whether the user is online, and its newest sequence number."""
        return await self.ask(wire.Probed, lambda ref: wire.Probe(ref, key, client, seq), HIGH)

    async def subscribe(self, key: str, add: Sequence[str], remove: Sequence[str]) -> wire.Subscribed:
        """Change a user's subscriptions; with nothing to change, read them."""
        return await self.ask(wire.Subscribed, lambda ref: wire.Subscribe(ref, key, list(add), list(remove)))

    async def read_backlog(self, key: str, limit: int, bytes_max: int, *, unread: bool = False, before: int = 0) -> wire.BacklogIs:
        """The newest pending messages of a user, at most `limit`, of about `bytes_max` bytes, as `ReadBacklog` describes them."""
        return await self.ask(wire.BacklogIs, lambda ref: wire.ReadBacklog(ref, key, limit, bytes_max, unread, before), LOW)

    async def explain(self, drafts: Sequence[Draft]) -> list[wire.Explained]:
        """Return what the shards would decide about these drafts for users, in their order; nothing is stored."""
        call = self._calls.begin(len(drafts), lambda base: explain_records(drafts, base), (NORMAL,) * len(drafts))
        await call.done
        for answer in call.answers:
            _raise_unless_answered(answer)
        return call.answers

    async def schedule(self, timer: wire.Timer) -> wire.TimerAnswer:
        """Arm a timer under its scheduled id, if there never was one."""
        answer = await self.ask(wire.TimerAnswer, lambda ref: wire.Schedule(ref, False, timer))
        if answer.status == wire.SCHEDULED and not answer.timers:
            self.record(timer.key, "scheduled", timer.envelope.id, until_ms=timer.due_ms, timer=timer.sid)
        return answer

    async def schedule_all(self, timers: Sequence[wire.Timer], formats: int) -> bool:
        """Arm timers under their scheduled ids. Returns whether none of them was cancelled, or has fired: such a one is not armed again.

        Args:
            formats: that have these timers (`engine.core.model.formats`).

        Raises:
            Overloaded, Unavailable: not all may be armed.
        """
        if formats > self._formats():
            raise Unavailable(wire.UPGRADING, wire.UPGRADING_RETRY_MS)
        call = self._calls.begin(
            len(timers),
            lambda base: [wire.Schedule(ref, False, timer) for ref, timer in enumerate(timers, base)],
            [timer.envelope.priority for timer in timers],
        )
        await call.done
        for answer in call.answers:
            if answer is None or answer.status not in (wire.SCHEDULED, wire.DUPLICATE):
                if answer is not None and answer.status == wire.OVERLOADED:
                    raise Overloaded(answer.detail or "a limit is reached", answer.retry_ms)
                raise Unavailable("no answer in time" if answer is None else answer.detail or "durable storage did not answer")
        return all(answer is not None and answer.detail != wire.GONE for answer in call.answers)

    async def inspect(self, tenant: str, sid: str) -> wire.TimerAnswer:
        """Read one timer of a tenant. A malformed id is NOT_FOUND like an unknown one; likewise in `reschedule` and `cancel`."""
        return await self._ask_timer(sid, lambda ref: wire.Inspect(ref, tenant, sid))

    async def reschedule(self, tenant: str, sid: str, due_ms: int) -> wire.TimerAnswer:
        answer = await self._ask_timer(sid, lambda ref: wire.Reschedule(ref, tenant, sid, due_ms))
        for timer in answer.timers if answer.status == wire.OK else ():
            self.record(timer.key, "rescheduled", timer.envelope.id, until_ms=timer.due_ms, timer=timer.sid)
        return answer

    async def cancel(self, tenant: str, sid: str) -> wire.TimerAnswer:
        """Cancel one timer. One that has been cancelled is cancelled: the publisher may not have had the answer."""
        known = await self.inspect(tenant, sid) if self.outcomes is not None else None  # whose it is, while it is there
        answer = await self._ask_timer(sid, lambda ref: wire.Cancel(ref, tenant, sid))
        if answer.status == wire.OK:
            self._metrics.cancelled(tenant)
        for timer in known.timers if known is not None and answer.status == wire.OK else ():
            self.record(timer.key, "cancelled", timer.envelope.id, until_ms=timer.due_ms, timer=sid)
        return answer

    async def list_timers(self, key: str, collapse: str = "", limit: int = 0, after: tuple[int, str] = (0, "")) -> wire.TimerAnswer:
        """The armed timers of one user, soonest first; those of one collapse key, or all.

        Args:
            limit: 0 for as many as one answer may have. `detail` of the answer says whether there are more.
            after: due time and scheduled id of the last timer of the page before.
        """
        return await self.ask(
            wire.TimerAnswer, lambda ref: wire.ListTimers(ref, key, limit or self._config.list_timers_max, collapse, *after)
        )

    async def every_timer(self, key: str, collapse: str = "") -> AsyncIterator[wire.Timer]:
        """All of them, a listing at a time. One that is moved meanwhile may be missing, or come twice. Raises Overloaded, Unavailable."""
        after, more = (0, ""), True
        while more:
            listed = await self.list_timers(key, collapse, after=after)
            if listed.status != wire.OK:
                raise (Overloaded if listed.status == wire.OVERLOADED else Unavailable)(listed.detail or "durable storage did not answer")
            for timer in listed.timers:
                yield timer
                after = timer.due_ms, timer.sid
            more = bool(listed.detail and listed.timers)

    async def cancel_all(self, key: str, collapse: str = "") -> wire.TimerAnswer:
        """Cancel the timers of one user that have not fired: those of one collapse key, or all. `count` is their number."""
        answer = await self.ask(wire.TimerAnswer, lambda ref: wire.CancelAll(ref, key, collapse), HIGH)
        if answer.status == wire.OK and answer.count:
            self._metrics.cancelled(split_key(key)[0], answer.count)
            self.record(key, "cancelled", reason=f"{answer.count} of {collapse}" if collapse else f"all {answer.count}")
        return answer

    async def _ask_timer(self, sid: str, build: Callable[[int], Struct]) -> wire.TimerAnswer:
        if partition_of_timer(sid) is None:
            return wire.TimerAnswer(-1, wire.NOT_FOUND)
        return await self.ask(wire.TimerAnswer, build, HIGH)

    async def ask(self, kind: type[_Answer], build: Callable[[int], Struct], priority: int = NORMAL) -> _Answer:
        """The answer, of this kind, to the request that `build` makes with its `ref`. Raises Overloaded, Unavailable, Problem."""
        call = self._calls.begin(1, lambda ref: [self._readable(build(ref))], (priority,))
        await call.done
        answer = call.answers[0]
        _raise_unless_answered(answer)
        assert isinstance(answer, kind)
        return answer

    def _readable(self, record: Struct) -> Struct:
        """Raises Unavailable while a process of an earlier version may run that does not read this request."""
        if wire.NEWER.get(type(record), 0) > self._formats():
            raise Unavailable(wire.UPGRADING, wire.UPGRADING_RETRY_MS)
        return record


def _raise_unless_answered(answer: Any) -> None:
    if answer is None:
        raise Unavailable("no answer in time")
    if type(answer) is wire.Rejected:
        if answer.detail == wire.USERS_FULL:
            raise over_quota("tenant_users_max", answer.detail, whole_seconds(answer.retry_ms))
        if answer.status == wire.OVERLOADED:
            raise Overloaded(answer.detail, answer.retry_ms)
        raise Unavailable(answer.detail, answer.retry_ms)
