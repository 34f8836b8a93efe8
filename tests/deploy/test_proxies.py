"""The proxies of deploy/proxies, as they are but for addresses: what clients use passes them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.edge_world import DEADLINE_S, edge_world, frame_of
from tests.support.front_proxies import FOLDER, PROXIES, front_proxy, installed
from tests.support.missing_programs import untried


@pytest.mark.parametrize("name", PROXIES)
async def test_requests_websockets_and_streams_pass_a_proxy(name: str, tmp_path: Path) -> None:
    if not installed(name):
        untried(f"{name} is not installed: its configuration in deploy/proxies was not tried")
    async with asyncio.timeout(DEADLINE_S), edge_world() as world, front_proxy(name, tmp_path, world.port) as proxy:
        world.port = proxy.port
        async with world.connect("ann") as socket, world.http("ann") as client, client.stream("GET", "/v1/sse") as stream:
            (seq,) = await world.publish("ann")
            assert (await frame_of(socket))["messages"][0]["seq"] == seq
            async for line in stream.aiter_lines():
                if line == f"id: e7-{seq}":
                    break


def test_haproxy_keeps_edges_whose_storage_is_away() -> None:
    """They answer 503 with `Retry-After`; without any server HAProxy's own 503 says nothing."""
    assert "option httpchk GET /healthz " in (FOLDER / "haproxy.cfg").read_text()
