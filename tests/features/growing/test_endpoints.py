"""Messages that grow on edges with a real Redis: begun, added to, read late, ended, and what the loss of an edge leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from engine.errors import StorageUnavailable
from engine.features.growing import growing
from engine.features.growing.core import IDLE
from engine.features.growing.keys import GROWING_DUE_KEY, GROWING_TENANTS_KEY, growing_key, growth_key
from engine.features.growing.store import GrowingStore
from tests.support.edge_world import EdgeWorld, edge_world, frame_of
from tests.support.waiting import until

KEY = "default:u1"
FAST = {"growing_poll_ms": 20, "growing_chunk_ms": 20, "growing_rollup_ms": 10}


@pytest.fixture
async def world(redis_client: Redis) -> AsyncIterator[EdgeWorld]:
    async with edge_world(storage=redis_client, **FAST) as world:
        yield world


async def post(world: EdgeWorld, path: str, body: Any, status: int = 200, scopes: str = "publish") -> Any:
    answer = await world.once("app", scopes=scopes).post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def begin(world: EdgeWorld, id: str = "m1", status: int = 200, writer: str = "w1", **fields: Any) -> Any:
    whole = {name: fields.pop(name) for name in ("list", "idle") if name in fields}
    message = {"user": "u1", "type": "llm.answer", "id": id, **fields}
    return await post(world, "/v1/growing", {"writer": writer, "message": message, **whole}, status)


async def add(world: EdgeWorld, begun: Any, offset: float, text: str = "", **fields: Any) -> Any:
    part = {"user": "u1", "id": begun["id"], "generation": begun["generation"], "offset": offset, "text": text, **fields}
    return (await post(world, "/v1/parts", {"parts": [part]}))["parts"][0]


async def end(world: EdgeWorld, begun: Any, size: int, status: int = 200, **ending: Any) -> Any:
    body = {"user": "u1", "generation": begun["generation"], "size": size, **ending}
    return await post(world, f"/v1/growing/{begun['id']}/end", body, status)


async def look(world: EdgeWorld, id: str = "m1", by: str = "u1", scopes: str = "connect", **query: Any) -> httpx.Response:
    return await world.once(by, scopes=scopes).get(f"/v1/growing/{id}", params=query)


async def stored(world: EdgeWorld, size: int) -> None:
    """Storage has so many bytes of the text."""
    answer = await look(world, wait=10, offset=size - 1)
    assert answer.json()["size"] >= size, answer.text


def messages(world: EdgeWorld) -> list[dict[str, Any]]:
    return [json.loads(b"{%b}" % body) for body in world.shard.mailboxes.get(KEY, {}).values()]


async def parts_until(socket: Any, size: int) -> tuple[str, list[dict[str, Any]]]:
    """The text that a device has once it has so many bytes, and the frames."""
    text, frames = b"", []
    while len(text) < size:
        frame = await frame_of(socket, "part")
        frames.append(frame)
        text = text[: frame["offset"]] + frame["text"].encode()
    return text.decode(), frames


# -- Growing. ----------------------------------------------------------------------------------------------------------
async def test_devices_get_parts_and_then_the_message(world: EdgeWorld) -> None:
    async with world.connect("u1") as socket:
        begun = await begin(world, data={"model": "m"})
        first = await frame_of(socket, "part")
        assert (first["type"], first["id"], first["offset"], first["text"]) == ("part", "m1", 0, "")
        assert (first["message"]["type"], first["message"]["data"]) == ("llm.answer", {"model": "m"})
        offset = 0
        for token in ("Hé", "llo", " you"):
            taken = await add(world, begun, offset, token)
            offset += len(token.encode())
            assert (taken["state"], taken["have"]) == ("ok", offset)
        text, _ = await parts_until(socket, offset)
        assert text == "Héllo you"
        assert (await end(world, begun, offset))["status"] == "accepted"
        message = (await frame_of(socket))["messages"][0]
    assert (message["id"], message["data"]) == ("m1", {"model": "m", "text": "Héllo you"})


async def test_parts_that_arrive_together_are_one_frame(world: EdgeWorld) -> None:
    async with world.connect("u1") as socket:
        begun = await begin(world)
        await frame_of(socket, "part")
        part = {"user": "u1", "id": "m1", "generation": begun["generation"]}
        taken = await post(world, "/v1/parts", {"parts": [{**part, "offset": place, "text": str(place)} for place in range(10)]})
        assert [one["have"] for one in taken["parts"]] == list(range(1, 11))
        assert (await frame_of(socket, "part"))["text"] == "0123456789"


async def test_a_slow_shard_makes_parts_larger(world: EdgeWorld) -> None:
    async with world.connect("u1") as socket:
        begun = await begin(world)
        await frame_of(socket, "part")
        world.gateway.transient_frames._under_way.add(0)  # it has not answered
        for number in range(5):
            await add(world, begun, number, str(number))
            await asyncio.sleep(0.02)
        world.gateway.transient_frames.answered(0)
        assert (await frame_of(socket, "part"))["text"] == "01234"


async def test_event_streams_and_polls_get_parts(world: EdgeWorld) -> None:
    async with world.http("u1") as client:
        polled = asyncio.create_task(client.get("/v1/poll", params={"wait": 20}))
        async with client.stream("GET", "/v1/sse") as stream:
            lines = stream.aiter_lines()
            while await anext(lines) != "event: welcome":
                pass
            await until(lambda: len(world.shard.attached) == 2)
            await begin(world)
            while await anext(lines) != "event: part":
                pass
            assert json.loads((await anext(lines)).removeprefix("data: "))["id"] == "m1"
        assert [frame["id"] for frame in (await polled).json()["frames"]] == ["m1"]


async def test_a_late_reader_gets_what_there_is_and_then_the_rest(world: EdgeWorld) -> None:
    begun = await begin(world)
    await add(world, begun, 0, "Héll")
    await stored(world, 5)
    late = (await look(world)).json()
    assert (late["text"], late["offset"], late["state"], late["message"]["type"]) == ("Héll", 0, "growing", "llm.answer")
    assert (await look(world, offset=2)).json()["offset"] == 1  # the beginning of its character
    rest = asyncio.create_task(look(world, offset=5, wait=20))
    await add(world, begun, 5, "o")
    assert (await rest).json()["text"] == "o"
    waiting = asyncio.create_task(look(world, offset=6, wait=20))
    await end(world, begun, 6)
    assert ((await waiting).json()["state"], (await waiting).json()["text"]) == ("ended", "")


async def test_a_reader_of_another_edge_is_woken(world: EdgeWorld, redis_client: Redis) -> None:
    async with edge_world(storage=redis_client, **FAST) as other:
        begun = await begin(world)
        waiting = asyncio.create_task(look(other, wait=20))
        await add(world, begun, 0, "hi")
        assert (await asyncio.wait_for(waiting, 20)).json()["text"] == "hi"


async def test_a_user_lists_what_grows(world: EdgeWorld) -> None:
    await begin(world)
    done = await begin(world, "m2")
    await end(world, done, 0)
    listed = (await world.once("u1").get("/v1/growing")).json()["growing"]
    assert [(one["id"], one["state"], one["size"]) for one in listed] == [("m1", "growing", 0)]


async def test_progress_is_a_part_and_stays_with_the_message(world: EdgeWorld) -> None:
    async with world.connect("u1") as socket:
        begun = await begin(world)
        await frame_of(socket, "part")
        await add(world, begun, 0, progress={"value": 0.4, "text": "4 of 10", "step": "load"})
        assert (await frame_of(socket, "part"))["progress"] == {"value": 0.4, "text": "4 of 10", "step": "load"}
        await end(world, begun, 0)
        assert (await frame_of(socket))["messages"][0]["data"]["progress"]["value"] == 0.4


async def test_a_list_grows_by_lines(world: EdgeWorld) -> None:
    async with world.connect("u1") as socket:
        begun = await begin(world, list=True)
        assert (await frame_of(socket, "part"))["list"] is True
    await add(world, begun, 0, '{"row":1}\n')
    await add(world, begun, 10, '{"row":2}\n')
    await end(world, begun, 20)
    assert messages(world)[0]["data"]["items"] == [{"row": 1}, {"row": 2}]


async def test_a_too_deeply_nested_line_of_a_list_is_a_text(world: EdgeWorld) -> None:
    depth = world.gateway.config.json_depth_max - 2  # in an array in `data`
    deepest, deeper = "[" * depth + "]" * depth, "[" * (depth + 1) + "]" * (depth + 1)
    begun = await begin(world, list=True)
    await add(world, begun, 0, f"{deepest}\n{deeper}\n")
    await end(world, begun, len(deepest) + len(deeper) + 2)
    assert messages(world)[0]["data"]["items"] == [json.loads(deepest), deeper]


# -- Losses. -----------------------------------------------------------------------------------------------------------
async def test_another_edge_tells_what_the_first_had_not_stored(world: EdgeWorld, redis_client: Redis) -> None:
    async with edge_world(storage=redis_client, **FAST) as other:
        begun = await begin(world)
        await add(world, begun, 0, "stored")
        await stored(world, 6)
        assert await add(other, begun, 10, "later") == {"state": "behind", "have": 6, "stored": 6}
        assert (await add(other, begun, 6, "lostlater"))["have"] == 15
        assert (await end(other, begun, 15))["state"] == "ended"
        assert (await add(world, begun, 6, "lost"))["state"] in ("ok", "ended")  # the first edge learns it when it stores
        await until_state(world, begun, "ended")
    assert [message["data"]["text"] for message in messages(other)] == ["storedlostlater"]


async def until_state(world: EdgeWorld, begun: Any, state: str) -> None:
    async with asyncio.timeout(20):
        while (await add(world, begun, 0))["state"] != state:
            await asyncio.sleep(0.02)


async def test_an_end_waits_for_text_that_is_missing(world: EdgeWorld) -> None:
    begun = await begin(world)
    await add(world, begun, 0, "abc")
    problem = await end(world, begun, 5, status=409)
    assert (problem["type"], problem["have"]) == ("urn:engine:problem:behind", 3)
    await add(world, begun, 3, "de")
    await end(world, begun, 5)
    await end(world, begun, 5)  # its answer was lost
    assert [message["data"]["text"] for message in messages(world)] == ["abcde"]


async def test_an_end_waits_for_progress_on_its_way_to_storage(world: EdgeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    store, under_way, held = GrowingStore.store, asyncio.Event(), asyncio.Event()

    async def late(*arguments: Any) -> Any:
        under_way.set()
        await held.wait()
        return await store(*arguments)

    begun = await begin(world)
    monkeypatch.setattr(GrowingStore, "store", late)
    await add(world, begun, 0, progress={"value": 0.4})
    await under_way.wait()
    ending = asyncio.create_task(end(world, begun, 0))
    await asyncio.wait({ending}, timeout=0.2)
    assert not ending.done()
    held.set()
    await ending
    assert messages(world)[0]["data"]["progress"] == {"value": 0.4}


@pytest.mark.parametrize("by", ["publisher", "engine"])
async def test_a_category_may_vanish_while_a_message_grows(redis_client: Redis, tmp_path: Path, by: str) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[category.answers]\n")
    idle_s = 1 if by == "engine" else 100
    async with edge_world(storage=redis_client, **FAST, rules_path=str(rules), growing_idle_s=idle_s) as world:
        begun = await begin(world, category="answers")
        await add(world, begun, 0, "abc")
        await stored(world, 3)
        rules.write_text("[category.others]\n")
        await until(lambda: "answers" not in world.gateway.category_book.in_use("default").categories, 20)
        if by == "publisher":
            await end(world, begun, 3)
        await until(lambda: bool(messages(world)), 20)
        assert messages(world)[0]["data"]["text"] == "abc"


async def test_a_message_that_is_refused_for_good_grows_no_more(world: EdgeWorld, redis_client: Redis) -> None:
    begun = await begin(world)
    await add(world, begun, 0, "x" * 3000)
    await stored(world, 3000)
    smaller = {"data_bytes_max": 2100, "context_bytes_max": 10, "growing_bytes_max": 10}
    async with edge_world(storage=redis_client, **FAST, **smaller) as other:  # after a restart with other settings
        await end(other, begun, 3000, status=413)
    assert not await redis_client.exists(GROWING_TENANTS_KEY, GROWING_DUE_KEY)


async def test_an_end_that_was_refused_is_refused_when_repeated(world: EdgeWorld) -> None:
    await post(world, "/v1/notifications", {"user": "u1", "type": "t", "id": "m1"}, 202)
    begun = await begin(world)
    for _ in ("its answer is lost", "the publisher repeats it"):
        await end(world, begun, 0, status=409)
    assert len(messages(world)) == 1


async def test_an_unreadable_message_leaves_the_others_alone(world: EdgeWorld, redis_client: Redis) -> None:
    async with edge_world(storage=redis_client, **FAST) as other:
        begun = [await begin(other, id) for id in ("m1", "m2")]
        await redis_client.hset(growth_key(KEY, "m1"), "head", b"\xc1")
        parts = [{"user": "u1", "id": one["id"], "generation": one["generation"], "offset": 0, "text": "a"} for one in begun]
        assert [part["state"] for part in (await post(world, "/v1/parts", {"parts": parts}))["parts"]] == ["ended", "ok"]
        assert [one["id"] for one in (await world.once("u1").get("/v1/growing")).json()["growing"]] == ["m2"]
        again = await begin(world, "m1", writer="w2")
        assert (await end(world, again, 0))["status"] == "accepted"


async def test_progress_that_comes_late_replaces_no_newer_one(
    world: EdgeWorld, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, under_way, held, done = GrowingStore.store, asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def late(*arguments: Any) -> Any:
        under_way.set()
        await held.wait()
        try:
            return await store(*arguments)
        finally:
            done.set()

    async with edge_world(storage=redis_client, **FAST) as other:
        begun = await begin(world)
        with monkeypatch.context() as patched:
            patched.setattr(GrowingStore, "store", late)
            await add(world, begun, 0, "ab", progress={"value": 0.1})
            await under_way.wait()
        await add(other, begun, 0, "abcd", progress={"value": 0.9})  # the publisher has lost its connection
        await stored(other, 4)
        held.set()
        await done.wait()
        await end(other, begun, 4)
    assert messages(other)[0]["data"]["progress"] == {"value": 0.9}


async def test_a_message_whose_publisher_is_silent_ends(redis_client: Redis) -> None:
    async with edge_world(storage=redis_client, **FAST, growing_idle_s=1) as world:
        begun = await begin(world)
        await add(world, begun, 0, "half an ans")
        await until(lambda: bool(messages(world)), 20)
        assert messages(world)[0]["data"] == {"text": "half an ans", "ended": "idle"}
        await until_state(world, begun, "ended")
        assert (await begin(world))["state"] == "ended"


async def test_a_shard_that_is_away_delays_no_end_of_others(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = growing.Growing._finish

    async def waits_for_its_shard(self: growing.Growing, key: str, id: str, *given: Any) -> Any:
        if id == "m1":
            await asyncio.Event().wait()
        return await finish(self, key, id, *given)

    monkeypatch.setattr(growing.Growing, "_finish", waits_for_its_shard)
    async with edge_world(storage=redis_client, **FAST) as world:
        for id in ("m1", "m2"):
            await begin(world, id)
        await redis_client.zadd(GROWING_DUE_KEY, {f"{KEY}\nm1": 1, f"{KEY}\nm2": 2})
        await until(lambda: bool(messages(world)), 20)
        await begin(world, "m3")
        await redis_client.zadd(GROWING_DUE_KEY, {f"{KEY}\nm3": 1})
        await until(lambda: [message["id"] for message in messages(world)] == ["m2", "m3"], 20)


async def test_an_end_changes_type_and_data(world: EdgeWorld) -> None:
    begun = await begin(world, data={"run": 7, "state": "runs"}, idle={"type": "run.lost"})
    await add(world, begun, 0, progress={"value": 1})
    await end(world, begun, 0, type="run.done", data={"state": "done", "rows": 3})
    (message,) = messages(world)
    data = {"run": 7, "state": "done", "rows": 3, "text": "", "progress": {"value": 1.0}}
    assert (message["type"], message["data"]) == ("run.done", data)
    again = await begin(world)
    assert (again["state"], again["type"], "ended" in again) == ("ended", "run.done", False)


async def test_a_silent_publisher_chose_how_its_message_ends(redis_client: Redis) -> None:
    async with edge_world(storage=redis_client, **FAST, growing_idle_s=1) as world:
        await begin(world, data={"run": 7}, idle={"type": "run.lost", "data": {"why": "silent"}})
        await until(lambda: bool(messages(world)), 20)
        (message,) = messages(world)
        assert (message["type"], message["data"]) == ("run.lost", {"run": 7, "why": "silent", "text": "", "ended": "idle"})
        again = await begin(world, writer="w2")
        assert (again["state"], again["ended"]) == ("ended", "idle")


async def test_an_end_that_comes_too_late_is_not_taken_for_its_publishers(redis_client: Redis) -> None:
    async with edge_world(storage=redis_client, **FAST) as world:
        begun = await begin(world, idle={"type": "run.lost"})
        store = GrowingStore([redis_client], world.config)
        await store.close(KEY, "m1", None, -1, IDLE, b"", 0, 60_000)
        for _ in ("it publishes the message", "it finds that published"):
            assert await end(world, begun, 0, type="run.done") == {"id": "m1", "state": "ended", "ended": "idle"}
        assert [message["type"] for message in messages(world)] == ["run.lost"]


async def test_a_repeated_end_is_taken_for_its_publishers(world: EdgeWorld) -> None:
    begun = await begin(world)
    await end(world, begun, 0)
    assert await end(world, begun, 0) == {"id": "m1", "state": "ended"}


@pytest.mark.parametrize(
    ("ending", "path"),
    [
        ({"type": "no type"}, "type"),
        ({"data": [1]}, "data"),
        ({"data": {"items": []}}, "data.items"),
        ({"data": {"x": "y" * 5000}}, "data"),
    ],
)
async def test_an_ending_that_cannot_be_published_is_refused(world: EdgeWorld, ending: Any, path: str) -> None:
    problem = await begin(world, status=422, idle=ending)
    assert problem["errors"][0]["path"] == f"$.idle.{path}"
    begun = await begin(world)
    problem = await end(world, begun, 0, 422, **ending)
    assert problem["errors"][0]["path"] == f"$.{path}"
    assert (await add(world, begun, 0, "it still grows"))["state"] == "ok"


async def test_a_message_with_parts_does_not_end_by_itself(redis_client: Redis) -> None:
    async with edge_world(storage=redis_client, **FAST, growing_idle_s=1) as world:
        begun, size = await begin(world), 0
        member = f"{KEY}\nm1"
        first = await redis_client.zscore(GROWING_DUE_KEY, member) or 0
        async with asyncio.timeout(20):
            while (await redis_client.zscore(GROWING_DUE_KEY, member) or 0) < first + 2000:
                assert (await add(world, begun, size, "x"))["state"] == "ok"
                size += 1
                await asyncio.sleep(0.02)
        assert (await look(world)).json()["state"] == "growing"


async def test_a_message_with_parts_outlasts_an_outage_of_storage(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, back = set[str](), asyncio.Event()
    take, store = GrowingStore.take, GrowingStore.store

    async def look(self: GrowingStore, *args: Any) -> list[tuple[str, str]]:
        seen.add("due" if back.is_set() else "away")
        if not back.is_set():
            raise StorageUnavailable("away")
        return await take(self, *args)

    async def store_late(self: GrowingStore, *args: Any) -> list[int | str]:
        if "due" not in seen:
            raise StorageUnavailable("away")
        return await store(self, *args)

    monkeypatch.setattr(GrowingStore, "take", look)
    monkeypatch.setattr(GrowingStore, "store", store_late)
    async with edge_world(storage=redis_client, **FAST) as world:
        begun = await begin(world)
        assert (await add(world, begun, 0, "it still grows"))["state"] == "ok"
        await redis_client.zadd(GROWING_DUE_KEY, {f"{KEY}\nm1": 1})  # the outage is long
        await until(lambda: "away" in seen)
        back.set()
        await stored(world, 14)
        assert (await end(world, begun, 14))["status"] == "accepted"
        assert messages(world)[0]["data"] == {"text": "it still grows"}


async def test_an_edge_that_died_before_it_published_leaves_that_to_another(redis_client: Redis) -> None:
    async with edge_world(storage=redis_client, **FAST) as dying:
        begun = await begin(dying)
        await add(dying, begun, 0, "abc")
        await stored(dying, 3)
        dying.shard.connected = False  # it does not answer
        ending = asyncio.create_task(end(dying, begun, 3, type="run.done"))
        await until_closed(redis_client)
        ending.cancel()
    await redis_client.zadd(GROWING_DUE_KEY, {f"{KEY}\nm1": 1})  # the lease is over
    async with edge_world(storage=redis_client, **FAST) as other:
        await until(lambda: bool(messages(other)), 20)
        assert (messages(other)[0]["type"], messages(other)[0]["data"]) == ("run.done", {"text": "abc"})


async def until_closed(redis_client: Redis) -> None:
    async with asyncio.timeout(20):
        while not await redis_client.hexists(growth_key(KEY, "m1"), "reason"):  # type: ignore[misc]
            await asyncio.sleep(0.01)


async def test_a_drain_without_storage_waits_once_for_all_messages(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any) -> Any:
        raise StorageUnavailable("away")

    monkeypatch.setattr(growing, "_FLUSH_S", 0.2)
    async with edge_world(storage=redis_client, **FAST) as world:
        begun = [await begin(world, f"m{number}") for number in range(40)]
        monkeypatch.setattr(GrowingStore, "store", away)
        for one in begun:
            await add(world, one, 0, "text")
        (feature,) = [feature for feature in world.features if feature.name == "growing"]
        assert feature.drain is not None
        async with asyncio.timeout(4):
            await feature.drain()


async def test_another_writer_begins_it_anew(world: EdgeWorld) -> None:
    async with world.connect("u1") as socket:
        first = await begin(world)
        await add(world, first, 0, "one try")
        await parts_until(socket, 7)
        assert (await begin(world))["have"] == 7  # its own repeat
        second = await begin(world, writer="w2")
        assert second["generation"] > first["generation"]
        anew = await frame_of(socket, "part")
        assert (anew["offset"], anew["generation"]) == (0, second["generation"])
    assert (await add(world, first, 7, "!"))["state"] == "replaced"
    await end(world, first, 8, status=409)
    await add(world, second, 0, "another")
    await stored(world, 7)
    read = await look(world, offset=5, generation=first["generation"])
    assert read.json()["text"] == "another"


# -- Bounds and refusals. ----------------------------------------------------------------------------------------------
async def test_ended_messages_do_not_count_in_the_limit_of_a_user(redis_client: Redis) -> None:
    async with edge_world(storage=redis_client, **FAST, growing_per_user_max=2) as world:
        for number in range(3):
            await end(world, await begin(world, f"done-{number}"), 0)
        await begin(world, "a")
        await begin(world, "b")
        assert "growing_per_user_max" in (await begin(world, "c", status=429))["detail"]


async def test_an_erasure_cut_short_leaves_room_for_the_user(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = GrowingStore.end

    async def dies_after_it(*given: Any, **more: Any) -> None:
        await finish(*given, **more)
        raise StorageUnavailable("killed")

    async with edge_world(storage=redis_client, **FAST, growing_per_user_max=1) as world:
        await begin(world)
        with monkeypatch.context() as patched:
            patched.setattr(GrowingStore, "end", dies_after_it)
            assert (await world.once("app", scopes="admin").delete("/v1/users/u1")).status_code == 503
        await begin(world, "m2")


async def test_a_tenant_has_so_many_at_once(redis_client: Redis) -> None:
    async with edge_world(storage=redis_client, **FAST, growing_per_tenant_max=1) as world:
        begun = await begin(world, "a")
        assert "growing_per_tenant_max" in (await begin(world, "b", status=429))["detail"]
        await end(world, begun, 0)
        assert not await redis_client.exists(GROWING_TENANTS_KEY)
        await begin(world, "b")


async def test_a_text_that_is_too_long_is_refused(redis_client: Redis) -> None:
    async with edge_world(storage=redis_client, **FAST, growing_bytes_max=10) as world:
        begun = await begin(world)
        assert (await add(world, begun, 0, "x" * 11))["state"] == "full"
        assert (await add(world, begun, 0, "x" * 10))["state"] == "ok"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"writer": "", "message": {"user": "u1", "type": "t"}}, "$.writer"),
        ({"writer": "w", "message": {"user": "u1", "type": "t", "delay": 1}}, "$.message.delay"),
        ({"writer": "w", "message": {"user": "u1", "type": "t", "data": {"text": ""}}}, "$.message.data.text"),
        ({"writer": "w", "message": {"user": "u1", "type": "t", "data": [1]}}, "$.message.data"),
        ({"writer": "w", "message": {"user": "u1", "type": "no type"}}, "$.message.type"),
        ({"writer": "w", "message": {"type": "t"}}, "$.message.user"),
    ],
)
async def test_bad_input_names_the_field(world: EdgeWorld, body: Any, path: str) -> None:
    problem = await post(world, "/v1/growing", body, 422)
    assert problem["errors"][0]["path"] == path, problem


@pytest.mark.parametrize("value", [b'"\xff"', b"1e400"])
async def test_unreadable_data_is_refused_by_its_field(world: EdgeWorld, value: bytes) -> None:
    body = b'{"writer":"w","message":{"user":"u1","type":"t","data":{"a":%b}}}' % value
    answer = await world.once("app", scopes="publish").post("/v1/growing", content=body)
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "$.message.data")


@pytest.mark.parametrize(
    ("fields", "path"),
    [({"offset": 0.5}, "offset"), ({"generation": -1}, "generation"), ({"progress": {"value": 2}}, "progress.value")],
)
async def test_bad_parts_are_refused_by_their_place(world: EdgeWorld, fields: Any, path: str) -> None:
    part = {"user": "u1", "id": "m1", "generation": 1, "offset": 0, **fields}
    problem = await post(world, "/v1/parts", {"parts": [part]}, 422)
    assert problem["errors"][0]["path"] == f"$.parts[0].{path}"


async def test_only_publishers_write_and_only_the_user_reads(world: EdgeWorld) -> None:
    begun = await begin(world)
    for path in ("/v1/growing", "/v1/parts", f"/v1/growing/{begun['id']}/end"):
        await post(world, path, {}, 403, scopes="connect")
    assert (await look(world, by="u2")).status_code == 404
    assert (await look(world, by="u2", user="u1")).status_code == 403
    assert (await look(world, by="app", scopes="publish", user="u1")).status_code == 200


async def test_an_upgrade_under_way_lets_nothing_grow(world: EdgeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.gateway.slots, "formats", 2)
    assert "upgrade" in (await begin(world, status=503))["detail"]


async def test_an_erasure_and_an_export_have_what_grows(world: EdgeWorld, redis_client: Redis) -> None:
    begun = await begin(world)
    await add(world, begun, 0, "secret")
    await stored(world, 6)
    rows = [json.loads(row) async for row in world.gateway.kept_of_user["growing"](KEY)]
    assert [(row["id"], row["text"]) for row in rows] == [("m1", "secret")]
    await world.gateway.erase_of_user["growing"](KEY)
    assert not await redis_client.exists(growing_key(KEY), growth_key(KEY, "m1"), GROWING_DUE_KEY, GROWING_TENANTS_KEY)


async def test_a_full_list_of_short_lines_is_published(world: EdgeWorld) -> None:
    begun, offset = await begin(world, list=True), 0
    for lines in ("1e9\n" * 4000, "a\n" * 500):
        while (taken := await add(world, begun, offset, lines))["state"] == "ok":
            offset = taken["have"]
    await end(world, begun, offset)
    assert messages(world)[0]["data"]["items"][-1] == "a"


async def test_a_full_text_is_published_without_a_progress_of_control_characters(world: EdgeWorld) -> None:
    context = {"title": "c" * (world.config.context_bytes_max - 20)}
    begun, offset = await begin(world, data=context), 0
    while (taken := await add(world, begun, offset, "a" * 1000, progress={"text": "\1" * 200, "step": "\2" * 200}))["state"] == "ok":
        offset = taken["have"]
    await end(world, begun, offset, data={"more": "c" * (world.config.context_bytes_max - 20)})
    data = messages(world)[0]["data"]
    assert (len(data["text"]), "progress" in data) == (offset, False)
