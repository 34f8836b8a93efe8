"""Applications that publish: one item after another, under the same id until there is an answer, now or delayed, some moved or cancelled.

The way from a publisher to an edge is HTTP: an answer may be lost with the edge, and then the publisher asks again, elsewhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random
from typing import Any, Final
from zlib import crc32

import msgspec
from msgspec import Struct

from engine.auth.tokens import Principal
from engine.core.inbox.inbox import SEEN
from engine.core.model.category import CHOICES
from engine.core.policy.conditions import Conditions
from engine.core.policy.preferences import PreferencesPatch
from engine.core.policy.profile import Profile
from engine.core.wire.records import ALREADY_FIRED, NOT_FOUND, OK, OVERLOADED, UNAVAILABLE, ProfileIs, SetProfile
from engine.errors import EngineError, Unavailable
from engine.features.inbox.inboxes import mark_all
from engine.features.policy.profiles import ask_change
from engine.http.problems import Problem
from engine.publish.drafts import Draft, parse_drafts
from engine.publish.media_types import Content
from engine.publish.results import ItemResult
from tests.sim.books import Books
from tests.sim.broadcastbook import TEAM
from tests.sim.choicebook import CHOSEN, WISHES
from tests.sim.cluster import DATA_EPOCH, Cluster
from tests.sim.cuts import OUTSIDE, Place
from tests.sim.limitbook import CATEGORIES
from tests.sim.loop import Process
from tests.sim.wishbook import COLLECTOR, SLEEPER

TOPIC: Final = "news"
_WIRE_S: Final = 0.001
_MARKS_S: Final = 0.5
_CHANGES_S: Final = 0.15
_APP: Final = Principal("t", "app", frozenset(("publish",)), 4_000_000_000)


_WINDOWS_S: Final = (0.05, 0.3, 1.0)
_LASTING_S: Final = (0.3, 1.5, 4.0)


class Manners(Struct, frozen=True):
    """What the publishers of a world make use of."""

    interval_s: float
    delays: bool
    windows: bool
    conflation: bool
    broadcasts: bool
    categories: bool
    wishes: bool = False  # users with a profile; what quiet hours hold back is a delayed message from then on
    lasting: bool = False  # windows outlast the time that an idle mailbox stays in memory
    members: bool = False  # some broadcasts are for a topic that only tokens name
    choices: bool = False  # users change their preferences all the time


class Item:
    """What is published, and what became of it. `topic` is that of a broadcast, None for a message to one user."""

    def __init__(
        self, key: str, id: str, named: bool, fields: dict[str, Any], topic: str | None = None, *, deferrable: bool = False
    ) -> None:
        self.key = key
        self.id = id  # the publisher's, or empty
        self.named = named
        self.topic = topic
        whom = {"user": key.partition(":")[2]} if topic is None else {"topic": topic} if topic else {"broadcast": True}
        self.body = msgspec.json.encode({**whom, "type": "sim.item", **({"id": id} if named else {}), **fields})
        self.delayed = "delay" in fields or deferrable
        self.data = fields.get("data")
        self.weaker = {name: fields[name] for name in ("ttl", "retain", "collapse") if name in fields}
        self.retain = bool(fields.get("retain", True))
        self.category = str(fields.get("category", ""))
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
        manners: Manners,
        tell: Callable[..., None],
    ) -> None:
        self._cluster = cluster
        self._loop = cluster.loop
        self._books = books
        self._keys = keys
        self.name = f"p{number}"
        self._place = Place(self.name, OUTSIDE)
        self._rng = Random(f"{seed}:publisher {number}")
        self._manners = manners
        self._tell = tell
        self._count = 0
        self._stopped = False
        self._past: list[Item] = []
        self.open: dict[Item, None] = {}  # in order: a set's depends on addresses
        self._later(self._rng.random() * manners.interval_s, self._act)
        self._marker = Random(f"{seed}:marks of {number}")
        self._later(self._marker.random() * _MARKS_S, self._mark)
        self._chooser = Random(f"{seed}:choices of {number}")
        self._member_rng = Random(f"{seed}:members of {number}")
        self._changing: set[tuple[str, str]] = set()  # a change of this category of this user is under way
        if manners.choices and number == 0:
            self._later(self._chooser.random() * _CHANGES_S, self._choose)
        if manners.wishes and number == 0:
            for key in keys:
                wishes = COLLECTOR if Random(f"{seed}:wishes of {key}").random() < 0.4 else SLEEPER
                self._later(0.01, self._wish, key, wishes)

    def _later(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        self._loop.call_later(delay_s, act, *args, context=self._loop.outside)

    def stop(self) -> None:
        self._stopped = True

    def _act(self) -> None:
        if self._stopped:
            return
        rng = self._rng
        self._later(rng.expovariate(1 / self._manners.interval_s), self._act)
        way = rng.random()
        if way < 0.08 and self._past:
            self._publish(rng.choice(self._past))  # it does not remember that it was answered
        elif way < 0.2 and self._past:
            self._about(rng.choice(self._past[-8:] if rng.random() < 0.5 else self._past))
        elif way < 0.24 and self._manners.broadcasts:
            self._subscribe(rng.choice(self._keys))
        else:
            for _ in range(rng.choice((1, 1, 1, 2, 6))):
                self._publish(self._make())

    def _make(self) -> Item:
        rng = self._rng
        self._count += 1
        key = rng.choice(self._keys)
        fields: dict[str, Any] = {"data": {"n": self._count}, "priority": rng.choice(("high", "normal", "normal", "low"))}
        named = rng.random() < 0.8
        topic = None
        kind = rng.random()
        if kind < 0.15 and self._manners.broadcasts:
            topic = self._topic()
            fields["retain"] = rng.random() < 0.9
        elif kind < 0.45 and self._manners.windows:
            windows_s = _LASTING_S if self._manners.lasting else _WINDOWS_S
            fields["collapse"] = {"key": rng.choice("ab"), "window": rng.choice(windows_s), "leading": rng.random() < 0.3}
        elif kind < 0.65 and self._manners.conflation:
            fields["collapse"] = {"key": rng.choice("cd")}
        way = rng.random()
        if topic is not None:
            pass
        elif way < 0.25 and self._manners.delays:
            fields["delay"] = rng.choice((0.01, 0.05, 0.2, 0.5, 1.5))
        elif self._manners.wishes:
            pass  # what does not last would be gone when quiet hours end
        elif way < 0.3:
            fields["retain"] = False
        elif way < 0.35:
            window_s = fields["collapse"].get("window", 0) if "collapse" in fields else 0
            fields["ttl"] = rng.choice((0.05, 0.3, 1.0)) + window_s  # a window's length must fit
        at_once = topic is None and "delay" not in fields and "window" not in fields.get("collapse", {})
        if self._manners.categories and at_once and rng.random() < 0.5:
            fields["category"] = rng.choice(("few", "few", "once"))
        elif self._manners.choices and at_once:
            fields["category"] = self._chooser.choice(("red", "blue"))
        item = Item(key, f"{self.name}-{self._count}" if named else "", named, fields, topic, deferrable=self._manners.wishes)
        self.open[item] = None
        if named and topic is None:
            self._past.append(item)
        return item

    def _topic(self) -> str:
        """Of a broadcast; empty for one to everyone."""
        topic = self._rng.choice(("", "", TOPIC))
        return TEAM if self._manners.members and self._member_rng.random() < 0.4 else topic

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

    def answered(self, item: Item, result: ItemResult) -> float | None:
        """One item's result; returns after how many seconds to try again, None when it is settled."""
        books, key = self._books, item.key
        self._tell(
            key, f"{self.name} is told that {result.id} is {result.status}{f' as {result.seq}' if result.seq else ''} {result.reason}"
        )
        if item.topic is not None:
            return self._answered_broadcast(item.topic, item, result)
        if result.status in {"accepted", "duplicate"} and result.seq:
            books.answered(key, result.id, result.status, result.seq)
        elif result.status == "scheduled" or (result.status == "duplicate" and result.scheduled_id):
            if result.status == "scheduled" or result.scheduled_at:
                item.sid = result.scheduled_id
                books.scheduled(key, result.scheduled_id, result.scheduled_at)
        elif result.status == "unavailable":
            books.refused(key, result.id)
            if "may have been accepted" not in result.reason and not item.delayed:
                books.answered_unavailable(key, result.id)
            return 0.05 + self._rng.random() * 0.2
        elif result.status == "merged":
            books.answered_merged(key, result.id)
        elif result.status == "overloaded":
            if not item.delayed:
                books.answered_overloaded(key, result.id)
            return 0.1 + self._rng.random() * 0.2
        elif result.status == "conflict":
            books.fail(f"{result.id} is a conflict, and it was always the same", key)
        elif result.status == "suppressed" and (item.retain or not result.reason.startswith("nobody is connected")):
            books.answered_suppressed(key, result.id, item.category, result.reason)
        return None

    def _answered_broadcast(self, topic: str, item: Item, result: ItemResult) -> float | None:
        if result.status == "unavailable":
            return 0.05 + self._rng.random() * 0.2
        if result.status not in {"accepted", "duplicate"}:
            self._books.fail(f"the broadcast {result.id} is {result.status}", item.key)
        self._books.answered_announced(item.key, topic, result.id)
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

    def cancel_next(self) -> None:
        """Change one's mind about what is due next: at the worst moment, when the world calls it."""
        edges = self._cluster.edges()
        timers = self._books.timers
        waiting = [item for item in self._past if item.sid and timers[item.sid].owed]
        if edges and waiting:
            process, edge = self._rng.choice(edges)
            item = min(waiting, key=lambda item: max(timers[item.sid].dues))
            self._loop.call_later(_WIRE_S, self._begin, self._cancel, item, edge.gateway, context=process.context)

    def _begin(self, ask: Callable[..., Any], *args: Any) -> None:
        self._loop.create_task(ask(*args))

    async def _cancel(self, item: Item, gateway: Any) -> None:
        self._tell(item.key, f"{self.name} cancels {item.sid}")
        self._books.cancelling(item.sid)
        self._books.history.cancelled(item.key, item.id)
        try:
            answer = await gateway.shard_client.cancel("t", item.sid)
        except EngineError:
            return
        self._tell(item.key, f"{self.name} is told {answer.status} about cancelling {item.sid}")
        if answer.status == OK:
            self._loop.call_soon(self._books.cancelled, item.sid, context=self._loop.outside)
        elif answer.status == NOT_FOUND and self._books.timers[item.sid].cancels == 1:
            self._loop.call_soon(self._books.fail, f"{item.sid} is not found", item.key, context=self._loop.outside)

    async def _move(self, item: Item, gateway: Any, due_ms: int) -> None:
        self._tell(item.key, f"{self.name} moves {item.sid} to {due_ms}")
        self._books.moving(item.sid, due_ms)
        self._books.history.moved(item.key, item.id, due_ms)
        try:
            answer = await gateway.shard_client.reschedule("t", item.sid, due_ms)
        except EngineError:
            return
        if answer.status not in {OK, ALREADY_FIRED, OVERLOADED, UNAVAILABLE} and not self._books.timers[item.sid].cancels:
            self._loop.call_soon(self._books.fail, f"moving {item.sid}: {answer.status}", item.key, context=self._loop.outside)

    # -- Profiles. ----------------------------------------------------------------------------------------------------
    def _wish(self, key: str, wishes: Profile) -> None:
        """A user's profile is to be kept; asked for until the journal has it."""
        edges = self._cluster.edges()
        if edges and not self._books.user(key).wishes.wanted:
            process, edge = self._rng.choice(edges)
            self._loop.call_later(_WIRE_S, self._begin, self._set_profile, key, wishes, edge.gateway, context=process.context)
        if not self._books.user(key).wishes.wanted:
            self._later(0.05, self._wish, key, wishes)

    async def _set_profile(self, key: str, wishes: Profile, gateway: Any) -> None:
        with contextlib.suppress(EngineError):
            answer = await gateway.shard_client.ask(ProfileIs, lambda ref: SetProfile(ref, key, wishes))
            self._tell(key, f"{self.name} is told {answer.status} about the profile of {key}")
            if answer.status == OK:
                self._loop.call_soon(self._books.profiled, key, context=self._loop.outside)

    # -- Preferences. -------------------------------------------------------------------------------------------------
    def _choose(self) -> None:
        """A device changes what its user has chosen, for one category; for others at the same time, perhaps."""
        if self._stopped:
            return
        rng = self._chooser
        self._later(rng.expovariate(1 / _CHANGES_S), self._choose)
        key, category, choice, edges = rng.choice(self._keys), rng.choice(list(CHOSEN)), rng.choice(WISHES), self._cluster.edges()
        if edges and (key, category) not in self._changing:
            self._changing.add((key, category))
            self._books.user(key).choices.changing(category, choice)
            process, edge = rng.choice(edges)
            change = Change(self, key, category, choice)
            self._loop.call_later(_WIRE_S, self._begin, change.run, edge.gateway, context=process.context)
            self._later(self._cluster.config.publish_timeout_ms / 1000 + 0.3, change.give_up)

    # -- Inboxes. -----------------------------------------------------------------------------------------------------
    def _mark(self) -> None:
        """A user has seen what came so far."""
        if self._stopped:
            return
        self._later(self._marker.expovariate(1 / _MARKS_S), self._mark)
        edges, key = self._cluster.edges(), self._marker.choice(self._keys)
        if edges:
            process, edge = self._marker.choice(edges)
            seq = self._books.user(key).told
            self._loop.call_later(_WIRE_S, self._begin, self._mark_seen, key, edge.gateway, seq, context=process.context)

    async def _mark_seen(self, key: str, gateway: Any, seq: int) -> None:
        with contextlib.suppress(EngineError):
            answer = await mark_all(gateway.shard_client, key, SEEN, True, [], [], seq, DATA_EPOCH)
            self._tell(key, f"{self.name} is told {answer.status} about marking up to {seq}")
            if answer.status == OK:
                self._loop.call_soon(self._books.marked, key, seq, context=self._loop.outside)

    # -- Subscriptions. -----------------------------------------------------------------------------------------------
    def _subscribe(self, key: str) -> None:
        """Somebody looks after a user's subscriptions."""
        edges = self._cluster.edges()
        if edges:
            process, edge = self._rng.choice(edges)
            change: tuple[tuple[str, ...], tuple[str, ...]] = ((TOPIC,), ()) if self._rng.random() < 0.7 else ((), (TOPIC,))
            self._loop.call_later(_WIRE_S, self._begin, self._change, key, edge.gateway, change, context=process.context)

    async def _change(self, key: str, gateway: Any, change: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
        add, remove = change
        self._tell(key, f"{self.name} subscribes {key} to {add}, not to {remove}")
        with contextlib.suppress(EngineError):
            answer = await gateway.shard_client.subscribe(key, add, remove)
            self._tell(key, f"{self.name} is told that {key} is subscribed to {answer.topics}")

    async def _contradict(self, item: Item, gateway: Any) -> None:
        """Another payload under an id that was accepted must be refused."""
        user = self._books.user(item.key)
        known = item.id in user.accepted
        body = msgspec.json.encode({"user": item.key.partition(":")[2], "type": "sim.other", "id": item.id})
        if not known:
            return
        history = self._books.history
        call = history.published(item.key, item.id, None)
        try:
            results = await gateway.shard_client.post(_drafts(self._cluster, body))
        except Problem as problem:
            if problem.status not in {409, 503, 429}:
                self._loop.call_soon(self._books.fail, f"{problem.status} for a contradiction", item.key, context=self._loop.outside)
            self._loop.call_soon(history.answered, call, problem.status, context=self._loop.outside)
            self._books.seen["contradictions refused"] += problem.status == 409
            return
        except Unavailable:
            return
        self._loop.call_soon(
            self._books.fail, f"{item.id} is answered {results[0].status} with another payload", item.key, context=self._loop.outside
        )


_CALM: Final = Conditions(0, inactive_ms=15, delay_ms=5)
"""Not before the user has been still for a moment: until then the timer is moved, and moved again."""


class Change:
    """One change of a user's preferences, and what its device is told of it."""

    def __init__(self, publisher: Publisher, key: str, category: str, choice: str) -> None:
        self._publisher = publisher
        self._key = key
        self._category = category
        self._choice = choice
        self._over = False

    async def run(self, gateway: Any) -> None:
        publisher = self._publisher
        publisher._tell(self._key, f"{self._category} is to be {self._choice}")
        with contextlib.suppress(EngineError):
            patch = PreferencesPatch(categories={self._category: CHOICES.index(self._choice)})
            answer = await ask_change(gateway.shard_client, self._key, patch, publisher._cluster.config.profile_entries_max)
            if answer.status == OK:
                publisher._loop.call_soon(self._end, True, context=publisher._loop.outside)

    def give_up(self) -> None:
        """There was no answer in time."""
        self._end(False)

    def _end(self, answered: bool) -> None:
        if self._over:
            return
        self._over = True
        publisher, choices = self._publisher, self._publisher._books.user(self._key).choices
        publisher._changing.discard((self._key, self._category))
        publisher._tell(
            self._key, f"{self._category} is {self._choice}" if answered else f"nobody knows whether {self._category} is {self._choice}"
        )
        publisher._books.seen["choices"] += answered
        (choices.changed if answered else choices.unknown)(self._category, self._choice)


class Attempt:
    """One HTTP request."""

    def __init__(self, publisher: Publisher, item: Item, process: Process) -> None:
        self._publisher = publisher
        self._item = item
        self._process = process
        self._over = False
        self._asked = ""
        self._call = 0

    def arrive(self, edge: Any) -> None:
        """At the edge, as the edge's code."""
        publisher = self._publisher
        wait_s = publisher._cluster.cuts.open_at(publisher._place, self._process.place) - publisher._loop.time()
        if wait_s > 0:  # the kernel sends it again; its publisher may have given up by then
            publisher._loop.call_later(wait_s + 0.1 * publisher._rng.random(), self.arrive, edge, context=self._process.context)
        else:
            publisher._loop.create_task(self._run(edge.gateway))

    async def _run(self, gateway: Any) -> None:
        publisher, item = self._publisher, self._item
        drafts = _drafts(publisher._cluster, item.body, gateway.shard_client.new_id)
        if drafts[0].due_ms and drafts[0].topic is None and crc32(drafts[0].envelope.id.encode()) % 3 == 0:
            drafts[0].conditions = _CALM  # the same each time it is sent
        self._asked = drafts[0].envelope.id
        publisher._books.asked(item.key, drafts[0].envelope.id, item.category, retain=drafts[0].envelope.retain)
        user = item.key if item.topic is None else ""
        manners = publisher._manners
        held_back = item.delayed and (manners.categories or manners.wishes or manners.choices)
        ruled = {"suppressible": True} if held_back or (item.category and manners.choices) else {}
        self._call = publisher._books.history.published(user, self._asked, item.data, **item.weaker, **ruled)
        publisher._tell(
            item.key, f"{publisher.name} publishes {drafts[0].envelope.id}{' delayed' if drafts[0].due_ms else ''} at {self._process}"
        )
        problem: Problem | None = None
        try:
            results = await gateway.shard_client.post(drafts)
        except Problem as raised:
            problem = raised
            results = [msgspec.convert(result, ItemResult) for result in raised.members.get("results", ())]
        except EngineError:  # Overloaded: not even tried
            results = []
        loop = publisher._loop
        if not self._process.alive:
            return
        wait_s = max(publisher._cluster.cuts.open_at(self._process.place, publisher._place) - loop.time(), 0.0)
        loop.call_later(wait_s + _WIRE_S * (0.3 + publisher._rng.random()), self._answered, results, problem, context=loop.outside)

    def _answered(self, results: list[ItemResult], problem: Problem | None) -> None:
        if self._over:
            return  # the publisher has given up waiting: it does not know
        self._over = True
        publisher, item = self._publisher, self._item
        status = problem.status if problem is not None else 202 if results else 503
        publisher._books.history.answered(self._call, status, msgspec.to_builtins(results[0]) if results else None)
        if not results:
            self._refused()
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
            self._refused()
            self._publisher.ended(self._item, 0.02)

    def _refused(self) -> None:
        """Broadcasts need the first store, whomever they are for."""
        if self._item.topic is None:
            self._publisher._books.refused(self._item.key, self._item.id)


def _drafts(cluster: Cluster, body: bytes, new_id: Callable[[], str] = lambda: "") -> list[Draft]:
    return parse_drafts(body, Content("application/json"), _APP, cluster.config, cluster.wall_ms(), new_id, CATEGORIES | CHOSEN)
