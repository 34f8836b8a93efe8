"""The inbox over HTTP: what is listed, searched and marked, what is refused and why."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import pytest

from engine.core.inbox.inbox import ALL
from engine.core.wire import records as wire
from engine.errors import Unavailable
from engine.features.inbox.inboxes import find_rows, parse_query, read
from engine.gateway.shard_client import ShardClient
from tests.support.edge_world import EdgeWorld, edge_world


@pytest.fixture
async def world() -> AsyncIterator[EdgeWorld]:
    async with edge_world(inbox_page_max=4) as world:
        yield world


async def call(world: EdgeWorld, method: str, path: str = "", *, by: str = "u1", scopes: str = "connect", **options: Any) -> httpx.Response:
    return await world.once(by, scopes=scopes).request(method, f"/v1/inbox{path}", **options)


async def publish(world: EdgeWorld, *items: dict[str, Any]) -> None:
    async with world.http("app", scopes="publish") as client:
        answer = await client.post("/v1/notifications", json=[{"user": "u1", "type": "post.liked", **item} for item in items])
        assert answer.status_code == 202


def ids(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [message["id"] for message in answer.json()["messages"]]


async def test_messages_are_listed_the_newest_first_with_what_became_of_them(world: EdgeWorld) -> None:
    await publish(world, {"id": "a", "data": {"n": 1}}, {"id": "b"})
    assert (await call(world, "POST", "/read", json={"ids": ["a"]})).json() == {"unread": 1, "unseen": 1, "revision": 3}
    answer = (await call(world, "GET")).json()
    assert (answer["unread"], answer["unseen"], answer["revision"]) == (1, 1, 3)
    assert "before" not in answer
    newer, older = answer["messages"]
    assert (newer["id"], newer["read"], older["id"], older["read"]) == ("b", False, "a", True)
    assert older["data"] == {"n": 1}
    assert older["event_id"].endswith("-1")
    assert (older["acknowledged"], older["seen"], older["archived"], older["pinned"]) == (False, True, False, False)


async def test_pages_follow_each_other(world: EdgeWorld) -> None:
    await publish(world, *({"id": f"m{number}"} for number in range(6)))
    first = await call(world, "GET", params={"limit": 4})
    assert ids(first) == ["m5", "m4", "m3", "m2"]
    second = await call(world, "GET", params={"before": first.json()["before"]})
    assert ids(second) == ["m1", "m0"]
    assert "before" not in second.json()


async def test_a_search_reads_on_until_it_has_enough(world: EdgeWorld) -> None:
    await publish(world, {"id": "old", "type": "order.paid", "data": {"to": "Müller GmbH"}}, *({"id": f"m{number}"} for number in range(9)))
    assert ids(await call(world, "GET", params={"type": "order.paid"})) == ["old"]
    assert ids(await call(world, "GET", params={"type": "order.*"})) == ["old"]
    assert ids(await call(world, "GET", params={"type": "order"})) == []
    assert ids(await call(world, "GET", params={"q": "MÜLLER"})) == ["old"]
    assert ids(await call(world, "GET", params={"q": "nobody"})) == []
    found = await call(world, "GET", params={"type": "post.*", "limit": 3})
    assert ids(found) == ["m8", "m7", "m6"]
    assert ids(await call(world, "GET", params={"type": "post.*", "limit": 3, "before": found.json()["before"]})) == ["m5", "m4", "m3"]


async def test_unread_and_archived_messages_are_listed_by_themselves(world: EdgeWorld) -> None:
    await publish(world, {"id": "a"}, {"id": "b"}, {"id": "c"})
    await call(world, "POST", "/read", json={"ids": ["a"]})
    await call(world, "POST", "/archive", json={"ids": ["b"]})
    assert ids(await call(world, "GET", params={"unread": "true"})) == ["c"]
    assert ids(await call(world, "GET", params={"archived": "true"})) == ["b"]
    assert ids(await call(world, "GET", params={"archived": "true", "unread": "true"})) == ["b"]
    await call(world, "POST", "/unarchive", json={"all": True})
    assert ids(await call(world, "GET")) == ["c", "b", "a"]


async def test_ids_that_the_shard_does_not_remember_are_looked_up_in_the_inbox(world: EdgeWorld) -> None:
    await publish(world, *({"id": f"m{number}"} for number in range(6)))
    await call(world, "POST", "/archive", json={"ids": ["m1"]})
    world.shard.forgotten_ids = {"m0", "m1"}
    answer = await call(world, "POST", "/read", json={"ids": ["m0", "m1", "m5", "never"]})
    assert answer.json() == {"unread": 3, "unseen": 3, "revision": 9, "unknown": ["never"]}


async def test_a_number_of_another_epoch_marks_nothing(world: EdgeWorld) -> None:
    await publish(world, {"id": "a"}, {"id": "b"})
    assert (await call(world, "POST", "/read", json={"upto": 1, "epoch": "of another time"})).status_code == 409
    assert ids(await call(world, "GET", params={"unread": "true"})) == ["b", "a"]
    epoch = (await call(world, "GET")).json()["messages"][0]["event_id"].rpartition("-")[0]
    assert (await call(world, "POST", "/read", json={"upto": 1, "epoch": epoch})).status_code == 200
    assert ids(await call(world, "GET", params={"unread": "true"})) == ["b"]


async def test_numbers_looked_up_in_another_epoch_mark_nothing(world: EdgeWorld) -> None:
    await publish(world, {"id": "a"}, {"id": "b"})
    world.shard.forgotten_ids = {"a"}
    world.shard.page_epoch = "of another time"
    answer = await call(world, "POST", "/read", json={"ids": ["a"]})
    assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)
    assert ids(await call(world, "GET", params={"unread": "true"})) == ["b", "a"]


async def test_rows_found_before_numbers_began_anew_are_dropped(world: EdgeWorld) -> None:
    def page(epoch: str, before: int, *rows: tuple[int, str]) -> wire.InboxIs:
        return wire.InboxIs(
            0, wire.OK, [wire.InboxRow(seq, 0, False, 0, b'"id":"%b"' % id.encode()) for seq, id in rows], before, epoch=epoch
        )

    class Pages:
        pages = (page("e1", 3, (3, "c")), page("e2", 0, (1, "a")))

        async def ask(self, *_: object) -> wire.InboxIs:
            first, *self.pages = self.pages
            return first

    with pytest.raises(Unavailable, match="begun anew"):
        await read(cast(ShardClient, Pages()), "t:u", parse_query({"type": "post.*"}, world.config), world.config)
    found, epoch = await find_rows(cast(ShardClient, Pages()), "t:u", {"a", "c"}, world.config, (ALL,))
    assert ({id: row.seq for id, row in found.items()}, epoch) == ({"a": 1}, "e2")


async def test_the_inbox_of_another_user_needs_a_scope(world: EdgeWorld) -> None:
    await publish(world, {"id": "a"})
    assert (await call(world, "GET", by="u2", params={"user": "u1"})).status_code == 403
    assert ids(await call(world, "GET", by="u2")) == []
    assert ids(await call(world, "GET", by="ops", scopes="admin", params={"user": "u1"})) == ["a"]
    assert (await call(world, "POST", "/read", by="u2", params={"user": "u1"}, json={"all": True})).status_code == 403


@pytest.mark.parametrize(
    ("mark", "body", "status"),
    [
        ("read", {}, 422),
        ("read", {"ids": ["a"], "all": True}, 422),
        ("read", {"all": False}, 422),
        ("read", {"upto": 0}, 422),
        ("read", {"upto": 1, "epoch": ""}, 422),
        ("read", {"upto": 1, "epoch": "7" * 129}, 422),
        ("read", {"upto": 1, "epoch": 7}, 422),
        ("read", {"epoch": "7"}, 422),
        ("read", {"ids": ["\n"]}, 422),
        ("forgotten", {"all": True}, 404),
        ("read", [], 422),
    ],
)
async def test_a_mark_that_cannot_be_meant_is_refused(world: EdgeWorld, mark: str, body: Any, status: int) -> None:
    assert (await call(world, "POST", f"/{mark}", json=body)).status_code == status
    assert world.shard.of(wire.MarkInbox) == []


async def test_an_engine_without_inboxes_says_so_and_one_whose_storage_is_away_too(world: EdgeWorld) -> None:
    world.shard.inbox_status = wire.NOT_FOUND
    assert "inbox_max" in (await call(world, "GET")).json()["detail"]
    assert (await call(world, "POST", "/seen", json={"all": True})).status_code == 404
    world.shard.inbox_status = wire.UNAVAILABLE
    answer = await call(world, "GET")
    assert answer.status_code == 503
    assert "Retry-After" in answer.headers
