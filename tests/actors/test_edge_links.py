"""When an edge reads the slot map."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.actors import edge_links
from engine.actors.actor_process import RETRY_S
from engine.actors.edge_links import EdgeLinks
from engine.actors.tcp_carrier import LinkCredentials
from engine.config import Config
from engine.core.model.routing import SlotMap, spread
from tests.support.background_task import background
from tests.support.waiting import until


class Readings:
    """A stored slot map without actors, and the edge that reads it, as its gateway."""

    def __init__(self) -> None:
        self.stored = self.slots = spread(1)
        self.reads = 0

    async def read(self, _client: Any) -> SlotMap:
        self.reads += 1
        return self.stored

    def set_slots(self, slots: SlotMap) -> None:
        self.slots = slots


async def test_a_slot_map_is_read_often_while_peers_speak_of_it_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Readings()
    monkeypatch.setattr(edge_links, "require_slot_map", gateway.read)
    monkeypatch.setattr(edge_links, "_SLOTS_POLL_S", 3600)
    monkeypatch.setattr(EdgeLinks, "_add_links", lambda *_: None)
    monkeypatch.setattr(EdgeLinks, "_drop_links", lambda *_: None)
    links = EdgeLinks(Config(), LinkCredentials(Config(), "edge-0"), [None])  # type: ignore[list-item]
    async with background(links.run(gateway)):  # type: ignore[arg-type]
        await until(lambda: gateway.reads == 1)
        for _ in range(12):  # as what waits for it is sent and refused again
            links.need_slots(0, 2)
            await asyncio.sleep(RETRY_S / 2)
        often = gateway.reads
        assert often > 6
        links.need_slots(0, 2)  # by a shard that dies before it has stored it
        before = -1
        while gateway.reads > before:
            before = gateway.reads
            await asyncio.sleep(4 * RETRY_S)
            assert gateway.reads < often + 12
        gateway.stored = spread(1, 2)
        links.need_slots(0, 2)
        await until(lambda: gateway.slots.version == 2)


async def test_a_slot_map_is_read_often_while_a_link_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    class Link:
        open = True

    gateway, link = Readings(), Link()
    monkeypatch.setattr(edge_links, "require_slot_map", gateway.read)
    monkeypatch.setattr(edge_links, "_SLOTS_POLL_S", 3600)
    monkeypatch.setattr(EdgeLinks, "_add_links", lambda *_: None)
    monkeypatch.setattr(EdgeLinks, "_drop_links", lambda *_: None)
    links = EdgeLinks(Config(), LinkCredentials(Config(), "edge-0"), [None])  # type: ignore[list-item]
    links._shards.append(link)  # type: ignore[arg-type]
    async with background(links.run(gateway)):  # type: ignore[arg-type]
        await until(lambda: gateway.reads == 1)
        link.open = False
        links._look()
        await until(lambda: gateway.reads > 10)
        link.open, gateway.stored = True, spread(1, 2)
        before = -1
        while gateway.reads > before:
            before = gateway.reads
            await asyncio.sleep(20 * edge_links._SLOTS_CLOSE_S)
        assert gateway.slots.version == 2


async def test_the_map_of_a_server_is_followed_while_another_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = {server: spread(2, 1, 1, server, 2) for server in range(2)}
    read: list[SlotMap] = []
    gateway = Readings()
    gateway.set_slots = read.append  # type: ignore[method-assign]

    async def require(server: int) -> SlotMap:
        if server == 0:
            await asyncio.Event().wait()
        return maps[server]

    monkeypatch.setattr(edge_links, "require_slot_map", require)
    monkeypatch.setattr(EdgeLinks, "_add_links", lambda *_: None)
    monkeypatch.setattr(EdgeLinks, "_drop_links", lambda *_: None)
    links = EdgeLinks(Config(), LinkCredentials(Config(), "edge-0"), [0, 1])  # type: ignore[list-item]
    async with background(links.run(gateway)):  # type: ignore[arg-type]
        await until(lambda: read == [maps[1]])
        maps[1] = spread(4, 2, 1, 1, 2)
        links.need_slots(1, 2)
        await until(lambda: read[1:] == [maps[1]])
