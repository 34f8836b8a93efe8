"""What is done to a running engine under load: one coroutine per fault, which returns when the fault itself is over.

Whether the engine is well again is for the traffic to say. What only the fault can know, it returns as figures.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import httpx
import psutil
from redis.exceptions import RedisError
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from tests.support.background_task import background
from tests.support.chaos.cluster_group import ClusterGroup
from tests.support.chaos.disk import filled
from tests.support.chaos.movable_clock import MovableClock
from tests.support.chaos.victim import Victim
from tests.support.running_engine import PROGRAM

Fault = Callable[[Victim], Awaitable[dict[str, Any] | None]]

REFUSAL_S: Final = 4.0
"""How long Redis refuses or is silent: twice what a shard waits before it tells publishers."""

STALL_S: Final = 5.0
"""Longer than links tolerate (3 s), shorter than what gets an actor replaced (`health_timeout_ms`)."""

_SCALED_S: Final = 120.0
"""For new numbers to be reached, with parts that are killed meanwhile."""

_KILLS_EACH: Final = 3

_SERVES_S: Final = 0.1
"""For a process of a shard that was spare to serve, on a machine with nothing else to do."""

STEP_S: Final = 3.0
NUISANCE_S: Final = 5.0
_BIG: Final = "x" * 8000


# -- processes ---------------------------------------------------------------------------------------------------------
def killed(role: str) -> Fault:
    async def fault(victim: Victim) -> None:
        victim.kill(role)

    return fault


def stalled(role: str, seconds: float = STALL_S) -> Fault:
    """SIGSTOP, and SIGCONT after a while: a process that wakes up in a world that went on."""

    async def fault(victim: Victim) -> None:
        with victim.stopped(role):
            await asyncio.sleep(seconds)

    return fault


def replaced_while_stalled(role: str, patience_s: float = 40.0) -> Fault:
    """SIGSTOP until the engine has a new process for the part; then the old one may run again, if Ray has left it alive."""

    async def fault(victim: Victim) -> dict[str, Any]:
        before = victim.pids(role)
        with victim.stopped(role) as pid:
            async with asyncio.timeout(patience_s):
                while not set(victim.pids(role)) - set(before):
                    await asyncio.sleep(0.05)
            wakes = pid in victim.pids(role)
        return await end_of_zombies({pid} if wakes else set())

    return fault


def scaled(*numbers: dict[str, int], killing: bool = False) -> Fault:
    """Other numbers of actors, one after the other; with `killing`, parts of the engine are killed while each is brought about."""

    async def fault(victim: Victim) -> dict[str, Any]:
        took_s, kills = [], 0
        async with httpx.AsyncClient(base_url=victim.url, timeout=10, trust_env=False, verify=False) as http:
            for wanted in numbers:
                began_s = time.monotonic()
                await asked(http, victim, "POST", "/v1/scale", wanted)
                while not (scaling := (await asked(http, victim, "GET", "/v1/status"))["scaling"]).get("settled") or scaling["have"] != {
                    **scaling["have"], **wanted,
                }:  # fmt: skip
                    if killing and kills < _KILLS_EACH * (len(took_s) + 1) and (scaling.get("moves") or scaling.get("leaving")):
                        victim.kill(("shard", "controller", "redis", "shard", "edge", "scheduler")[kills % 6])
                        kills += 1
                    await asyncio.sleep(0.05)
                    assert time.monotonic() - began_s < _SCALED_S, f"not {wanted}: {scaling}"
                took_s.append(round(time.monotonic() - began_s, 1))
        return {"scaled_s": took_s, "killed": kills}

    return fault


async def lost_shard(victim: Victim) -> dict[str, Any]:
    """kill -9 to a shard and to each next process of it, until the others have its slots; it comes back, and gets slots again."""
    async with httpx.AsyncClient(base_url=victim.url, timeout=10, trust_env=False, verify=False) as http:

        async def shares() -> dict[int, int]:
            rows = (await asked(http, victim, "GET", "/v1/status"))["shards"]
            return {row["pid"]: row.get("slots", 0) for row in rows if row["alive"]}

        async def have(enough: Callable[[dict[int, int]], bool]) -> float:
            """Seconds until the shards have these slots."""
            began_s = time.monotonic()
            while not enough(found := await shares()):
                assert time.monotonic() - began_s < _SCALED_S, f"slots by process: {found}"
                await asyncio.sleep(0.05)
            return time.monotonic() - began_s

        await have(lambda found: set(found) == set(victim.pids("shard")))  # the status may know of processes that ended just before
        before = await shares()
        survivors = set(before) - {victim.kill("shard")}
        killing = asyncio.create_task(_kept_dead(victim, survivors))
        taken_s = await have(lambda found: sum(found.get(pid, 0) for pid in survivors) == sum(before.values()))
        killing.cancel()
        await have(lambda found: len([slots for slots in found.values() if slots]) == len(before))
    return {"taken_s": round(taken_s, 2)}


async def _kept_dead(victim: Victim, survivors: set[int]) -> None:
    """Shards other than these are killed as soon as there is a process of them, and each other one when it may have begun to serve."""
    for lived_s in itertools.cycle((0.0, _SERVES_S)):
        while not (pids := set(victim.pids("shard")) - survivors):
            await asyncio.sleep(0.02)
        await asyncio.sleep(lived_s)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def asked(http: httpx.AsyncClient, victim: Victim, method: str, path: str, body: Any = None) -> Any:
    """Until the engine answers well: parts of it may be dying."""
    deadline = time.monotonic() + _SCALED_S
    while True:
        with contextlib.suppress(httpx.HTTPError):
            headers = {"Authorization": f"Bearer {victim.token('app', 'operator')}"}
            answer = await http.request(method, path, json=body, headers=headers)
            if answer.is_success:
                return answer.json()
            assert answer.status_code in (429, 503), answer.text
        assert time.monotonic() < deadline, f"{method} {path} is not answered"
        await asyncio.sleep(0.1)


async def end_of_zombies(pids: set[int], patience_s: float = 20.0) -> dict[str, Any]:
    """What becomes of processes that woke up beside their successors: they must end, by themselves or by Ray. Raises TimeoutError."""
    if not pids:
        return {"old_process": "ended by Ray"}
    began_s = time.monotonic()
    async with asyncio.timeout(patience_s):
        while any(map(psutil.pid_exists, pids)):
            await asyncio.sleep(0.02)
    return {"old_process": f"woke, gone after {time.monotonic() - began_s:.2f} s"}


# -- Redis -------------------------------------------------------------------------------------------------------------
def nodes_killed(group: ClusterGroup) -> Fault:
    """kill -9 to one node of a Redis Cluster after the other; each is back, and all agree, before the next."""

    async def fault(_victim: Victim) -> dict[str, Any]:
        touched = []
        for server in group.servers:
            stores = await asyncio.to_thread(group.stores_at, server)
            begin_s = time.monotonic()
            server.kill()
            await asyncio.to_thread(group.await_others, server)
            server.start()
            await asyncio.to_thread(group.settled)
            touched.append((begin_s, time.monotonic(), stores))
        return {"killed": len(touched), "promoted": sum(map(bool, (stores for *_, stores in touched))), "touched": touched}

    return fault


def stores_moved(group: ClusterGroup) -> Fault:
    """Each store to the next master by `engine storage move`, and back by another hand, as `redis-cli --cluster reshard` does it."""

    async def fault(_victim: Victim) -> dict[str, Any]:
        touched = []
        for store in range(group.stores):
            begin_s = time.monotonic()
            await asyncio.to_thread(_moved_and_back, group, store)
            touched.append((begin_s, time.monotonic(), {store}))
        return {"moves": 2 * group.stores, "touched": touched}

    return fault


def _moved_and_back(group: ClusterGroup, store: int) -> None:
    home, masters = group.master(store), group.masters()
    away = masters[(masters.index(home) + 1) % len(masters)]
    command = [*PROGRAM, "storage", "move", str(store), f"127.0.0.1:{away.port}", "--redis", group.url]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert group.master(store) is away
    for _ in group.move(store, home):
        pass
    group.settled()
    assert group.master(store) is home


def refusing(during: Callable[[Any], Any], afterwards: Callable[[Any], Any]) -> Fault:
    """Redis is told to refuse writes for a while."""

    async def fault(victim: Victim) -> None:
        with victim.redis() as redis:
            during(redis)
            await asyncio.sleep(REFUSAL_S)
            afterwards(redis)

    return fault


out_of_memory = refusing(lambda redis: redis.config_set("maxmemory", 1), lambda redis: redis.config_set("maxmemory", 0))
read_only = refusing(lambda redis: redis.replicaof("127.0.0.1", "1"), lambda redis: redis.replicaof("NO", "ONE"))


async def disk_full(victim: Victim) -> None:
    """The data directory is on a disk of its own. Redis ends itself at the first write, is started again, ends again ..."""
    with filled(victim.data_dir):
        await asyncio.sleep(REFUSAL_S)
    while True:
        with contextlib.suppress(RedisError), victim.redis() as redis:
            redis.ping()
            return
        await asyncio.sleep(0.02)


# -- clocks ------------------------------------------------------------------------------------------------------------
def clock_steps(clock: MovableClock) -> Fault:
    """The wall clock of every process jumps an hour ahead, two back, and home again."""

    async def fault(_victim: Victim) -> None:
        for offset_s in (3600, -3600, 0):
            clock.step_to(offset_s)
            await asyncio.sleep(STEP_S)

    return fault


# -- clients and publishers --------------------------------------------------------------------------------------------
@contextlib.asynccontextmanager
async def _publishing(victim: Victim, item: dict[str, Any], per_s: int) -> AsyncIterator[None]:
    """Somebody publishes this again and again while the block runs."""

    async def publish() -> None:
        headers = {"Authorization": f"Bearer {victim.token('app', 'publish')}"}
        async with httpx.AsyncClient(timeout=10, trust_env=False, verify=False, headers=headers) as http:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    await http.post(f"{victim.url}/v1/notifications", json=[item] * 10)
                await asyncio.sleep(10 / per_s)

    async with background(publish()):
        yield


async def never_reads(victim: Victim) -> None:
    """A client completes the handshake and reads nothing more, while 100 messages of 8 kB a second are for it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", victim.port, limit=1 << 12)
    key = base64.b64encode(os.urandom(16)).decode()
    writer.write(
        f"GET /v1/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: notify.v1.json\r\n"
        f"Authorization: Bearer {victim.token('never-reads', 'connect')}\r\n\r\n".encode()
    )
    await reader.readuntil(b"\r\n\r\n")
    try:
        async with _publishing(victim, {"user": "never-reads", "type": "test.big", "data": _BIG}, 100):
            await asyncio.sleep(NUISANCE_S)
    finally:
        writer.transport.abort()


