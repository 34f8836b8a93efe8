"""Exchanges over each carrier: the real link at both ends, a real connection between them, no Ray."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.actors import carrier, tcp_carrier
from engine.actors.carrier import NOWHERE, RAY_CALL_MS, listen
from engine.actors.link import link_limits
from engine.actors.socket_carrier import DIRECT_CALL_MS
from engine.config import Config
from engine.core.model.envelope import Envelope
from engine.core.wire import records as wire
from tests.support.link_actors import KeyStore, LinkActor, LinkEdge, certificates, found_by_ray
from tests.support.waiting import until

CONFIG = Config(link_park_ms=200, link_timeout_ms=20_000)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may pause for a second."""
    monkeypatch.setattr(tcp_carrier, "CONNECT_S", 20.0)
    monkeypatch.setattr(tcp_carrier, "HANDSHAKE_S", 20.0)


@pytest.fixture
def keys() -> KeyStore:
    return KeyStore()


@pytest.fixture
async def actor(keys: KeyStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LinkActor]:
    """It listens nowhere yet."""
    made = LinkActor(CONFIG, keys)
    found_by_ray(monkeypatch, made)
    yield made
    await made.end()


@pytest.fixture(params=["unix", "tcp", "tls"])
async def connected(
    request: pytest.FixtureRequest, keys: KeyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[LinkActor, LinkEdge]]:
    """An actor that listens, and an edge that has not connected yet."""
    config = CONFIG
    if request.param == "tls":
        config = msgspec.structs.replace(CONFIG, **certificates(tmp_path))
    actor = LinkActor(config, keys)
    found_by_ray(monkeypatch, actor)
    if request.param == "unix":
        await actor.listen_unix(tmp_path / "s")
    else:
        actor.listen_tcp()
    edge = LinkEdge(config, keys)
    yield actor, edge
    assert edge.peer.carrier == {"tls": "tcp"}.get(request.param, request.param)
    assert actor.through_ray == 0
    await actor.end()


async def test_records_go_both_ways_and_none_of_them_through_ray(connected: tuple[LinkActor, LinkEdge]) -> None:
    actor, edge = connected
    async with edge.running():
        for ref in range(1000):
            edge.link.send(wire.Probe(ref, "t:ann", "", 0))
            actor.links.send_all([(actor.opened[0], wire.Probed(ref, "connected", ref))])
            if ref % 50 == 0:
                await asyncio.sleep(0)
        await until(lambda: len(actor.taken) == len(edge.heard) == 1000)
        assert [record.ref for record in actor.taken] == [record.ref for record in edge.heard] == list(range(1000))


async def test_a_batch_larger_than_any_socket_buffer_arrives_whole(connected: tuple[LinkActor, LinkEdge]) -> None:
    actor, edge = connected
    body = os.urandom(3 << 20)
    async with edge.running():
        edge.link.send(wire.Post(1, "t:ann", False, 0, Envelope("m", b"", 1, True, body)))
        actor.links.send_all([(actor.opened[0], wire.Deliver(1, [(1, 1, body)]))])
        await until(lambda: bool(actor.taken and edge.heard))
        assert actor.taken[0].envelope.body == edge.heard[0].messages[0][2] == body


async def test_a_caller_that_dies_is_noticed_at_once(connected: tuple[LinkActor, LinkEdge]) -> None:
    actor, edge = connected
    async with edge.running():
        pass
    await until(lambda: actor.closed == actor.opened)


async def test_when_the_connection_breaks_both_ends_begin_a_new_session_and_nothing_of_the_old_one_comes_late(
    connected: tuple[LinkActor, LinkEdge],
) -> None:
    actor, edge = connected
    ends: list[bool] = []
    edge.link._on_end = lambda: ends.append(edge.link.open)
    async with edge.running():
        for round_ in range(1, 4):
            actor.break_connection()
            await until(lambda round_=round_: edge.link.sessions == round_ + 1 and edge.link.open)  # type: ignore[misc]
            assert actor.closed == actor.opened[:-1]
            assert ends == [False] * round_
        edge.link.send(wire.Ack(1, 7))
        await until(lambda: actor.taken == [wire.Ack(1, 7)])


async def test_an_actor_that_does_not_serve_any_more_takes_nothing_in(connected: tuple[LinkActor, LinkEdge]) -> None:
    actor, edge = connected
    async with edge.running():
        actor.ready = False
        edge.link.send(wire.Ack(1, 7))
        await until(lambda: len(actor.closed) == 1)
        assert actor.taken == []
        actor.ready = True
        await until(lambda: edge.link.open)


async def test_a_caller_is_told_at_once_that_its_connection_is_lost(connected: tuple[LinkActor, LinkEdge]) -> None:
    actor, edge = connected
    await edge.peer.open()
    lost = asyncio.ensure_future(edge.peer.lost())
    await asyncio.sleep(0.05)
    assert not lost.done()
    edge.peer.exchange("edge-0/1", 0, b"\x90")  # a connection can be broken once it has a session
    await until(lambda: len(actor.opened) == 1)
    actor.break_connection()
    assert await lost
    edge.peer.close()


async def test_an_exchange_over_a_socket_is_charged_as_the_cheap_thing_it_is(connected: tuple[LinkActor, LinkEdge]) -> None:
    _, edge = connected
    call_ms = await edge.peer.open()
    assert call_ms == DIRECT_CALL_MS
    direct, through_ray = link_limits(CONFIG, call_ms=call_ms), link_limits(CONFIG, call_ms=RAY_CALL_MS)
    assert direct.pacing_ms == through_ray.pacing_ms == CONFIG.link_pacing_ms
    assert direct.budget_pacing_max_ms < through_ray.budget_pacing_max_ms == CONFIG.link_ray_pacing_max_ms
    edge.peer.close()
    await asyncio.sleep(0)


