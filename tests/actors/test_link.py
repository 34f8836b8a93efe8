"""The shells of the link on a loop with virtual time: what they do when nothing happens."""

from __future__ import annotations

from engine.actors.actor_process import ProcessContext
from engine.actors.link import LinkServer
from engine.config import Config
from engine.core.wire import records as wire
from tests.sim.loop import SimLoop


def test_a_caller_that_goes_silent_is_noticed_on_time_and_without_spinning() -> None:
    loop = SimLoop()
    closed: list[tuple[str, float]] = []
    config = Config(link_park_ms=500, link_timeout_ms=800)

    async def call_once() -> None:
        server = LinkServer(
            wire.to_shard,
            config,
            on_open=lambda _session: None,
            on_records=lambda _session, _records: None,
            on_close=lambda session: closed.append((session, loop.time())),
            context=ProcessContext(monotonic_ms=lambda: loop.time() * 1000),
        )
        await server.exchange("edge-0/1", 0, wire.encode([]))

    loop.create_task(call_once())
    loop.run(lambda: loop.time() < 5, lambda: None)
    ((session, at_s),) = closed
    assert session == "edge-0/1"
    assert 1.3 <= at_s < 1.31
    assert loop.steps < 10