async def never_acknowledges(victim: Victim) -> None:
    """A client reads everything and acknowledges nothing, while 200 messages a second are for it."""
    headers = {"Authorization": f"Bearer {victim.token('never-acks', 'connect')}"}
    url = victim.url.replace("http", "ws", 1) + "/v1/ws"
    async with _publishing(victim, {"user": "never-acks", "type": "test.message", "data": {}}, 200):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NUISANCE_S), connect(
                url, subprotocols=["notify.v1.json"], additional_headers=headers, proxy=None, close_timeout=1
            ) as socket:  # fmt: skip
                async for _ in socket:
                    pass


def _junk(dice: random.Random) -> bytes:
    """A body that is wrong in one of many ways."""
    item: dict[str, Any] = {"user": "u", "type": "t.t"}
    return dice.choice(
        [
            dice.randbytes(dice.randrange(2000)),
            b"[" * dice.randrange(1, 20_000),
            b'{"a":' * 5000,
            json.dumps([item] * 1001).encode(),
            json.dumps(item | {"user": 5}).encode(),
            json.dumps(item | {"type": "\ud800"}).encode(),
            json.dumps(item | {"delay": 1e400}).encode(),
            json.dumps(item | {"ttl": -1}).encode(),
            json.dumps(item | {"data": "x" * 100_000}).encode(),
            json.dumps(item | {"at": 10**30}).encode(),
            b'{"user":"u","user":"v","type":1}',
            json.dumps(item).encode() + b"\0",
        ]
    )


