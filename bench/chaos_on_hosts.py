"""Faults of hosts and of the network between them, under load: nodes that die or hang, pulled cables, a lost head, storage that is cut off.

    a       Ray's head and its control service, the scheduler, `engine up`      r    Redis, for the engine and for Ray
    b, c    a shard and an edge each                                            the root namespace: publishers and clients

Every scenario has hosts of its own (tests/support/hosts.py), with Ray's settings of `deploy/`, and the engine's defaults. 120 messages a
second go to 14 users, half of them through the edge on b, half through the one on c; beside them a publisher that does not repeat, whose
every answer is compared with what is delivered, and 20 messages that become due one a second. Where a host is lost, its clients go to the
other edge, as a load balancer lets them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Final

import uvloop

from engine.core.model.routing import mailbox_key, spread
from tests.support.chaos.faults import end_of_zombies
from tests.support.chaos.scenarios import NotHere
from tests.support.chaos.single_attempts import SingleAttempts
from tests.support.chaos.traffic import Traffic
from tests.support.engine_on_hosts import EngineOnHosts
from tests.support.hosts import Host, Network
from tests.support.process_tree import role_of
from tests.support.running_engine import RunningEngine

BACK_S: Final = 240.0
"""For service to come back: far beyond what Ray's health checks and starts take."""

GIVEN_UP_S: Final = 90.0
"""For Ray to give up a node that hangs (15 s) and to start its shard elsewhere."""

AWAY_S: Final = 20.0
"""How long a node without a substitute stays off."""

CONTROL_AWAY_S: Final = 90.0
"""How long Ray has no control service: longer than its processes wait for it by default (60 s)."""

_SHARDS: Final = 2
_DELAYED: Final = 20  # messages that become due during the fault
_EACH: Final = {"online": 6, "away": 1, "rate": 60}


@dataclass(frozen=True)
class Cluster:
    """An engine on four hosts, and the traffic at each of its edges."""

    engine: EngineOnHosts
    a: Host
    b: Host
    c: Host
    r: Host
    at_b: Traffic
    at_c: Traffic


Fault = Callable[[Cluster], Awaitable[dict[str, Any] | None]]


@dataclass(frozen=True)
class Scenario:
    """One fault.

    Attributes:
        room: how many shards b and c take each; there are two.
        whole: in the end every part of the engine serves again.
    """

    name: str
    what: str
    fault: Fault
    room: int = 2
    whole: bool = True


# -- nodes ---------------------------------------------------------------------------------------------------------------
async def node_killed(cluster: Cluster) -> None:
    """b loses power; c takes its shard over."""
    cluster.b.kill()
    await cluster.at_b.move(cluster.at_c.url)


async def node_killed_and_started(cluster: Cluster) -> None:
    """b loses power and is started again after a while; nothing else takes its shard."""
    cluster.b.kill()
    await cluster.at_b.move(cluster.at_c.url)
    await asyncio.sleep(AWAY_S)
    cluster.b.boot()
    cluster.engine.start_node(cluster.b)


async def node_hangs(cluster: Cluster) -> dict[str, Any]:
    """Every process on b stops until its shard serves on c; then all go on and do not know that they are replaced."""
    before = set(_on(cluster.c, "shard"))
    with cluster.b.hung() as pids:
        zombies = {pid for pid in pids if role_of(pid) in ("shard", "edge")}
        await cluster.at_b.move(cluster.at_c.url)
        async with asyncio.timeout(GIVEN_UP_S):
            while not set(_on(cluster.c, "shard")) - before:
                await asyncio.sleep(0.1)
    return await end_of_zombies(zombies, BACK_S)


def _on(host: Host, role: str) -> list[int]:
    return [pid for pid in host.pids() if role_of(pid) == role]


# -- the network ---------------------------------------------------------------------------------------------------------
def cable_pulled(seconds: float) -> Fault:
    """Nobody reaches b, and it reaches nobody. Clients go elsewhere when it lasts."""

    async def fault(cluster: Cluster) -> None:
        with cluster.b.unplugged():
            await _cut(cluster, seconds)

    return fault