async def test_an_actor_of_another_node_without_a_port_is_called_through_ray(actor: LinkActor, keys: KeyStore, tmp_path: Path) -> None:
    await actor.listen_unix(tmp_path / "s")
    actor.listens = actor.listens._replace(node="another-node")
    async with LinkEdge(CONFIG, keys).running() as edge:
        edge.link.send(wire.Ack(1, 7))
        await until(lambda: actor.taken == [wire.Ack(1, 7)])
        assert actor.through_ray > 0
        assert (edge.link.carrier, edge.peer.retry_s) == ("ray", None)
        assert await edge.peer.open() == RAY_CALL_MS


async def test_a_unix_socket_that_is_not_there_any_more_costs_a_detour_and_no_message(
    actor: LinkActor, keys: KeyStore, tmp_path: Path
) -> None:
    await actor.listen_unix(tmp_path / "s")
    (tmp_path / "s").unlink()
    async with LinkEdge(CONFIG, keys).running() as edge:
        edge.link.send(wire.Ack(1, 7))
        await until(lambda: actor.taken == [wire.Ack(1, 7)])
        assert actor.through_ray > 0


async def test_a_link_leaves_ray_for_the_socket_of_the_next_process(
    actor: LinkActor, keys: KeyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier.ActorPeer, "tcp_retry_s", 0.05)
    await actor.listen_unix(tmp_path / "s")
    (tmp_path / "s").unlink()
    async with LinkEdge(CONFIG, keys).running() as edge:
        await asyncio.sleep(0.2)
        assert (edge.link.carrier, edge.link.sessions) == ("ray", 1)
        await actor.listen_unix(tmp_path / "next")
        await until(lambda: edge.link.carrier == "unix")
        assert edge.link.sessions == 2


async def test_a_port_that_cannot_be_reached_costs_a_detour_until_it_can(
    actor: LinkActor, keys: KeyStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Warned about once, whatever number of sessions is opened meanwhile; then tried again, and the link moves over by itself."""
    actor.listen_tcp()
    port = actor.listens.port
    actor._close.pop(0)(), actor._close.pop(0)()
    async with LinkEdge(CONFIG, keys).running() as edge:
        assert edge.link.carrier == "ray"
        for sessions in (2, 3):
            actor.links.lost(actor.opened[-1])
            await until(lambda sessions=sessions: edge.link.sessions == sessions and edge.link.open)  # type: ignore[misc]
        edge.link.send(wire.Ack(1, 7))
        await until(lambda: actor.taken == [wire.Ack(1, 7)])
        assert [record.levelno for record in caplog.records if "called through Ray" in record.getMessage()] == [logging.WARNING]

        monkeypatch.setattr(carrier.ActorPeer, "tcp_retry_s", 0.05)
        actor.links.lost(actor.opened[-1])
        await until(lambda: edge.peer.retry_s == 0.05)
        actor.listen_tcp(port)
        await until(lambda: edge.link.carrier == "tcp")
        assert actor.closed == actor.opened[:-1]
        edge.link.send(wire.Ack(1, 8))
        await until(lambda: actor.taken == [wire.Ack(1, 7), wire.Ack(1, 8)])


async def test_a_port_that_another_actor_has_taken_over_is_not_taken_for_the_old_one(
    actor: LinkActor, keys: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = LinkActor(CONFIG, keys, "shard-1")
    other.listen_tcp()
    actor.listens = other.listens
    async with LinkEdge(CONFIG, keys).running() as edge:
        assert edge.link.carrier == "ray"
        edge.link.send(wire.Ack(1, 7))
        await until(lambda: actor.taken == [wire.Ack(1, 7)])
        assert other.opened == []
    await other.end()


async def test_a_caller_opens_no_session_in_the_name_of_another(actor: LinkActor, keys: KeyStore) -> None:
    actor.listen_tcp()
    edge = LinkEdge(CONFIG, keys, "edge-0")
    assert await edge.peer.open() == DIRECT_CALL_MS
    with pytest.raises(ConnectionError):
        await edge.peer.exchange("edge-1/0123", 0, b"\x90")
    assert actor.opened == []


async def test_without_ray_nobody_listens(keys: KeyStore) -> None:
    assert await listen(CONFIG, LinkEdge(CONFIG, keys).credentials, no_connection) == NOWHERE


def no_connection(_vouched: Any) -> Any:
    raise AssertionError("nobody connects")


async def test_lookups_that_ray_leaves_unanswered_take_no_thread_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    answered, asked = threading.Event(), []

    def get_actor(name: str, **_: str) -> str:
        asked.append(name)
        answered.wait(30)
        return name

    monkeypatch.setattr(carrier.ray, "get_actor", get_actor)
    lookups = [asyncio.ensure_future(carrier.find_actor(f"shard-{index}", "engine")) for index in range(100)]
    await until(lambda: asked)
    try:
        async with asyncio.timeout(10):
            assert await asyncio.to_thread(lambda: "served")
        for lookup in lookups[:-1]:
            lookup.cancel()
        await asyncio.wait(lookups[:-1])
    finally:
        answered.set()
    assert await lookups[-1] == "shard-99"
    assert asked == ["shard-0", "shard-99"], "nobody waits for the others any more"
