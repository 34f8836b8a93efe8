"""Applications that publish: one item after another, under the same id until there is an answer, now or delayed, some moved or cancelled.

The way from a publisher to an edge is HTTP: an answer may be lost with the edge, and then the publisher asks again, elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

import msgspec

from engine import publishing
from engine.auth import Principal
from engine.core.batch import ALREADY_FIRED, NOT_FOUND, OK, OVERLOADED, UNAVAILABLE
from engine.errors import EngineError, Unavailable
from engine.problems import Problem
from tests.sim.books import Books
from tests.sim.cluster import Cluster
from tests.sim.loop import Process

_WIRE_S: Final = 0.001
_APP: Final = Principal("t", "app", frozenset(("publish",)), 4_000_000_000)


class Item:
    """What is published, and what became of it."""

    def __init__(self, key: str, id: str, named: bool, fields: dict[str, Any]) -> None:
        self.key = key
        self.id = id  # the publisher's, or empty
        self.named = named
        self.body = msgspec.json.encode({"user": key.partition(":")[2], "type": "sim.item", **({"id": id} if named else {}), **fields})
        self.delayed = "delay" in fields
        self.retain = bool(fields.get("retain", True))
        self.done = False
        self.tries = 0
        self.sid = ""


class Publisher:
    """Publishes for ever, at a mean interval, until it is told to stop; then it only brings to an end what it began."""

    def __init__(
        self,
        cluster: Cluster,
        books: Books,
        keys: list[str],
        number: int,
        seed: int,
        interval_s: float,
        delays: bool,
        tell: Callable[..., None],
    ) -> None:
        self._cluster = cluster
        self._loop = cluster.loop
        self._books = books
        self._keys = keys
        self._name = f"p{number}"
        self._rng = Random(f"{seed}:publisher {number}")
        self._interval_s = interval_s
        self._delays = delays
        self._tell = tell
        self._count = 0
        self._stopped = False
        self._past: list[Item] = []
        self.open: dict[Item, None] = {}  # in order: a set's depends on addresses
        self._later(self._rng.random() * interval_s, self._act)

    def _later(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        self._loop.call_later(delay_s, act, *args, context=self._loop.outside)

    def stop(self) -> None:
        self._stopped = True

    def _act(self) -> None:
        if self._stopped:
            return
        rng = self._rng
        self._later(rng.expovariate(1 / self._interval_s), self._act)
        way = rng.random()
        if way < 0.08 and self._past:
            self._publish(rng.choice(self._past))  # it does not remember that it was answered
        elif way < 0.2 and self._past:
            self._about(rng.choice(self._past))
        else:
            for _ in range(rng.choice((1, 1, 1, 2, 6))):
                self._publish(self._make())

    def _make(self) -> Item:
        rng = self._rng
        self._count += 1
        key = rng.choice(self._keys)
        fields: dict[str, Any] = {"data": {"n": self._count}, "priority": rng.choice(("high", "normal", "normal", "low"))}
        named = rng.random() < 0.8
        way = rng.random()
        if way < 0.25 and self._delays:
            fields["delay"] = rng.choice((0.01, 0.05, 0.2, 0.5, 1.5))
        elif way < 0.3:
            fields["retain"] = False
        elif way < 0.35:
            fields["ttl"] = rng.choice((0.05, 0.3, 1.0))
        item = Item(key, f"{self._name}-{self._count}" if named else "", named, fields)
        self.open[item] = None
        if named:
            self._past.append(item)
        return item

    # -- Publishing. --------------------------------------------------------------------------------------------------
    def _publish(self, item: Item) -> None:
        edges = self._cluster.edges()
        if not edges:
            self._later(0.1, self._publish, item)
            return
        process, edge = self._rng.choice(edges)
        attempt = Attempt(self, item, process)
        self._loop.call_later(_WIRE_S * (0.3 + self._rng.random()), attempt.arrive, edge, context=process.context)
        self._later(self._cluster.config.publish_timeout_ms / 1000 + 0.3, attempt.give_up)

    def ended(self, item: Item, again_s: float | None) -> None:
        """An attempt is over; it is made again after `again_s` unless that is None."""
        if again_s is None:
            item.done = True
            self.open.pop(item, None)
        elif not item.done:
            item.tries += 1
            if not item.named or (not self._stopped and item.tries > 3 and self._rng.random() < 0.2):
                self.open.pop(item, None)  # nobody can repeat what has no id; and some give up
            else:
                self._later(again_s, self._publish, item)

    def answered(self, item: Item, result: publishing.Result) -> float | None:
        """One item's result; returns after how many seconds to try again, None when it is settled."""
        books, key = self._books, item.key
        self._tell(
            key, f"{self._name} is told that {result.id} is {result.status}{f' as {result.seq}' if result.seq else ''} {result.reason}"
        )
        if result.status in {"accepted", "duplicate"} and result.seq:
            books.answered(key, result.id, result.status, result.seq)
        elif result.status == "scheduled" or (result.status == "duplicate" and result.scheduled_id):
            if result.status == "scheduled" or result.scheduled_at:
                item.sid = result.scheduled_id
                books.scheduled(key, result.scheduled_id, result.scheduled_at)
        elif result.status == "unavailable":
            if "may have been accepted" not in result.reason and not item.delayed:
                books.answered_unavailable(key, result.id)
            return 0.05 + self._rng.random() * 0.2
        elif result.status == "overloaded":
            return 0.1 + self._rng.random() * 0.2
        elif result.status == "conflict":
            books.fail(f"{result.id} is a conflict, and it was always the same", key)
        elif result.status == "suppressed" and item.retain:
            books.fail(f"{result.id} is suppressed: {result.reason}", key)
        return None

    # -- Timers. ------------------------------------------------------------------------------------------------------
    def _about(self, item: Item) -> None:
        """Cancel or move a delayed message; or publish something else under a known id."""
        edges = self._cluster.edges()
        if not edges:
            return
        process, edge = self._rng.choice(edges)
        if item.sid and self._rng.random() < 0.6:
            self._loop.call_later(_WIRE_S, self._begin, self._cancel, item, edge.gateway, context=process.context)
        elif item.sid:
            due_ms = self._cluster.wall_ms() + self._rng.choice((0, 100, 400, 1000))
            self._loop.call_later(_WIRE_S, self._begin, self._move, item, edge.gateway, due_ms, context=process.context)
        else:
            self._loop.call_later(_WIRE_S, self._begin, self._contradict, item, edge.gateway, context=process.context)

    def _begin(self, ask: Callable[..., Any], *args: Any) -> None:
        self._loop.create_task(ask(*args))

    async def _cancel(self, item: Item, gateway: Any) -> None:
        self._tell(item.key, f"{self._name} cancels {item.sid}")
        may_be_cancelled = self._books.timers[item.sid].cancel_asked
        self._books.cancelling(item.sid)
        try:
            answer = await gateway.requests.cancel("t", item.sid)
        except EngineError:
            return
        self._tell(item.key, f"{self._name} is told {answer.status} about cancelling {item.sid}")
        if answer.status == OK:
            self._loop.call_soon(self._books.cancelled, item.sid, context=self._loop.outside)
        elif answer.status == NOT_FOUND and not may_be_cancelled:
            self._loop.call_soon(self._books.fail, f"{item.sid} is not found", item.key, context=self._loop.outside)

    async def _move(self, item: Item, gateway: Any, due_ms: int) -> None:
        self._tell(item.key, f"{self._name} moves {item.sid} to {due_ms}")
        self._books.moving(item.sid, due_ms)
        try:
            answer = await gateway.requests.reschedule("t", item.sid, due_ms)
        except EngineError:
            return
        if answer.status not in {OK, ALREADY_FIRED, OVERLOADED, UNAVAILABLE} and not self._books.timers[item.sid].cancel_asked:
            self._loop.call_soon(self._books.fail, f"moving {item.sid}: {answer.status}", item.key, context=self._loop.outside)

    async def _contradict(self, item: Item, gateway: Any) -> None:
        """Another payload under an id that was accepted must be refused."""
        user = self._books.user(item.key)
        known = item.id in user.accepted
        body = msgspec.json.encode({"user": item.key.partition(":")[2], "type": "sim.other", "id": item.id})
        if not known:
            return
        try:
            results = await gateway.requests.post(_drafts(self._cluster, body))
        except Problem as problem:
            if problem.status not in {409, 503, 429}:
                self._loop.call_soon(self._books.fail, f"{problem.status} for a contradiction", item.key, context=self._loop.outside)
            self._books.seen["contradictions refused"] += problem.status == 409
            return
        except Unavailable:
            return
        self._loop.call_soon(
            self._books.fail, f"{item.id} is answered {results[0].status} with another payload", item.key, context=self._loop.outside
        )


