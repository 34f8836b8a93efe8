"""For every sequence of failed round trips to storage: what HTTP answered with 202 is stored, and the rest can be repeated.

Edge, shards and schedulers are the engine's own, on virtual time, with one store or two. At the end shards and schedulers are killed, so
only storage remembers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tests.sim.http_world import Client, World
from tests.sim.loop import PROCESS
from tests.sim.storage import Storage

pytestmark = pytest.mark.usefixtures("lua")

USERS: Final = ("ann", "bob")
KINDS: Final = {
    "now": {"user": "ann"},
    "later": {"user": "bob", "delay": 1},
    "to all": {"broadcast": True},
    "to all later": {"broadcast": True, "delay": 1},
}
STORES: Final[dict[str, dict[str, Any]]] = {
    "one store": {},
    "two stores": {"redis_url": "redis+cluster://node/2", "shards": 2, "schedulers": 2},
}
FATES: Final = ("answered", "lost", "half applied", "reply lost", "applied late")
"""Of one round trip, which may have several commands. All but the first end with an error at the engine."""

RETRY_MS: Final = 50
"""So that a few round trips that fail end with a 503."""

_HOP_S: Final = 0.0002
_TRIES: Final = 20
_MESSAGE = re.compile(rb'"seq":(\d+),"event_id":"[^"]*","attempt":\d+,"id":"([^"]*)"')

Item = dict[str, Any]
Result = dict[str, Any]


class Network:
    """The way to storage, on which the next round trips have these fates; all later ones are answered."""

    def __init__(self, world: World, fates: Sequence[str]) -> None:
        self._fates: Iterator[str] = iter(fates)
        self._loop = world.loop
        self._timeout_s = world.config.redis_timeout_ms / 1000
        for storage in world.cluster.storages:
            storage.round_trip = partial(self._round_trip, storage, storage.round_trip)  # type: ignore[method-assign]

    def _round_trip(self, storage: Storage, answered: Any, commands: Sequence[tuple[Any, ...]]) -> asyncio.Future[list[Any]]:
        process = PROCESS.get()
        fate = "answered" if process is None or not process.alive else next(self._fates, "answered")
        if fate == "answered":
            return answered(commands)
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        applied = {"lost": 0, "half applied": (len(commands) + 1) // 2}.get(fate, len(commands))
        late = fate == "applied late"
        self._later(2 * self._timeout_s if late else _HOP_S, self._apply, storage, commands[:applied])
        self._later(self._timeout_s if late else 2 * _HOP_S, self._fail, future, RedisTimeoutError if late else RedisConnectionError)
        return future

    def _later(self, delay_s: float, act: Any, *args: Any) -> None:
        self._loop.call_later(delay_s, act, *args, context=self._loop.outside)

    def _apply(self, storage: Storage, commands: Sequence[tuple[Any, ...]]) -> None:
        for command in commands:
            with contextlib.suppress(ResponseError):
                storage.server.execute(*command)

    def _fail(self, future: asyncio.Future[list[Any]], kind: type[Exception]) -> None:
        if not future.done():
            future.set_exception(kind("as drawn"))


class Publisher:
    """Publishes over HTTP, each item with an id, until its request is answered with 202.

    Attributes:
        results: the first result of each id that was accepted, also of one in a request that was not.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.results: dict[str, Result] = {}

    def publish(self, items: list[Item]) -> None:
        for _ in range(_TRIES):
            status, results = self._ask(items)
            for result in results:
                self._note(result)
            if status == 202:
                return
            assert status == 503
            self._world.rest(1.0)
        raise AssertionError(f"not accepted in {_TRIES} tries")

    def _note(self, result: Result) -> None:
        if result["status"] == "unavailable":
            return
        first = self.results.setdefault(result["id"], result)
        if first is not result:
            # An edge that has repeated the append of a broadcast takes what is stored under the id for its own.
            assert result["status"] == "duplicate" or (result["status"] == "accepted" and "broadcast" in result)
            assert all(result.get(member) == first.get(member) for member in ("seq", "scheduled_id"))

    def _ask(self, items: list[Item]) -> tuple[int, list[Result]]:
        world = self._world
        client = world.open()
        world.send(client, world.request(items))
        world.run_until(lambda: _answer(client) is not None, "an answer")
        world.leave(client)
        answer = _answer(client)
        assert answer is not None
        return answer


def _answer(client: Client) -> tuple[int, list[Result]] | None:
    head, ends, body = bytes(client.written).partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    if not ends or length is None or len(body) < int(length[1]):
        return None
    return int(head.split()[1]), json.loads(body)["results"]


def _restart(world: World) -> None:
    """Only storage remembers what was accepted before."""
    for name in [name for name in world.cluster.names if not name.startswith("edge")]:
        world.cluster.kill(world.cluster.newest(name))
        world.loop.call_soon(world.cluster.start, name, context=world.loop.outside)
    world.rest(5.0)


def _received(world: World, user: str) -> dict[str, set[int]]:
    """The numbers under which a new client of this user gets each id."""
    client = world.connect(user)
    world.rest(3.0)
    found: dict[str, set[int]] = defaultdict(set)
    for seq, id in _MESSAGE.findall(bytes(client.written)):
        found[id.decode()].add(int(seq))
    return found


REQUESTS = st.lists(st.lists(st.sampled_from([*KINDS]), min_size=1, max_size=3), min_size=1, max_size=4)


@settings(max_examples=150)
@given(st.lists(st.sampled_from(FATES), min_size=20, max_size=60), REQUESTS, st.sampled_from([*STORES]))
@example(["reply lost"] * 25, [["now", "later", "to all later"]], "one store")
@example(["applied late"] * 8, [["now"], ["later"], ["now"]], "two stores")
def test_accepted_items_are_stored_and_others_can_be_repeated(fates: list[str], requests: list[list[str]], stores: str) -> None:
    world = World((*USERS, "\n"), redis_timeout_ms=100, commit_retry_ms=RETRY_MS, **STORES[stores])
    try:
        batches = [
            [{"type": "note", "id": f"{number}-{place}", **KINDS[kind]} for place, kind in enumerate(kinds)]
            for number, kinds in enumerate(requests)
        ]
        Network(world, fates)
        publisher = Publisher(world)
        for batch in batches:
            publisher.publish(batch)
        _restart(world)
        for batch in batches:
            publisher.publish(batch)
        world.rest(3.0)
        received = {user: _received(world, user) for user in USERS}
    finally:
        world.end()
    for item in chain.from_iterable(batches):
        result = publisher.results[item["id"]]
        for user in USERS if "broadcast" in item else (item["user"],):
            numbers = received[user][item["id"]]
            assert len(numbers) == 1, f"{user} has {item['id']} under {numbers or 'no number'}"
            assert numbers == {result.get("seq", *numbers)}