def not_heard(seconds: float) -> Fault:
    """What b sends to the other hosts is lost; it hears them, and its clients reach it."""

    async def fault(cluster: Cluster) -> None:
        with ExitStack() as cuts:
            for other in (cluster.a, cluster.c, cluster.r):
                cuts.enter_context(cluster.b.not_reaching(other))
            await _cut(cluster, seconds)

    return fault


_PATIENCE_S: Final = 10.0
"""Of a load balancer with a host that does not answer, or answers `/readyz` with 503."""


async def _cut(cluster: Cluster, seconds: float) -> None:
    if seconds > _PATIENCE_S:
        await asyncio.sleep(_PATIENCE_S)
        await cluster.at_b.move(cluster.at_c.url)
        seconds -= _PATIENCE_S
    await asyncio.sleep(seconds)


def storage_cut_off(seconds: float) -> Fault:
    """Nobody reaches Redis."""

    async def fault(cluster: Cluster) -> None:
        with cluster.r.unplugged():
            await asyncio.sleep(seconds)

    return fault


# -- the head ------------------------------------------------------------------------------------------------------------
async def head_killed(cluster: Cluster) -> dict[str, Any]:
    """a loses power: control service, scheduler, `engine up`. It is started again, and `engine up` on it."""
    cluster.a.kill()
    return await _head_away(cluster, again=True)


async def ray_on_head_killed(cluster: Cluster) -> dict[str, Any]:
    """kill -9 of all that Ray runs on a; `engine up` lives on."""
    cluster.engine.kill_ray(cluster.a)
    return await _head_away(cluster, again=False)


async def _head_away(cluster: Cluster, *, again: bool) -> dict[str, Any]:
    """Returns what the users of the other hosts saw while there was no control service, and how `engine up` came through."""
    began_s = time.monotonic()
    await asyncio.sleep(CONTROL_AWAY_S)
    silence_s = max(traffic.silence_s(began_s, time.monotonic()) for traffic in (cluster.at_b, cluster.at_c))
    if again:
        cluster.a.boot()
    await asyncio.to_thread(cluster.engine.start_node(cluster.a))
    if again or cluster.engine.process is None or cluster.engine.process.poll() is not None:
        await asyncio.to_thread(cluster.engine.launch())
        return {"silence_meanwhile_s": silence_s, "engine_up": "started again"}
    return {"silence_meanwhile_s": silence_s, "engine_up": "lived on"}


SCENARIOS: Final = (
    Scenario("node-killed", "a shard's node loses power, room elsewhere", node_killed, whole=False),
    Scenario("node-killed-no-room", f"the same, no room elsewhere; started again after {AWAY_S:.0f} s", node_killed_and_started, room=1),
    Scenario("node-hangs", "a node hangs until its shard is replaced, then goes on", node_hangs),
    *(Scenario(f"cable-{s}", f"a node's cable pulled for {s} s", cable_pulled(s)) for s in (3, 30, 300)),
    *(Scenario(f"one-way-{s}", f"what a node sends to the others lost for {s} s", not_heard(s)) for s in (3, 30, 300)),
    Scenario("head-killed", f"the head loses power; started again after {CONTROL_AWAY_S:.0f} s", head_killed),
    Scenario("head-ray-killed", f"kill -9 Ray on the head; started again after {CONTROL_AWAY_S:.0f} s", ray_on_head_killed),
    *(Scenario(f"storage-{s}", f"Redis cut off for {s} s", storage_cut_off(s)) for s in (3, 30)),
)


@contextlib.contextmanager
def _engine_on_hosts(network: Network, room: int) -> Iterator[EngineOnHosts]:
    a, b, c, r = (network.host(name) for name in "abcr")
    engine = EngineOnHosts(a, b, c, storage=r, workers=(b, c), room=room, settings={})
    engine.start_ray()
    engine.start()
    status = engine.at(b).status()
    found = sorted(row["node"] for row in status["shards"])
    if found != [b.address, c.address]:
        raise RuntimeError(f"one shard on each of b and c is wanted, they are on {found}")
    yield engine