class Attempt:
    """One HTTP request."""

    def __init__(self, publisher: Publisher, item: Item, process: Process) -> None:
        self._publisher = publisher
        self._item = item
        self._process = process
        self._over = False
        self._asked = ""

    def arrive(self, edge: Any) -> None:
        """At the edge, as the edge's code."""
        publisher = self._publisher
        publisher._loop.create_task(self._run(edge.gateway))

    async def _run(self, gateway: Any) -> None:
        publisher, item = self._publisher, self._item
        drafts = _drafts(publisher._cluster, item.body, gateway.requests.new_id)
        self._asked = drafts[0].id
        publisher._books.asked(item.key, drafts[0].id)
        publisher._tell(item.key, f"{publisher._name} publishes {drafts[0].id}{' delayed' if drafts[0].due_ms else ''} at {self._process}")
        problem: Problem | None = None
        try:
            results = await gateway.requests.post(drafts)
        except Problem as raised:
            problem = raised
            results = [msgspec.convert(result, publishing.Result) for result in raised.members.get("results", ())]
        except EngineError:  # Overloaded: not even tried
            results = []
        loop = publisher._loop
        if not self._process.alive:
            return
        loop.call_later(_WIRE_S * (0.3 + publisher._rng.random()), self._answered, results, problem, context=loop.outside)

    def _answered(self, results: list[publishing.Result], problem: Problem | None) -> None:
        if self._over:
            return  # the publisher has given up waiting: it does not know
        self._over = True
        publisher, item = self._publisher, self._item
        if not results:
            publisher.ended(item, 0.2)
            return
        again_s = publisher.answered(item, results[0])
        if (again_s is None) != (problem is None):
            publisher._books.fail(f"{results[0].id}: {results[0]} with {problem}", item.key)
        publisher.ended(item, again_s)

    def give_up(self) -> None:
        """No answer: the edge died, or is slow. Whether it was accepted nobody knows."""
        if not self._over:
            self._over = True
            self._publisher.ended(self._item, 0.02)


def _drafts(cluster: Cluster, body: bytes, new_id: Callable[[], str] = lambda: "") -> list[publishing.Draft]:
    return publishing.parse(body, "application/json", _APP, cluster.config, cluster.wall_ms(), new_id)
