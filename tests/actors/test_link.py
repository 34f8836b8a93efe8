"""The shells of the link on a loop with virtual time: what they do when nothing happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
import uvloop

from engine.actors.actor_process import ProcessContext, monotonic_ms
from engine.actors.carrier import Peer
from engine.actors.link import LinkCaller, LinkServer, _Alarm
from engine.config import Config
from engine.core.wire import records as wire
from engine.core.wire.link import RESET
from tests.sim.loop import SimLoop


def test_requests_sent_together_arrive_in_order_behind_what_was_sent_before() -> None:
    loop = SimLoop()
    context = ProcessContext(monotonic_ms=lambda: loop.time() * 1000)
    arrived: list[int] = []

    class Server:
        """The callee, in this process."""

        retry_s = None

        async def open(self) -> float:
            return 0.1

        async def exchange(self, session: str, seq: int, batch: bytes) -> bytes:
            return await server.exchange(session, seq, batch)

        def close(self) -> None: ...

    async def send() -> None:
        caller.send(wire.Ack(1, 0))
        caller.send_all([wire.Ack(2, seq) for seq in range(1, 251)])
        caller.send(wire.Ack(3, 251))

    server = LinkServer(
        wire.to_shard,
        Config(),
        on_open=lambda _session: None,
        on_records=lambda _session, records: arrived.extend(record.seq for record in records),
        on_close=lambda _session: None,
        context=context,
    )
    caller = LinkCaller(
        cast("Peer", Server()),
        "edge-0",
        wire.from_shard,
        Config(),
        on_records=lambda _records: None,
        on_reset=lambda: None,
        context=context,
    )
    caller.send_all([wire.Ack(4, 999)])  # without a session it is dropped
    running = loop.create_task(caller.run())
    loop.run(lambda: not caller.open, lambda: None)
    loop.create_task(send())
    loop.run(lambda: len(arrived) < 252 and loop.time() < 5, lambda: None)
    running.cancel()
    loop.run(lambda: not running.done(), lambda: None)
    assert arrived == list(range(252))


def server_on(
    loop: SimLoop,
    config: Config | None = None,
    *,
    on_records: Callable[[str], None] = lambda _session: None,
    on_close: Callable[[str], None],
) -> LinkServer:
    """A called end; both functions are given the session."""
    return LinkServer(
        wire.to_shard,
        config or Config(),
        on_open=lambda _session: None,
        on_records=lambda session, _records: on_records(session),
        on_close=on_close,
        context=ProcessContext(monotonic_ms=lambda: loop.time() * 1000),
    )


def test_two_processes_of_an_edge_keep_their_sessions_and_a_process_has_one() -> None:
    loop = SimLoop()
    closed: list[str] = []

    async def call() -> None:
        server = server_on(loop, on_close=closed.append)
        for session in ("edge-0/old/1", "edge-1/old/1", "edge-0/new/1", "edge-0/old/2", "shard-0/1", "shard-0/2"):
            await server.exchange(session, 0, wire.encode([]))
        assert server.sessions() == ["edge-1/old/1", "edge-0/new/1", "edge-0/old/2", "shard-0/2"]

    called = loop.create_task(call())
    loop.run(lambda: not called.done(), lambda: None)
    called.result()
    assert closed == ["edge-0/old/1", "shard-0/1"]


def test_an_opening_that_comes_late_ends_no_later_session() -> None:
    loop = SimLoop()
    taken: list[str] = []

    async def call() -> None:
        server = server_on(loop, on_records=taken.append, on_close=lambda session: taken.append(f"end of {session}"))
        records = wire.encode([wire.Detach(1, 1000)])
        for session in ("shard-0/one.9", "shard-0/one.10", "shard-0/one.2", "shard-0/two.1"):
            await server.exchange(session, 0, records)
        server.lost("shard-0/two.1")
        assert await server.exchange("shard-0/two.1", 0, records) == RESET
        assert server.sessions() == []
        await server.exchange("shard-0/two.2", 0, records)

    called = loop.create_task(call())
    loop.run(lambda: not called.done(), lambda: None)
    called.result()
    nine, ten, first, second = "shard-0/one.9", "shard-0/one.10", "shard-0/two.1", "shard-0/two.2"
    assert taken == [nine, f"end of {nine}", ten, f"end of {ten}", first, f"end of {first}", second]


def test_a_caller_that_goes_silent_is_noticed_on_time_and_without_spinning() -> None:
    loop = SimLoop()
    closed: list[tuple[str, float]] = []
    config = Config(link_park_ms=500, link_timeout_ms=800)

    async def call_once() -> None:
        server = server_on(loop, config, on_close=lambda session: closed.append((session, loop.time())))
        await server.exchange("edge-0/1", 0, wire.encode([]))

    loop.create_task(call_once())
    loop.run(lambda: loop.time() < 5, lambda: None)
    ((session, at_s),) = closed
    assert session == "edge-0/1"
    assert 1.3 <= at_s < 1.31
    assert loop.steps < 10


@pytest.mark.parametrize("wait_ms", [0.2, 0.5, 1.0, 1.4, 2.6])
def test_an_alarm_does_not_ring_again_and_again_before_its_time(wait_ms: float) -> None:
    """uvloop fires a timer of less than half a millisecond at once: a link that waited for so little turned its loop without a pause."""

    async def rings() -> int:
        at_ms, times, over = monotonic_ms() + wait_ms, 0, asyncio.Event()

        def ring() -> None:
            nonlocal times
            times += 1
            if monotonic_ms() >= at_ms:
                over.set()
            else:
                alarm.arm(at_ms, monotonic_ms())

        alarm = _Alarm(ring)
        alarm.arm(at_ms, monotonic_ms())
        await over.wait()
        return times

    assert max(uvloop.run(rings()) for _ in range(10)) <= 2  # the loop counts from a whole one
