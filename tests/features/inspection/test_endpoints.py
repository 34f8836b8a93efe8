"""What operators look at beside the status: who may, what is shown, and what happens when it is not there."""

from __future__ import annotations

import json

from engine.core.shard.slow_connections import SlowConnection
from engine.core.wire.records import ConnectionState
from engine.features.inspection.store import QuarantinedRecord
from tests.support.edge_world import edge_world

OPERATORS_ONLY = ("/v1/load", "/v1/tenants", "/v1/quarantine", "/v1/slow-clients")


async def test_what_is_in_storage_is_shown_a_bounded_part_at_a_time() -> None:
    async with edge_world(operator_rows_max=2, tenant_users_max=9) as world, world.http(scopes="operator") as client:
        figures = world.figures
        figures.points = [b'{"at":1,"over_ms":10,"published":5}']
        figures.tenants = {name: {"users": 1, "stored_bytes": 2, "topics": 3, "signal_names": 4} for name in "abc"}
        figures.records = [QuarantinedRecord("shard-0", "journal 1-0", 7, 3, "010203", "shard-0:quarantine")]

        async def get(path: str) -> object:
            return (await client.get(path)).json()

        assert await get("/v1/load") == {"every_ms": 10_000, "points": [{"at": 1, "over_ms": 10, "published": 5}]}
        row = {"users": 1, "stored_bytes": 2, "topics": 3, "signal_names": 4}
        assert await get("/v1/tenants") == {"tenants": [{"tenant": name, **row} for name in "ab"], "quotas": {"tenant_users_max": 9}}
        record = {"part": "shard-0", "origin": "journal 1-0", "at": 7, "bytes": 3, "beginning": "010203", "key": "shard-0:quarantine"}
        assert await get("/v1/quarantine") == {"total": 1, "records": [record]}


async def test_a_slow_client_is_shown_with_its_user() -> None:
    async with edge_world() as world, world.http(scopes="operator") as client:
        state = ConnectionState("edge-0", "s1", "phone", "websocket", 3, 40, 2, 5, 120, 1)
        world.figures.slow = [SlowConnection("acme:ann", 12, state)]
        (shown,) = (await client.get("/v1/slow-clients")).json()["clients"]
        about = {"edge": "edge-0", "session": "s1", "device": "phone", "transport": "websocket", "since": 3, "sent": 40}
        behind = {"unacknowledged": 2, "oldest": 5, "rtt_ms": 120, "exhausted": 1, "behind": 12}
        assert shown == {"tenant": "acme", "user": "ann", **about, **behind}


async def test_what_does_not_answer_is_503() -> None:
    async with edge_world() as world, world.http(scopes="operator") as client:
        world.figures.away = True
        for path in OPERATORS_ONLY:
            answer = await client.get(path)
            assert (answer.status_code, "retry-after" in answer.headers) == (503, True), (path, json.dumps(answer.json()))
