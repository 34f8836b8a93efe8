"""`GET /v1/history`, and timelines with a history: who may, what is asked of the archivist, and what is answered without it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from engine.config import Config
from engine.core.wire.records import Step
from engine.features.history.endpoints import History
from engine.http.problems import Problem
from tests.support.edge_world import edge_world

CONFIG = Config()
ID = bytes(range(16))


class Archive:
    """Answers with these rows, and keeps what it was asked."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rows = list(rows)
        self.asked: list[tuple[dict[str, Any], int]] = []

    async def query(self, wanted: Mapping[str, Any], limit: int) -> list[dict[str, Any]]:
        self.asked.append((dict(wanted), limit))
        return self.rows[:limit]


def row(event: str, at_ms: int = 5, **members: Any) -> dict[str, Any]:
    return {"id": ID, "at_ms": at_ms, "tenant": "t", "user_id": "alice", "event": event, **members}


async def test_an_engine_without_a_history_has_none() -> None:
    async with edge_world() as world, world.http(scopes="admin") as client:
        answer = await client.get("/v1/history")
        assert answer.status_code == 404
        assert "history_url" in answer.json()["detail"]


async def test_a_page_has_the_names_of_the_interface_and_the_cursor_of_the_next_one() -> None:
    sent = row("acknowledged", 1005, message="m1", seq=7, sent_ms=1000, client_ms=1003, rtt_ms=5, read_ms=3, skew_ms=0, device="phone")
    archive = Archive(sent, row("connect", 999))
    history = History(CONFIG, archive.query)
    page = await history.page("t", "alice", QueryParams("id=m1&since=1&until=2000&limit=1&before=" + ID.hex()))
    assert archive.asked == [({"tenant": "t", "user": "alice", "message": "m1", "since_ms": 1, "until_ms": 2000, "before": ID}, 1)]
    shown = {
        "at": 1005, "user": "alice", "event": "acknowledged", "id": "m1", "seq": 7, "sent": 1000, "client_ts": 1003, "rtt_ms": 5,
        "read_ms": 3, "skew_ms": 0, "device": "phone",
    }  # fmt: skip
    assert page == {"tenant": "t", "history": [shown], "before": ID.hex()}
    assert "before" not in await history.page("t", None, QueryParams("limit=500"))


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("id=", "`id`"), ("since=yesterday", "`since`"), ("until=-1", "`until`"), ("before=zz", "`before`"),
        ("before=00", "`before`"), ("limit=0", "`limit`"), ("limit=501", "`limit`"), ("usr=alice", "`usr`"),
    ],
)  # fmt: skip
async def test_a_wrong_parameter_is_told_by_its_name(query: str, told: str) -> None:
    with pytest.raises(Problem, match=told) as caught:
        await History(CONFIG, Archive().query).page("t", None, QueryParams(query))
    assert caught.value.status == 400


@pytest.mark.parametrize(("user", "status"), [("", 400), ("%ff", 400), ("%ef%bf%bd", 404)])
async def test_a_user_has_a_name_in_utf_8(user: str, status: int) -> None:
    async with edge_world() as world, world.http(scopes="admin") as client:
        assert (await client.get(f"/v1/history?user={user}")).status_code == status


async def test_the_steps_of_a_timeline_have_where_a_message_was_sent() -> None:
    archive = Archive(row("sent", 6, attempt=1, device="phone", transport="sse", node="edge-0", session="s"), row("accepted"))
    steps = await History(CONFIG, archive.query).steps("t", "alice", "m1")
    assert steps == [
        Step(5, "accepted"),
        Step(6, "sent", details={"attempt": 1, "device": "phone", "transport": "sse", "node": "edge-0"}),
    ]
    assert await History(CONFIG, None).steps("t", "alice", "m1") is None
