"""The simulated Redis against a real one: the same commands, the same replies, the same data in the end."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from engine.core.journal.stored_formats import encode_timer
from engine.core.model.envelope import Envelope
from engine.core.wire.records import Timer
from engine.store import journal, timer_store
from tests.sim.redis import MiniRedis, Status
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.usefixtures("lua")

NOW_MS = 1_800_000_000_000

members = st.sampled_from(["a", "b", "c", "10", "9"])
keys = st.sampled_from(["k1", "k2"])
scores = st.integers(0, 9)
ids = st.tuples(st.integers(0, 6), st.integers(0, 2)).map(lambda pair: f"{pair[0]}-{pair[1]}")
bounds = st.one_of(st.sampled_from(["-", "+"]), ids, ids.map(lambda id: f"({id}"))

STRINGS = st.one_of(
    st.tuples(st.just("SET"), keys, members),
    st.tuples(st.just("SET"), keys, members, st.just("NX"), st.just("PX"), st.just(600_000)),
    st.tuples(st.just("GET"), keys),
    st.tuples(st.just("DEL"), keys),
    st.tuples(st.just("EXISTS"), keys),
)
HASHES = st.one_of(
    st.tuples(st.just("HSET"), keys, members, members),
    st.tuples(st.just("HSETNX"), keys, members, members),
    st.tuples(st.just("HGET"), keys, members),
    st.tuples(st.just("HEXISTS"), keys, members),
    st.tuples(st.just("HMGET"), keys, members, members),
    st.tuples(st.just("HDEL"), keys, members),
    st.tuples(st.just("HLEN"), keys),
    st.tuples(st.just("DEL"), keys),
)
SETS = st.one_of(
    st.tuples(st.just("SADD"), keys, members, members),
    st.tuples(st.just("SREM"), keys, members, members),
    st.tuples(st.just("SMEMBERS"), keys),
    st.tuples(st.just("DEL"), keys),
)
STREAMS = st.one_of(
    st.tuples(st.just("XADD"), keys, ids, st.just("f"), members),
    st.tuples(st.just("XADD"), keys, st.just("MAXLEN"), st.just("~"), st.just(2), ids, st.just("f"), members),
    st.tuples(st.just("XDEL"), keys, ids),
    st.tuples(st.just("XLEN"), keys),
    st.tuples(st.just("XTRIM"), keys, st.just("MINID"), ids),
    st.tuples(st.just("XRANGE"), keys, bounds, st.sampled_from(["+", "3", "4-1"])),
    st.tuples(st.just("XRANGE"), keys, bounds, st.just("+"), st.just("COUNT"), st.just(2)),
    st.tuples(st.just("DEL"), keys),
)
SORTED_SETS = st.one_of(
    st.tuples(st.just("ZADD"), keys, scores, members),
    st.tuples(st.just("ZREM"), keys, members),
    st.tuples(st.just("ZSCORE"), keys, members),
    st.tuples(st.just("ZCARD"), keys),
    st.tuples(st.just("ZCOUNT"), keys, st.sampled_from(["-inf", "(3", "4"]), st.sampled_from(["+inf", "(7", "6"])),
    st.tuples(st.just("ZRANGEBYSCORE"), keys, st.just("-inf"), scores, st.just("LIMIT"), st.just(0), st.just(2)),
    st.tuples(st.just("ZRANGE"), keys, st.integers(-3, 3), st.integers(-3, 5)),
    st.tuples(st.just("ZRANGE"), keys, st.integers(-3, 3), st.integers(-3, 5), st.just("WITHSCORES")),
    st.tuples(st.just("DEL"), keys),
)
HISTORIES = st.one_of(*(st.lists(kind, min_size=1, max_size=30) for kind in (STRINGS, HASHES, SETS, STREAMS, SORTED_SETS)))


def on_the_wire(connection: redis.Connection, command: tuple[Any, ...]) -> Any:
    """The reply as it comes, not as the client library shows it; errors by their text."""
    connection.send_command(*command)
    try:
        reply = connection.read_response()
        return sorted(reply) if command[0] == "SMEMBERS" else reply
    except ResponseError as error:
        return f"error: {error}"


def simulated(server: MiniRedis, command: tuple[Any, ...]) -> Any:
    try:
        reply = server.execute(*command)
    except ResponseError as error:
        return f"error: {error}"
    return reply.encode() if isinstance(reply, Status) else reply


@pytest.fixture(scope="module")
def real(redis_server: RedisServer) -> Any:
    connection = redis.UnixDomainSocketConnection(path=str(redis_server.socket), protocol=2)
    yield connection
    connection.disconnect()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=HISTORIES)
def test_every_command_replies_as_a_real_server_does(real: Any, history: list[tuple[Any, ...]]) -> None:
    on_the_wire(real, ("FLUSHALL",))
    server = MiniRedis(lambda: NOW_MS)
    for command in history:
        assert simulated(server, command) == on_the_wire(real, command), command


def test_scripts_run_as_in_a_real_server(real: Any) -> None:
    """An append to two journals, repeated, with a known id, under an old epoch and a lost one, and rolled back;
    a turn of a timer partition: the scripts with the most to go wrong."""
    on_the_wire(real, ("FLUSHALL",))
    server = MiniRedis(lambda: NOW_MS)
    append, turn = journal._APPEND._text, timer_store._TURN._text
    packed = encode_timer(Timer("3-a", "t:u", NOW_MS + 5, 1, 60_000, Envelope("id", b"\xff" * 8, 1, True, b'"id":"id"')))
    other = encode_timer(Timer("3-b", "t:u", NOW_MS + 5, 1, 60_000, Envelope("id2", b"\xff" * 8, 1, True, b"")))

    a, b = b"a" * 12, b"b" * 12  # what stands for the two ids

    def one_turn(done: int, requests: list[tuple[Any, ...]], limit: int = 0, fired: tuple[Any, ...] = ()) -> tuple[Any, ...]:
        flat = [part for request in requests for part in request]
        page = (0, "", NOW_MS + 1000, limit, 4096) if limit else ()
        of_one = ("te", "due", "timer", "cancelled", "user:", "collapse", "young", "unpaged")
        keys = (*of_one, "te", "claimed", "users", "bytes", "pages:", "ids", "ids:")
        head = ("EVAL", turn, len(keys), *keys, 7, NOW_MS, NOW_MS + 9_000_000, 10, 2, 256, 86_400_000, 1, NOW_MS + 600_000)
        partition = (NOW_MS + 2000, done, 0, len(requests), int(limit > 0))
        return (*head, *partition, *fired, *flat, *page)

    commands: list[tuple[Any, ...]] = [
        ("SET", "h1", "7-0"),
        ("SET", "h2", "9-0"),
        ("EVAL", append, 6, "h1", "h2", "j1", "j2", "id", "id:", 1, 600_000, 2, "7-0", "9-0", b"\x93\xff", b"\x90", a, "value"),
        ("EVAL", append, 6, "h1", "h2", "j1", "j2", "id", "id:", 1, 600_000, 2, "7-0", "9-0", b"\x93\xff", b"\x90", a, "value"),
        ("EVAL", append, 4, "h1", "j1", "id", "id:", 2, 600_000, 1, "7-1", b"\x93", b, "value", a, "value"),
        ("EVAL", append, 4, "h1", "j1", "id", "id:", 2, 600_000, 1, "6-1", b"\x93"),
        ("EVAL", append, 4, "h1", "j1", "id", "id:", 2, 600_000, 1, "8-1", b"\x93"),
        ("EVAL", append, 6, "h1", "h2", "j1", "j2", "id", "id:", 2, 600_000, 2, "7-1", "9-1", b"\x93", b"\x90", b, "value"),
        ("EVAL", journal._ROLLBACK._text, 6, "h1", "h2", "j1", "j2", "id", "id:", 2, 600_000, 2, "7-1", "9-1", b, ""),
        ("MGET", "h1", "h2", "none"),
        ("XRANGE", "j1", "-", "+"),
        ("XRANGE", "j2", "-", "+"),
        ("SET", "te", 7),
        one_turn(
            0,
            [("S", "3-a", "t:u", NOW_MS + 5, packed, "", "page", a, "", ""), ("S", "3-b", "t:u", NOW_MS + 5, other, "", "page", b, "", "")],
            10,
        ),
        one_turn(0, [("L", "", "t:u", 10, 4096, 0), ("M", "3-b", "t", NOW_MS + 7, 0, b)]),
        ("ZSCORE", "users", "t"),
        ("ZSCORE", "bytes", "t"),
        one_turn(1, [("C", "3-b", "wrong", 0, 0, b)], 1, fired=("3-a", "", a)),
        one_turn(0, [("C", "3-b", "t", 0, 0, b), ("I", "3-a", "t", 0, 0, a)]),
        ("ZSCORE", "users", "t"),
        ("ZSCORE", "bytes", "t"),
        ("ZRANGE", "due", 0, -1, "WITHSCORES"),
        ("HLEN", "timer"),
        ("GET", "claimed"),
        ("HLEN", "young"),
        ("EVAL", timer_store._TAKE_OVER._text, 4, "te", "claimed", "young", "owner", 8, "scheduler-0/a"),
        ("EVAL", timer_store._TAKE_OVER._text, 4, "te", "claimed", "young", "owner", 7, "scheduler-0/b"),
        ("HLEN", "young"),
    ]
    for command in map(with_absent_key, commands):
        assert without_stamp(simulated(server, command)) == without_stamp(on_the_wire(real, command)), command[:3]


def without_stamp(reply: Any) -> Any:
    """The value of a known id begins with the second in which it was stored: the clocks of both servers differ."""
    if isinstance(reply, list) and reply and reply[0] == b"KNOWN":
        return [reply[0], [part if isinstance(part, int) else part[4:] for part in reply[1]]]
    return reply


def with_absent_key(command: tuple[Any, ...]) -> tuple[Any, ...]:
    """A script gets one key more, which never exists."""
    if command[0] != "EVAL":
        return command
    name, text, count, *words = command
    return (name, text, count + 1, *words[:count], "absent", *words[count:])