async def garbage(victim: Victim) -> None:
    """A publisher sends what is not a message, and somebody speaks anything but HTTP and WebSocket to the port.

    Raises AssertionError when it is answered with a 5xx, or accepted.
    """
    dice = random.Random(7)
    loop = asyncio.get_running_loop()
    end = loop.time() + NUISANCE_S
    headers = {"Authorization": f"Bearer {victim.token('app', 'publish')}"}
    socket_headers = {"Authorization": f"Bearer {victim.token('junk', 'connect')}"}
    ws_url = victim.url.replace("http", "ws", 1) + "/v1/ws"
    async with httpx.AsyncClient(timeout=10, trust_env=False, verify=False, headers=headers) as http:
        while loop.time() < end:
            body = _junk(dice)
            kind = dice.choice(["application/json", "application/x-ndjson", "application/cloudevents+json", "text/plain", "\xff"])
            answer = await http.post(f"{victim.url}/v1/notifications", content=body, headers={"Content-Type": kind.encode("latin-1")})
            assert 400 <= answer.status_code < 500, f"{answer.status_code} to {kind} {body[:100]!r}"
            _, writer = await asyncio.open_connection("127.0.0.1", victim.port)
            writer.write(dice.randbytes(500))
            await writer.drain()
            writer.close()
            with contextlib.suppress(WebSocketException, OSError):
                async with connect(
                    ws_url, subprotocols=["notify.v1.json"], additional_headers=socket_headers, proxy=None, close_timeout=1
                ) as socket:
                    for _ in range(12):
                        await socket.send(dice.choice([dice.randbytes(50), "{", "[]", '{"type":"ack","seq":1e99}', '{"type":5}']))
