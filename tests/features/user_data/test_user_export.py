"""`GET /v1/users/{user}/export`: what is kept of a user is in it, and what an erasure deletes is in it no more."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from engine.core.journal.journal_records import StoredMessage
from engine.core.model.constants import NORMAL
from engine.core.model.envelope import Envelope
from engine.core.model.sealed import sealed
from engine.features.user_data import user_export
from engine.features.user_data.user_export import UserExport
from engine.store.keys import ACTION_TARGETS_KEY, SESSION_STREAM_KEY, action_stream_key, dead_letter_key, offline_key
from engine.store.pending_bodies import PendingBodies
from engine.store.sealed_fields import with_checksum
from tests.support.edge_world import EdgeWorld, edge_world, no_entries
from tests.support.running_engine import RunningEngine


async def test_an_export_has_what_every_place_keeps_of_the_user_and_nothing_of_others(redis_client: Redis) -> None:
    target = "ray://jobs/Robot.run"
    letters, actions = dead_letter_key("default"), action_stream_key(target)
    for user in ("u1", "u2"):
        await redis_client.xadd(letters, with_checksum(letters, {"user": user, "seq": 3, "reason": "no", "body": '{"id":"d1"}'}))
        await redis_client.xadd(SESSION_STREAM_KEY, {"event": "connect", "tenant": "default", "user": user, "at": 5})
        await redis_client.xadd(actions, with_checksum(actions, {"tenant": "default", "user": user, "due": 9, "body": "{}"}))
    await redis_client.xadd(letters, {"user": "u1", "reason": "no", "body": '{"id":'})  # cut
    await redis_client.sadd(ACTION_TARGETS_KEY, target)
    async with edge_world(storage=redis_client) as world, world.http(scopes="publish operator") as client:
        await client.post("/v1/notifications", json={"user": "u1", "type": "post.liked", "id": "m1", "data": {"n": 1}})
        await client.post("/v1/notifications", json={"user": "u1", "type": "reminder", "delay": 60})
        await client.put("/v1/users/u1/profile", json={"locale": "de"})
        await client.patch("/v1/preferences?user=u1", json={"channels": {"*/email": "off"}})
        world.shard.cold = [(4, 505)]
        for seq in (4, 505):
            body = b'"id":"m%d","type":"in.storage"' % seq
            world.bodies.stored[seq] = StoredMessage("default:u1", seq, Envelope(f"m{seq}", b"", NORMAL, True, body), 9, 3)
        answer = await client.get("/v1/users/u1/export")
    exported = answer.json()
    assert [(one["seq"], one["id"]) for one in exported["messages"]] == [(1, "m1"), (505, "m505"), (4, "m4")]
    assert exported["messages"][0]["data"] == {"n": 1}
    assert [one["notification"]["type"] for one in exported["scheduled"]] == ["reminder"]
    assert (exported["user"], exported["profile"]["locale"]) == ("u1", "de")
    assert [one["channels"] for one in exported["preferences"]] == [{"*/email": "off"}]
    letter, damaged, session, action = exported["entries"]
    assert (damaged["stream"], damaged["damaged"], len(damaged)) == ("dead_letters", True, 3)
    assert (letter["stream"], letter["seq"], letter["notification"]) == ("dead_letters", 3, {"id": "d1"})
    assert (session["stream"], session["event"], session["at"]) == ("sessions", "connect", 5)
    assert (action["stream"], action["target"], action["due"]) == ("actions", target, 9)


async def test_a_damaged_session_event_does_not_end_an_export(redis_client: Redis) -> None:
    await redis_client.xadd(SESSION_STREAM_KEY, {"event": b"\xff", b"d\xff": "x", "tenant": "default", "user": "u1", "at": "12"})
    async with edge_world(storage=redis_client) as world, world.http(scopes="operator") as client:
        (entry,) = (await client.get("/v1/users/u1/export")).json()["entries"]
    assert (entry["event"], entry["at"]) == ("\ufffd", 12)


async def test_an_export_has_more_bytes_of_one_read_than_a_stream_keeps(redis_client: Redis) -> None:
    """A stream is measured after 64 more entries, so it may have more until then; these are parted by acknowledged ones."""
    async with edge_world(offline_bytes_max=1 << 20) as world:
        numbers = range(1, 60, 2)
        for seq in numbers:
            envelope = Envelope(f"m{seq}", b"", NORMAL, True, b'"id":"m%d","data":"%b"' % (seq, b"x" * 60_000))
            stored = sealed(msgspec.msgpack.encode(StoredMessage("default:u1", seq, envelope, 9, 3)))
            await redis_client.xadd(offline_key("default:u1"), {b"m": stored}, id=f"{seq}-0")
        world.shard.cold = [(seq, seq) for seq in reversed(numbers)]
        user_export = UserExport(world.gateway, PendingBodies(redis_client), no_entries)
        exported = json.loads(b"".join([piece async for piece in user_export.pieces("default:u1")]))
    assert [one["seq"] for one in exported["messages"]] == [*reversed(numbers)]


async def test_an_export_has_more_messages_than_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_export, "_MESSAGES", 2, raising=False)
    async with edge_world(offline_max=2, inbox_max=1) as world, world.http(scopes="publish operator") as client:
        await client.post("/v1/notifications", json=[{"user": "u1", "type": "reminder", "id": f"m{n}"} for n in range(5)])
        exported = (await client.get("/v1/users/u1/export")).json()
    assert [one["id"] for one in exported["messages"]] == ["m4", "m3", "m2", "m1", "m0"]


async def test_an_export_goes_on_behind_each_listing_of_scheduled_messages() -> None:
    async with edge_world(list_timers_max=2) as world, world.http(scopes="publish operator") as client:
        items = [{"user": "u1", "type": "reminder", "id": f"m{n}", "delay": 60 + n // 2} for n in range(5)]
        await client.post("/v1/notifications", json=items)
        exported = (await client.get("/v1/users/u1/export")).json()
    assert sorted(one["notification"]["id"] for one in exported["scheduled"]) == ["m0", "m1", "m2", "m3", "m4"]


async def test_an_export_answers_503_while_storage_is_away() -> None:
    async with edge_world() as world, world.http(scopes="operator") as client:
        world.shard.cold = [(4, 5)]
        world.bodies.away = True
        assert (await client.get("/v1/users/u1/export")).status_code == 503


async def test_only_an_admin_of_the_tenant_or_an_operator_exports(world: EdgeWorld) -> None:
    for scopes, query, status in (("publish connect", "", 403), ("admin", "?tenant=other", 403)):
        assert (await world.once(scopes=scopes).get(f"/v1/users/u1/export{query}")).status_code == status


async def exported(engine: RunningEngine, user: str, file: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "engine", "export", user, "--output", str(file), "--url", engine.url]
    command += ["--token", engine.token("app", "admin")]
    process = await asyncio.create_subprocess_exec(*command)
    assert await process.wait() == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    return dict(json.loads(file.read_text()))


@pytest.mark.engine
async def test_an_export_has_what_an_erasure_deletes(engine: RunningEngine, tmp_path: Path) -> None:
    user = "exported"
    await engine.publish({"user": user, "type": "task.due", "id": "read"})
    async with engine.connect(user) as socket:
        assert (await engine.receive(socket, "messages"))["messages"][0]["id"] == "read"
        await socket.send('{"type":"ack","seq":1}')
    await engine.publish({"user": user, "type": "task.due", "id": "waits"}, {"user": user, "type": "task.due", "id": "later", "delay": 600})
    before = await exported(engine, user, tmp_path / "before.json")
    assert [one["id"] for one in before["messages"]] == ["waits"]
    assert [one["id"] for one in before["inbox"]] == ["waits", "read"]
    assert [one["notification"]["id"] for one in before["scheduled"]] == ["later"]
    assert {one["stream"] for one in before["entries"]} == {"sessions"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "engine", "erase", user, "--url", engine.url, "--token", engine.token("app", "admin")
    )
    assert await process.wait() == 0
    after = await exported(engine, user, tmp_path / "after.json")
    assert [after[name] for name in ("messages", "inbox", "scheduled", "entries", "topics")] == [[], [], [], [], []]
