"""How many connections an edge and one client address may have."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from engine.config import Config
from engine.http.problems import Problem
from engine.transports.open_sockets import OpenSockets
from tests.support.edge_world import RawClient, edge_world
from tests.support.waiting import until


def status_of(sockets: OpenSockets, peer: tuple[Any, ...] | None, everyone: set[Any]) -> int:
    """What a connection of this peer is answered; 0: it is admitted, and stays."""
    try:
        sockets.admit(peer, everyone).add(object())
    except Problem as problem:
        return problem.status
    return 0


def test_one_address_has_so_many_and_another_its_own() -> None:
    sockets, everyone = OpenSockets(Config(connections_per_address_max=2), 10_000), set[Any]()
    assert [status_of(sockets, ("192.0.2.1", port), everyone) for port in range(4)] == [0, 0, 429, 429]
    assert status_of(sockets, ("192.0.2.2", 1), everyone) == 0
    assert len(everyone) == 3


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", True),  # one site's network
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_a_network_of_ipv6_is_one_address(one: str, other: str, same: bool) -> None:
    sockets, everyone = OpenSockets(Config(connections_per_address_max=1), 10_000), set[Any]()
    assert status_of(sockets, (one, 1), everyone) == 0
    assert status_of(sockets, (other, 1), everyone) == (429 if same else 0)


@pytest.mark.parametrize("peer", [("127.0.0.1", 1), ("127.9.9.9", 1), ("::1", 1, 0, 0), ("::ffff:127.0.0.1", 1, 0, 0), None])
def test_loopback_is_not_counted_by_address(peer: tuple[Any, ...] | None) -> None:
    sockets, everyone = OpenSockets(Config(connections_per_address_max=1), 10_000), set[Any]()
    assert [status_of(sockets, peer, everyone) for _ in range(3)] == [0, 0, 0]


def test_an_edge_has_so_many_of_all_addresses_and_no_more_than_it_may_open_files() -> None:
    for config, files_max in ((Config(connections_max=2, http_connections_max=1), 10_000), (Config(), 256 + 3)):
        sockets, everyone = OpenSockets(config, files_max), set[Any]()
        assert [status_of(sockets, (f"192.0.2.{number}", 1), everyone) for number in range(4)] == [0, 0, 0, 503]


def test_a_connection_counts_until_the_last_of_its_protocols_ends() -> None:
    sockets, everyone = OpenSockets(Config(connections_per_address_max=1), 10_000), set[Any]()
    peer = ("192.0.2.1", 1)
    of_address = sockets.admit(peer, everyone)
    http, websocket = object(), object()
    of_address.add(http)
    of_address.add(http)
    of_address.discard(http)  # the socket is handed over
    of_address.add(websocket)
    of_address.discard(http)
    assert everyone == {websocket}
    assert status_of(sockets, peer, everyone) == 429
    of_address.remove(websocket)
    assert not everyone
    assert status_of(sockets, peer, everyone) == 0


def test_the_log_names_the_limit_and_is_not_flooded(caplog: pytest.LogCaptureFixture) -> None:
    sockets, everyone = OpenSockets(Config(connections_per_address_max=1), 10_000), set[Any]()
    with caplog.at_level(logging.WARNING):
        for port in range(50):
            status_of(sockets, ("192.0.2.1", port), everyone)
    assert len(caplog.records) == 1
    assert "connections_per_address_max" in caplog.text
    assert "192.0.2.1" in caplog.text


# -- On an edge. -----------------------------------------------------------------------------------------------------------
async def read_all(client: RawClient) -> bytes:
    read = b""
    try:
        while True:
            read += await client.read(1)
    except EOFError:
        return read
    finally:
        client.close()


async def test_connections_beyond_the_limit_are_told_so_and_closed_and_count_no_longer_than_they_last() -> None:
    async with edge_world(connections_max=2, http_connections_max=1) as world:
        websocket, idle, other = await world.raw(), await world.raw_unasked(), await world.raw_unasked()
        await until(lambda: len(world.server.server_state.connections) == 3)
        answer = await read_all(await world.raw_unasked())
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: " in answer
        assert answer.endswith(b'"detail":"3 connections are open here"}')
        assert world.gateway.metrics.refused[503] == 1
        for client in (websocket, idle, other):
            client.close()
        await until(lambda: not world.server.server_state.connections)
        (await world.raw()).close()


async def test_websockets_and_requests_of_one_address_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.transports.open_sockets._counted_address", lambda peer: peer[0])
    async with edge_world(connections_per_address_max=3) as world:
        plain, http = await world.raw(), await world.raw_unasked()
        general = await world.raw_unasked()
        await general.send(
            b"GET /v1/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            b"Cookie: a=b\r\nCookie: c=d\r\nAuthorization: Bearer %b\r\n\r\n" % world.token().encode()
        )
        await general.accepted()
        assert (await read_all(await world.raw_unasked())).startswith(b"HTTP/1.1 429 ")
        general.close()
        await until(lambda: len(world.server.server_state.connections) == 2)
        again = await world.raw()
        assert (await read_all(await world.raw_unasked())).startswith(b"HTTP/1.1 429 ")
        for client in (plain, http, again):
            client.close()
        await until(lambda: not world.server.server_state.connections)
        for client in [await world.raw() for _ in range(3)]:
            client.close()
