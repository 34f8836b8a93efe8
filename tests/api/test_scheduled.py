"""How a timer is shown, and which problem each refusal of a scheduler is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given

from engine.api.scheduled import as_json, position_of, raise_unless_ok
from engine.core.model.constants import AT_MAX_MS
from engine.core.model.envelope import Envelope
from engine.core.model.routing import audience_key, mailbox_key
from engine.core.wire import records as wire
from engine.errors import EngineError, Overloaded, Unavailable
from engine.http.problems import ALREADY_FIRED, Problem
from tests.support.edge_world import edge_world
from tests.support.json_values import json_values


def timer(key: str, data: Any = None) -> wire.Timer:
    body = b'"id":"m","type":"t","data":%b' % msgspec.json.encode(data)
    return wire.Timer("3-a", key, 2000, 1000, 0, Envelope("m", b"", 1, True, body))


@pytest.mark.parametrize(
    ("key", "whom"),
    [
        (mailbox_key("t", "ann"), {"user": "ann"}),
        (mailbox_key("t", "a:b"), {"user": "a:b"}),
        (audience_key("t", "news"), {"topic": "news"}),
        (audience_key("t", ""), {"broadcast": True}),
    ],
)
def test_a_timer_is_shown_with_its_times_and_whom_it_is_for(key: str, whom: dict[str, Any]) -> None:
    shown = msgspec.json.decode(msgspec.json.encode(as_json(timer(key, 5))))
    assert shown == {
        "scheduled_id": "3-a",
        "scheduled_at": 2000,
        "created_at": 1000,
        "notification": {"id": "m", "type": "t", "data": 5},
        **whom,
    }


@given(json_values)
def test_the_notification_is_shown_byte_for_byte(data: Any) -> None:
    one = timer("t:u", data)
    assert b"{%b}" % one.envelope.body in msgspec.json.encode(as_json(one))


def test_an_answer_that_is_ok_is_returned() -> None:
    answer = wire.TimerAnswer(1, wire.OK, [timer("t:u")])
    assert raise_unless_ok(answer) is answer


@pytest.mark.parametrize(
    ("status", "detail", "kind", "said"),
    [
        (wire.NOT_FOUND, "", Problem, "no such scheduled notification"),
        (wire.ALREADY_FIRED, "", Problem, "delivered already"),
        (wire.OVERLOADED, "", Overloaded, "a limit is reached"),
        (wire.OVERLOADED, "100 timers of a user", Overloaded, "100 timers of a user"),
        (wire.UNAVAILABLE, "", Unavailable, "durable storage did not answer"),
        (wire.UNAVAILABLE, "the disk is full", Unavailable, "the disk is full"),
    ],
)
def test_every_other_status_is_an_error_with_the_schedulers_detail(status: int, detail: str, kind: type[EngineError], said: str) -> None:
    with pytest.raises(kind, match=said) as caught:
        raise_unless_ok(wire.TimerAnswer(1, status, detail=detail))
    if isinstance(caught.value, Problem):
        expected = (404, "about:blank") if status == wire.NOT_FOUND else (409, ALREADY_FIRED)
        assert (caught.value.status, caught.value.type) == expected


async def test_a_listing_goes_on_behind_the_last_timer_of_the_one_before() -> None:
    async with edge_world(list_timers_max=2) as world, world.http(scopes="publish") as client:
        items = [{"user": "ann", "type": "t", "id": f"m{number}", "delay": 60 + number // 2} for number in range(5)]
        assert (await client.post("/v1/notifications", json=items)).status_code == 202
        found, after = [], ""
        while True:
            page = (await client.get("/v1/scheduled", params={"user": "ann"} | ({"after": after} if after else {}))).json()
            found += [one["notification"]["id"] for one in page["scheduled"]]
            assert len(page["scheduled"]) <= 2
            if not (after := page.get("next", "")):
                break
    assert found == [f"m{number}" for number in range(5)]


@pytest.mark.parametrize("method", ["GET", "DELETE", "PATCH"])
async def test_an_id_with_an_encoded_slash_names_no_timer(method: str) -> None:
    async with edge_world() as world, world.http(scopes="publish") as client:
        assert (await client.request(method, "/v1/scheduled/0-a%2Fb", json={"delay": 5})).status_code == 404


@pytest.mark.parametrize("text", ["", "7", "x-3-a", "-3-a", "7-a", f"{AT_MAX_MS + 1}-3-a"])
def test_a_position_that_no_answer_gave_is_refused(text: str) -> None:
    with pytest.raises(Problem, match="`next` of an answer"):
        position_of(text)
