"""The scheduler actor with real links and a real Redis; only Ray's transport is replaced by a function call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from engine.actors.actor_process import ProcessContext
from engine.actors.carrier import RayPeer
from engine.actors.edge import wall_ms as now_ms
from engine.actors.link import LinkCaller
from engine.actors.scheduler import Scheduler
from engine.config import Config
from engine.core.model.envelope import Envelope
from engine.core.model.routing import scheduler_of, spread, timer_id
from engine.core.wire import records as wire
from engine.core.wire.records import Arm, Cancel, Due, Fire, FireDone, Inspect, Schedule, Timer, TimerAnswer
from engine.store.keys import SLOTS_KEY, timer_key
from engine.store.slot_map import encode_slot_map, swap_slot_map
from tests.support.background_task import background
from tests.support.edge_world import edge_world
from tests.support.redis_server import RedisServer, start_redis
from tests.support.tenant_recount import counted, recount
from tests.support.vitals import vitals_without_ray
from tests.support.waiting import until

KEY = "default:ann"
CONTEXT = ProcessContext(vitals=vitals_without_ray, tune_memory=lambda: None)


class Handle:
    """What an actor handle is to a link: `exchange.remote(...)` is awaited."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.exchange = self

    def remote(self, session: str, seq: int, data: bytes) -> Any:
        return self.scheduler.exchange(session, seq, data)


class Peer:
    """An edge or a shard at its end of the link."""

    def __init__(self, scheduler: Scheduler, name: str, decoder: Any, config: Config) -> None:
        self.records: list[tuple[int, Any]] = []  # (arrival, record)
        self.link = LinkCaller(RayPeer(Handle(scheduler)), name, decoder, config, on_records=self._on_records, on_reset=lambda: None)
        self.task = asyncio.create_task(self.link.run())
        self.confirms = True
        self.pass_on: Callable[[list[Any]], object] = lambda _records: None

    def _on_records(self, records: list[Any]) -> None:
        for record in records:
            self.records.append((now_ms(), record))
            if isinstance(record, Fire) and self.confirms:
                self.link.send(FireDone([timer.sid for timer in record.timers]))
        self.pass_on(records)

    def of(self, kind: type[Any]) -> list[Any]:
        return [record for _, record in self.records if type(record) is kind]

    def fired(self) -> list[tuple[int, Timer]]:
        return [(arrival, timer) for arrival, record in self.records if isinstance(record, Fire) for timer in record.timers]