def run_one(scenario: Scenario, steady_s: float) -> dict[str, Any]:
    """One result. Raises NotHere."""
    with _network() as network, _engine_on_hosts(network, scenario.room) as engine:
        return uvloop.run(_strike(engine, scenario, steady_s))


def _network() -> AbstractContextManager[Network]:
    if os.geteuid() != 0:
        raise NotHere("root, who may make namespaces")
    return Network()


async def _strike(engine: EngineOnHosts, scenario: Scenario, steady_s: float) -> dict[str, Any]:
    a, b, c = engine.hosts
    slots = spread(_SHARDS)
    users = [
        next(user for user in (f"once-{n}" for n in range(1000)) if slots.owner(mailbox_key("default", user)) == shard)
        for shard in range(_SHARDS)
    ]
    once = SingleAttempts(users)
    async with (
        Traffic(engine.at(b).url, engine.token, "b", **_EACH) as at_b,
        Traffic(engine.at(c).url, engine.token, "c", **_EACH) as at_c,
    ):
        both = at_b, at_c
        await asyncio.sleep(steady_s)
        await engine.at(c).publish(*_delayed())
        began_s = time.monotonic()
        async with once.going_on(engine.at(b), engine.at(c)):
            figures = await scenario.fault(Cluster(engine, a, b, c, engine.storage, at_b, at_c)) or {}
            over_s = time.monotonic()
            whole = asyncio.create_task(_whole_after_s(engine.at(c), scenario.whole))
            back_s = max([await traffic.flowing(over_s, BACK_S) for traffic in both])
        await asyncio.sleep(steady_s)
        end_s = time.monotonic()
        books = [await traffic.finish(BACK_S) for traffic in both]
        undelivered = await _undelivered(engine.at(c))
        false = await once.false_answers(engine.at(c), BACK_S)
        whole_s = await whole
        silences = [traffic.silence_s(began_s, end_s) for traffic in both]
    sums = _sums(books)
    return {
        "bench": "chaos",
        "case": {"scenario": scenario.name, "hosts": 4},
        "what": scenario.what,
        **sums,
        "accepted": sums["accepted"] + _DELAYED,
        "lost": sums["lost"] + undelivered,
        "wrong": [*(sentence for book in books for sentence in book["wrong"]), *false],
        "once": {
            "accepted": sum(map(len, once.accepted.values())),
            "refused": len(once.refused),
            "unanswered": len(once.unknown),
            "false_answers": len(false),
        },
        "fault_s": round(over_s - began_s, 2),
        "back_s": round(back_s, 2),
        "whole_s": whole_s,
        "silence_s": max(silences),
        "silence_b_s": silences[0],
        "silence_c_s": silences[1],
        **figures,
    }


def _delayed() -> list[dict[str, Any]]:
    """Messages that are due one after the other from 2 s on."""
    return [{"user": "later", "type": "test.message", "id": f"later-{n}", "delay": 2 + n} for n in range(_DELAYED)]


async def _undelivered(engine: RunningEngine) -> int:
    """How many of them do not come."""
    missing = {item["id"] for item in _delayed()}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(BACK_S), engine.connect("later") as socket:
            while missing:
                missing -= {message["id"] for message in (await engine.receive(socket, "messages", BACK_S))["messages"]}
    return len(missing)


async def _whole_after_s(engine: RunningEngine, wanted: bool) -> float | None:
    """How long it takes until every part serves."""
    if not wanted:
        return None
    began_s = time.monotonic()
    await asyncio.to_thread(engine.status_when, lambda status: status["ready"], BACK_S)
    return round(time.monotonic() - began_s, 1)


def _sums(books: Sequence[dict[str, Any]]) -> dict[str, int]:
    names = ("accepted", "lost", "out_of_order", "repeated", "publisher_retries", "refused", "reconnects")
    return {name: sum(book[name] for book in books) for name in names}
