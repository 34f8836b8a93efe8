"""One record of frames is under way to each shard."""

from __future__ import annotations

from typing import Any

import pytest

from engine.core.model.formats import TRANSIENT
from engine.core.model.routing import NOBODY, RoutingTable, SlotMap, spread
from engine.core.wire.records import Show
from engine.errors import Unavailable
from engine.gateway.transient_frames import TransientFrames


class Links:
    def __init__(self) -> None:
        self.sent: list[tuple[int, Any]] = []

    def send_shard(self, index: int, record: Any, eager: bool) -> None:
        self.sent.append((index, record))

    def ask_shard(self, index: int, records: Any) -> None: ...

    def ask_scheduler(self, index: int, records: Any) -> None: ...

    def need_slots(self, server: int, version: int) -> None: ...


def table(formats: int = TRANSIENT) -> RoutingTable:
    map = spread(1)
    return RoutingTable([SlotMap(map.version, map.owners, map.shards, map.schedulers, formats=formats)])


def test_a_shard_takes_frames_again_once_it_has_answered() -> None:
    links = Links()
    frames = TransientFrames(table, links)
    assert frames.shard_of("t:u") == 0
    frames.show("part", {0: [("t:u", b"{}")]})
    assert links.sent == [(0, Show("part", [("t:u", b"{}")]))]
    assert frames.shard_of("t:u") == NOBODY
    frames.answered(0)
    assert frames.shard_of("t:u") == 0


def test_processes_of_an_earlier_version_get_no_frames() -> None:
    TransientFrames(table, Links()).check()
    with pytest.raises(Unavailable, match="upgrade"):
        TransientFrames(lambda: table(TRANSIENT - 1), Links()).check()