class World:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.peers: list[Peer] = []
        self.refs = 0
        self.begin()

    def begin(self) -> None:
        self.scheduler = Scheduler(self.config, 0, CONTEXT)
        self.scheduler.begin()

    async def end(self) -> None:
        """The scheduler and everyone's links end, as when its process is killed."""
        tasks = [peer.task for peer in self.peers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.peers.clear()
        await end(self.scheduler)

    async def connect(self) -> tuple[Peer, Peer]:
        """An edge and a shard whose links have carried a call each way."""
        edge = Peer(self.scheduler, "edge-0", wire.scheduler_to_edge, self.config)
        shard = Peer(self.scheduler, "shard-0", wire.scheduler_to_shard, self.config)
        self.peers += [edge, shard]
        await until(lambda: edge.link.open and shard.link.open)
        return edge, shard

    async def ask(self, edge: Peer, build: Callable[[int], Any]) -> TimerAnswer:
        self.refs += 1
        ref = self.refs
        edge.link.send(build(ref))
        await until(lambda: any(answer.ref == ref for answer in edge.of(TimerAnswer)))
        return next(answer for answer in edge.of(TimerAnswer) if answer.ref == ref)

    async def schedule(self, edge: Peer, unique: str, due_ms: int) -> str:
        sid = timer_id(KEY, unique)
        timer = Timer(sid, KEY, due_ms, now_ms(), 60_000, Envelope(unique, b"12345678", 1, True, b'"id":"x"'))
        answer = await self.ask(edge, lambda ref: Schedule(ref, False, timer))
        assert answer.status == wire.SCHEDULED
        return sid

    async def status_of(self, edge: Peer, sid: str) -> int:
        return (await self.ask(edge, lambda ref: Inspect(ref, "default", sid))).status


async def end(scheduler: Scheduler) -> None:
    """Its process is killed."""
    if scheduler._serving is not None:
        scheduler._serving.cancel()
        await asyncio.gather(scheduler._serving, return_exceptions=True)
    if hasattr(scheduler, "_client"):
        await scheduler._client.aclose()


@asynccontextmanager
async def world(server: RedisServer, **settings: Any) -> AsyncIterator[World]:
    client = Redis.from_url(server.url, socket_timeout=5)
    await client.set(SLOTS_KEY, encode_slot_map(spread(1)))
    made = World(Config(redis_url=server.url, shards=1, **settings))
    try:
        yield made
    finally:
        await made.end()
        await client.aclose()


@pytest.fixture(autouse=True)
def address_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")


async def test_a_delayed_message_fires_once_at_its_time_and_is_gone(redis_server: RedisServer, redis_client: Redis) -> None:
    async with world(redis_server) as engine:
        edge, shard = await engine.connect()
        due_ms = now_ms() + 300
        sid = await engine.schedule(edge, "a", due_ms)
        assert await engine.status_of(edge, sid) == wire.OK
        await until(lambda: shard.fired() != [])
        ((arrival, fired),) = shard.fired()
        assert fired.sid == sid
        assert due_ms <= arrival < due_ms + 1000
        await until(lambda: redis_client.exists(timer_key(int(sid.partition("-")[0]))), holds=lambda count: not count)
        assert await engine.status_of(edge, sid) == wire.ALREADY_FIRED
        assert len(shard.fired()) == 1


async def test_under_load_the_wheel_is_looked_at_as_often_as_a_link_takes_what_is_due(redis_server: RedisServer) -> None:
    async with world(redis_server, link_timer_pacing_ms=100.0) as engine:
        edge, shard = await engine.connect()
        first_ms, count = now_ms() + 1500, 100
        for n in range(count):
            timer = Timer(
                timer_id(KEY, str(n)), KEY, first_ms + 4 * n, now_ms(), 60_000, Envelope(str(n), b"12345678", 1, True, b'"id":"x"')
            )
            edge.link.send(Schedule(n, False, timer))
        await until(lambda: len(edge.of(TimerAnswer)) == count)
        looks: list[int] = []
        term = engine.scheduler._term
        handle = term.handle
        term.handle = lambda event: (looks.append(now_ms()), handle(event))  # type: ignore[assignment,return-value,func-returns-value]
        await until(lambda: len(shard.fired()) == count)
        assert len([at_ms for at_ms in looks if at_ms >= first_ms]) < count // 2
        assert all(arrival >= timer.due_ms for arrival, timer in shard.fired())


async def test_a_cancelled_message_never_fires(redis_server: RedisServer, redis_client: Redis) -> None:
    async with world(redis_server) as engine:
        edge, shard = await engine.connect()
        sid = await engine.schedule(edge, "a", now_ms() + 1000)
        later = await engine.schedule(edge, "b", now_ms() + 1200)
        assert (await engine.ask(edge, lambda ref: Cancel(ref, "default", sid))).status == wire.OK
        await until(lambda: shard.fired() != [])
        assert [fired.sid for _, fired in shard.fired()] == [later]


async def test_what_was_scheduled_before_a_crash_fires_after_it(redis_server: RedisServer, redis_client: Redis) -> None:
    async with world(redis_server) as engine:
        edge, shard = await engine.connect()
        shard.confirms = False
        first = await engine.schedule(edge, "first", now_ms() + 10)
        second = await engine.schedule(edge, "second", now_ms() + 600)
        await until(lambda: shard.fired() != [])
        await engine.end()
        engine.begin()
        edge, shard = await engine.connect()
        assert (await engine.ask(edge, lambda ref: Cancel(ref, "default", first))).status == wire.ALREADY_FIRED
        await until(lambda: len(shard.fired()) == 2)
        assert {fired.sid for _, fired in shard.fired()} == {first, second}  # the second one first when it is due by then
        stats = await engine.scheduler.stats()
        assert stats["ready"]
        assert stats["caught_up"]


async def test_volatile_timers_are_due_on_time(redis_server: RedisServer, redis_client: Redis) -> None:
    async with world(redis_server) as engine:
        _, shard = await engine.connect()
        start_ms = now_ms()
        for n in range(200):
            shard.link.send(Arm(f"k{n}", start_ms + 200 + 2 * n))
        await until(lambda: sum(len(due.keys) for due in shard.of(Due)) == 200)
        arrivals = [(arrival, key) for arrival, record in shard.records if isinstance(record, Due) for key in record.keys]
        late_ms = sorted(arrival - (start_ms + 200 + 2 * int(key[1:])) for arrival, key in arrivals)
        assert late_ms[0] >= 0
        assert late_ms[100] < 500


async def test_while_redis_is_away_requests_get_an_answer_and_claimed_timers_fire_and_others_once_it_is_back(tmp_path: Path) -> None:
    server = start_redis(tmp_path)
    try:
        async with world(server, commit_retry_ms=300, redis_timeout_ms=500) as engine:
            edge, shard = await engine.connect()
            far = await engine.schedule(edge, "far", now_ms() + 2500)
            sid = await engine.schedule(edge, "a", now_ms() + 900)  # near: claimed with what stores it
            server.kill()
            refused = timer_id(KEY, "b")
            timer = Timer(refused, KEY, now_ms() + 60_000, now_ms(), 60_000, Envelope("b", b"12345678", 1, True, b""))
            assert (await engine.ask(edge, lambda ref: Schedule(ref, False, timer))).status == wire.UNAVAILABLE
            await until(lambda: [fired.sid for _, fired in shard.fired()] == [sid])
            await until(lambda: engine.scheduler._term.core.lag_ms(now_ms()) > 0)
            assert len(shard.fired()) == 1, "the other one waits for its claim"
            server.start()
            await until(lambda: engine.status_of(edge, far), holds=lambda status: status == wire.ALREADY_FIRED)
            await until(lambda: engine.scheduler._term.core.idle)
            await engine.scheduler.drain()
            assert [fired.sid for _, fired in shard.fired()] == [sid, far]
    finally:
        server.stop()


async def test_an_idle_scheduler_hardly_wakes(redis_server: RedisServer, redis_client: Redis) -> None:
    async with world(redis_server) as engine:
        edge, _ = await engine.connect()
        await engine.schedule(edge, "far", now_ms() + 3_600_000)
        wakes = 0
        handle = engine.scheduler._term.core.handle

        def counted(event: Any, at_ms: int) -> Any:
            nonlocal wakes
            wakes += 1
            return handle(event, at_ms)

        engine.scheduler._term.core.handle = counted  # type: ignore[method-assign]
        began = time.monotonic()
        await until(lambda: time.monotonic() - began > 2)
        assert wakes <= 10


async def test_over_http_delayed_messages_use_a_tenant_s_quotas_up_and_cancelling_or_erasing_gives_room_again(
    redis_server: RedisServer, redis_client: Redis
) -> None:
    quotas = {"tenant_stored_bytes_max": 4000, "tenant_users_max": 2}
    async with (
        world(redis_server, **quotas) as engine,
        edge_world(storage=redis_client, **quotas) as http,
        http.http(tenant="small") as small,
        http.http(tenant="other") as other,
    ):
        edge, _ = await engine.connect()
        edge.pass_on = lambda records: http.gateway.from_scheduler(0, records)
        http.scheduler.take = edge.link.send  # type: ignore[method-assign]

        async def publish(tenant: Any, user: str, size: int) -> tuple[int, str, list[Any]]:
            item = {"user": user, "type": "test.event", "delay": 3600, "data": "x" * size}
            await http.gateway.tenant_quotas.read()  # as each second
            answer = await tenant.post("/v1/notifications", json=item)
            found = answer.json()
            assert answer.status_code == 202 or int(answer.headers.get("retry-after", 0)) >= 1, answer.text
            return answer.status_code, found.get("quota", ""), found["results"] if answer.status_code == 202 else []

        status, _, results = await publish(small, "u1", 2000)
        assert (status, (await publish(small, "u2", 10))[0]) == (202, 202)
        assert (await publish(small, "u3", 10))[:2] == (429, "tenant_users_max")
        assert (await publish(small, "u2", 1000))[0] == 202
        assert (await publish(small, "u2", 10))[:2] == (429, "tenant_stored_bytes_max")
        assert (await publish(other, "u3", 10))[0] == 202
        assert (await counted(redis_client, "small"))["stored_bytes"] >= 4000
        assert await counted(redis_client, "small") == await recount(redis_client, "small")
        assert (await small.get("/v1/status")).json()["users"] == 2
        assert (await small.delete(f"/v1/scheduled/{results[0]['scheduled_id']}")).status_code == 200
        assert (await publish(small, "u3", 10))[0] == 202
        for user in ("u2", "u3"):
            assert (await small.delete(f"/v1/users/{user}")).status_code == 204
        assert not any((await counted(redis_client, "small")).values())


# -- Schedulers whose number changes. ----------------------------------------------------------------------------------
class Reachable:
    """A handle to the newest process of a scheduler's name."""

    def __init__(self, crew: Crew, index: int) -> None:
        self.crew = crew
        self.index = index
        self.exchange = self

    def remote(self, session: str, seq: int, data: bytes) -> Any:
        return self._exchange(session, seq, data)

    async def _exchange(self, session: str, seq: int, data: bytes) -> bytes:
        scheduler = self.crew.running.get(self.index)
        if scheduler is None:
            raise ConnectionError("it is dead")
        reply = asyncio.ensure_future(scheduler.exchange(session, seq, data))
        died = self.crew.died.setdefault(scheduler, asyncio.get_running_loop().create_future())
        await asyncio.wait((reply, died), return_when=asyncio.FIRST_COMPLETED)
        if not reply.done():
            reply.cancel()
            raise ConnectionError("it died")
        return reply.result()


class Crew:
    """All schedulers, an edge and a shard that route by the newest slot map, and what the edge was answered."""

    def __init__(self, server: RedisServer, client: Redis) -> None:
        self.config = Config(redis_url=server.url, shards=1, timer_claim_ms=300, timer_refire_ms=500, slots_refresh_ms=100)
        self.client = client
        self.slots = spread(1)
        self.running: dict[int, Scheduler] = {}
        self.ended: list[Scheduler] = []
        self.died: dict[Scheduler, asyncio.Future[None]] = {}
        self.edges: dict[int, LinkCaller] = {}
        self.shards: dict[int, LinkCaller] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.asked: dict[int, Any] = {}
        self.sent_to: dict[int, int] = {}  # by reference: the scheduler
        self.answers: dict[int, TimerAnswer] = {}
        self.fired: dict[str, list[int]] = {}  # arrivals
        self.refs = 0

    def start(self, index: int) -> None:
        self.running[index] = Scheduler(self.config, index, CONTEXT)
        self.running[index].begin()
        if index not in self.edges:
            for links, name, decoder in (
                (self.edges, "edge-0", wire.scheduler_to_edge),
                (self.shards, "shard-0", wire.scheduler_to_shard),
            ):
                links[index] = LinkCaller(
                    RayPeer(Reachable(self, index)),
                    name,
                    decoder,
                    self.config,
                    on_records=self.on_answers if links is self.edges else self.on_fires,
                    on_reset=partial(self.repeat, index) if links is self.edges else lambda: None,
                )
                self.tasks.append(asyncio.create_task(links[index].run()))

    async def kill(self, index: int) -> None:
        scheduler = self.running.pop(index)
        self.died.setdefault(scheduler, asyncio.get_running_loop().create_future()).set_result(None)
        await end(scheduler)

    def of(self, sid: str) -> int:
        return scheduler_of(int(sid.partition("-")[0]), self.slots.schedulers)

    def on_answers(self, records: list[Any]) -> None:
        for record in records:
            if isinstance(record, wire.Moved):
                asyncio.get_running_loop().call_later(0.02, self.send, record.ref)
            elif self.asked.pop(record.ref, None) is not None:
                self.answers[record.ref] = record

    def repeat(self, index: int) -> None:
        """The link's session has ended: what was sent in it goes to whom it belongs to now."""
        for ref in [ref for ref in self.asked if self.sent_to[ref] == index]:
            self.send(ref)

    def send(self, ref: int) -> None:
        request = self.asked.get(ref)
        if request is not None:
            self.sent_to[ref] = self.of(sid_of(request))
            self.edges[self.sent_to[ref]].send(request)

    def on_fires(self, records: list[Any]) -> None:
        for record in records:
            if isinstance(record, Fire):
                for timer in record.timers:
                    self.fired.setdefault(timer.sid, []).append(now_ms())
                    self.shards[self.of(timer.sid)].send(FireDone([timer.sid]))

    def ask(self, build: Callable[[int], Any]) -> int:
        self.refs += 1
        self.asked[self.refs] = build(self.refs)
        self.send(self.refs)
        return self.refs

    async def scale(self, schedulers: int, *, calls: bool = True) -> None:
        """As the controller: create, store the map, let everyone follow it."""
        for index in range(schedulers):
            if index not in self.running:
                self.start(index)
        self.slots = msgspec.structs.replace(self.slots, version=self.slots.version + 1, schedulers=schedulers)
        assert await swap_slot_map(self.client, self.slots)
        if calls:
            await asyncio.gather(*(scheduler.follow(self.slots.version) for scheduler in self.running.values()))


def sid_of(request: Any) -> str:
    return str(request.timer.sid if isinstance(request, Schedule) else request.sid)


@asynccontextmanager
async def crew(server: RedisServer, client: Redis) -> AsyncIterator[Crew]:
    await client.set(SLOTS_KEY, encode_slot_map(spread(1)))
    made = Crew(server, client)
    made.start(0)
    await until(lambda: made.edges[0].open and made.shards[0].open)
    try:
        yield made
    finally:
        for task in made.tasks:
            task.cancel()
        await asyncio.gather(*made.tasks, return_exceptions=True)
        for scheduler in [*made.running.values(), *made.ended]:
            await end(scheduler)


async def versions(made: Crew) -> set[int]:
    return {(await scheduler.stats()).get("slots_version", 0) for scheduler in made.running.values()}


STEPS = {
    "nobody dies": None,
    "the old owner dies before it knows": ("before", 0),
    "the new owner dies before it knows": ("before", 1),
    "the old owner dies while partitions move": ("during", 0),
    "the new owner dies while partitions move": ("during", 1),
    "the old owner dies when they have moved": ("after", 0),
    "the new owner dies when they have moved": ("after", 1),
}


@pytest.mark.parametrize("death", STEPS.values(), ids=STEPS.keys())
async def test_timers_stay_exact_while_schedulers_come_and_go(
    death: tuple[str, int] | None, redis_server: RedisServer, redis_client: Redis
) -> None:
    async with crew(redis_server, redis_client) as made:
        timers: dict[str, tuple[int, int]] = {}  # by scheduled id: due, ref
        cancels: dict[str, int] = {}

        async def publish() -> None:
            """Some timers, due soon and later, of users all over the partitions; every fifth is cancelled once it is stored."""
            unwanted: list[str] = []
            for n in range(1000):
                key = f"default:u{n}"
                sid, due_ms = timer_id(key, f"{n}"), now_ms() + (150 * n) % 1900
                timer = Timer(sid, key, due_ms, now_ms(), 60_000, Envelope(f"{n}", b"12345678", 1, True, b'"id":"x"'))
                timers[sid] = (due_ms, made.ask(lambda ref, timer=timer: Schedule(ref, False, timer)))
                if n % 5 == 0:
                    unwanted.append(sid)
                for sid in [sid for sid in unwanted if timers[sid][1] in made.answers]:
                    unwanted.remove(sid)
                    cancels[sid] = made.ask(lambda ref, sid=sid: Cancel(ref, "default", sid))
                await asyncio.sleep(0.005)

        async def dies(when: str) -> None:
            if death is not None and death[0] == when and death[1] in made.running:
                await made.kill(death[1])
                made.start(death[1])

        async with background(publish()):
            for schedulers in (2, 1):
                await until(lambda wanted=100 // schedulers: len(timers) > wanted)
                made.start(1) if 1 not in made.running else None
                await dies("before")
                moving = asyncio.create_task(made.scale(schedulers, calls=death is None))
                await asyncio.sleep(0.01)
                await dies("during")
                await moving
                await until(lambda: versions(made), holds=lambda found: found == {made.slots.version})
                await dies("after")
                await until(lambda: versions(made), holds=lambda found: found == {made.slots.version})
        await until(lambda: not made.asked)
        cancelled = {sid for sid, ref in cancels.items() if made.answers[ref].status == wire.OK}
        late = {sid for sid, ref in cancels.items() if made.answers[ref].status == wire.ALREADY_FIRED}
        assert not {sid: made.answers[ref] for sid, ref in cancels.items() if sid not in cancelled | late}, "a timer was forgotten"
        fire = timers.keys() - cancelled
        await until(lambda: made.fired.keys() >= fire)
        assert made.fired.keys() == fire, "cancelled, and fired"
        assert late <= made.fired.keys(), "too late to be cancelled, and not fired"
        assert {made.answers[ref].status for _, ref in timers.values()} <= {wire.SCHEDULED}
        assert not [sid for sid in fire if made.fired[sid][0] < timers[sid][0]], "early"
        assert cancelled
        await until(lambda: redis_client.keys("t[0-9]*:timer"), holds=lambda left: not left)
