"""The tables [[source]], the requests of rows and the fates of rows, by the engine's documented answers."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.auth.tokens import Principal
from engine.config import Config
from engine.core.model.question import QUESTIONS_FULL
from engine.core.wire.records import POISONED, TIMERS_FULL
from engine.errors import ConfigError
from engine.features.sources.core import Held, HttpAnswer, Source, SourceRow, fates_of, requests_of, sources_of
from engine.features.sources.sources_check import look
from engine.publish.drafts import parse_drafts
from engine.publish.media_types import Content
from tests.support.recursion_limit import recursion_limit_of_an_edge

TABLE: dict[str, Any] = {"kind": "postgresql", "name": "orders", "connection": "postgresql://db/app"}


def source(**members: Any) -> Source:
    (made,) = sources_of(json.dumps([{**TABLE, **members}]))
    return made


def rows(*bodies: str) -> list[SourceRow]:
    return [SourceRow(number, f"row-{number}", body.encode()) for number, body in enumerate(bodies)]


def refusal(status: int, *indexes: int, retry_after: str = "") -> HttpAnswer:
    errors = [{"index": index, "detail": f"item {index} is wrong"} for index in indexes]
    return status, {"retry-after": retry_after} if retry_after else {}, json.dumps({"detail": "no", "errors": errors}).encode()


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ({"kind": "mysql"}, "kind: allowed are postgresql, redis, nats and kafka"),
        ({"tabel": "outbox"}, "tabel"),
        ({"table": "outbox; drop"}, "table"),
        ({"rows_max": 0}, "rows_max"),
        ({"what": "rows"}, "what"),
        ({"kind": "nats", "connection": "nats://h"}, "stream"),
        ({"kind": "kafka", "connection": "kafka://h", "topics": []}, "topics"),
        ({"kind": "kafka", "connection": "h:9092", "topics": ["t"]}, "connection of orders: allowed is a URL that begins with kafka://"),
        ({"connection": "http://db"}, "connection of orders: allowed is a URL that begins with postgresql://"),
    ],
)
def test_a_wrong_table_is_refused_by_the_name_of_its_member(members: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        source(**members)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("library", "members"),
    [
        ("psycopg", {}),
        ("nats", {"kind": "nats", "connection": "nats://h", "stream": "S"}),
        ("aiokafka", {"kind": "kafka", "connection": "kafka://h", "topics": ["t"]}),
    ],
)
def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, library: str, members: dict[str, Any]) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    text = json.dumps([{**TABLE, **members}])
    with pytest.raises(ConfigError, match=r"orders needs the extra '(postgresql|nats|kafka)': pip install 'ray-notification-engine\["):
        look(Config(sources=text))


@pytest.mark.parametrize(
    ("kind", "connections"),
    [
        ("redis", ["redis://:pa/ss@h", "redis://h:99999", "redis://h?socket_timeout=x"]),
        ("nats", ["nats://", "nats://h:port", "nats://h,nats://h:99999"]),
        ("kafka", ["kafka://", "kafka://h:port", "kafka://h:9092,h:99999", "kafka://h,"]),
    ],
)
def test_a_malformed_connection_is_refused_without_its_text(kind: str, connections: list[str]) -> None:
    members: dict[str, Any] = {"redis": {}, "nats": {"stream": "S"}, "kafka": {"topics": ["t"]}}[kind]
    for connection in connections:
        table = {"kind": kind, "name": "orders", "connection": connection, **members}
        with pytest.raises(ConfigError, match=r"^sources: connection of orders: a host, a port or an option of the URL is malformed$"):
            look(Config(sources=json.dumps([table])))


def test_a_row_nested_too_deeply_is_dead_and_stops_no_other() -> None:
    deep = '{"data":' + "[" * 5000 + "]" * 5000 + "}"
    with recursion_limit_of_an_edge():
        bodies, places, unreadable = requests_of(source(), rows(deep, '{"type": "a"}'))
    assert [json.loads(body) for body in bodies] == [[{"type": "a", "id": "row-1"}]]
    assert (places, list(unreadable)) == ([1], [0])


@pytest.mark.parametrize("stream", ["timer", "s" * 200, "two\nlines"])
def test_a_row_of_any_stream_gets_an_id_that_the_engine_takes(stream: str) -> None:
    of_stream = source(kind="redis", connection="redis://h", stream=stream)
    bodies, _, _ = requests_of(of_stream, [SourceRow(str(at), f"{stream}:{at}-0", b'{"user":"u","type":"a"}') for at in (1, 2)])
    (one, other) = parse_drafts(bodies[0], Content(), Principal("default", "p", frozenset(), 9), Config(), 0, str)
    assert one.envelope.id != other.envelope.id


def test_two_sources_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="orders is given twice"):
        sources_of(json.dumps([TABLE, TABLE]))


def test_a_refused_table_does_not_show_its_password() -> None:
    with pytest.raises(ConfigError) as refused:
        source(connection="postgresql://app:hunter2@db/app", poll_ms="hunter2")
    assert "hunter2" not in str(refused.value)


def test_a_row_gets_its_own_id_unless_its_body_has_one() -> None:
    bodies, places, unreadable = requests_of(source(), rows('{"type": "a"}', "[]", '{"type": "b", "id": "mine"}', ""))
    assert [json.loads(body) for body in bodies] == [[{"type": "a", "id": "row-0"}, {"type": "b", "id": "mine"}]]
    assert places == [0, 2]
    assert list(unreadable) == [1, 3]
    assert unreadable[3] == "a JSON object is needed: there is no body"


@given(
    st.dictionaries(st.text(max_size=4), st.recursive(st.none() | st.text(), st.lists, max_leaves=3), max_size=3),
    st.text(min_size=1, max_size=9).filter(str.isprintable),
    st.sampled_from(["", " \n"]),
)
def test_a_body_keeps_its_members_beside_the_id(body: dict[str, Any], id: str, space: str) -> None:
    row = SourceRow(1, id, (space + json.dumps(body, indent=len(space) or None) + space).encode())
    (sent,), _, _ = requests_of(source(what="events"), [row])
    assert json.loads(sent) == {"id": id, **body}


def test_each_event_is_a_request_of_its_own() -> None:
    bodies, _, _ = requests_of(source(what="events"), rows('{"type": "a"}', '{"type": "b"}'))
    assert [json.loads(body)["type"] for body in bodies] == ["a", "b"]


def test_a_conflict_kills_its_row_and_accepts_the_others() -> None:
    fates = fates_of(source(), [0, 2, 3], [partly(409, i1="it is wrong")])
    assert (fates.accepted, fates.dead) == ([0, 3], {2: "it is wrong"})


def test_rows_beside_a_conflict_without_results_are_sent_again() -> None:
    """That of a question is found before anything is published."""
    fates = fates_of(source(), [0, 2, 3], [refusal(409, 1)])
    assert (fates.accepted, fates.dead, fates.wait_s) == ([], {2: "item 1 is wrong"}, 0)


def test_an_invalid_row_dies_and_the_others_are_sent_again() -> None:
    fates = fates_of(source(), [0, 2, 3], [refusal(422, 1)])
    assert (fates.accepted, fates.dead, fates.wait_s) == ([], {2: "item 1 is wrong"}, 0)


def test_a_refusal_that_names_no_row_asks_for_fewer_rows() -> None:
    fates = fates_of(source(), [0, 1], [refusal(413)])
    assert (fates.split, fates.dead) == (True, {})
    assert fates_of(source(), [1], [refusal(413)]).dead == {1: "no"}


def test_events_after_one_that_the_engine_cannot_take_stay() -> None:
    fates = fates_of(source(what="events"), [0, 1, 2], [(202, {}, b"{}"), refusal(429, retry_after="3")])
    assert (fates.accepted, fates.dead, fates.wait_s) == ([0], {}, 3)


def test_a_failure_that_names_no_row_waits_and_asks_for_fewer_rows() -> None:
    fates = fates_of(source(), [0, 1], [refusal(500)])
    assert (fates.accepted, fates.dead, fates.wait_s, fates.split) == ([], {}, 1, True)
    assert fates.held == Held(None, "the engine answers 500: no")


@pytest.mark.parametrize(
    ("what", "places", "answers", "held", "split"),
    [
        ("notifications", [1], [refusal(500)], Held(1, "the engine answers 500: no"), True),
        ("notifications", [0, 2], [refusal(503, 1)], Held(2, "the engine answers 503: item 1 is wrong"), False),
        ("notifications", [0, 2], [refusal(503)], Held(None, "the engine answers 503: no"), False),
        ("events", [0, 1, 2], [(202, {}, b"{}"), refusal(500)], Held(1, "the engine answers 500: no"), False),
        ("events", [0], [(502, {}, b"no JSON")], Held(0, "the engine answers 502"), False),
    ],
)
def test_the_row_that_waits_is_named_where_it_is_known(
    what: str, places: list[int], answers: list[HttpAnswer], held: Held, split: bool
) -> None:
    fates = fates_of(source(what=what), places, answers)
    assert (fates.held, fates.split, fates.wait_s) == (held, split, 1)


def partly(status: int, **reasons: str) -> HttpAnswer:
    """A refusal of these items alone, `i<index>=reason`."""
    errors = [{"index": int(name[1:]), "detail": reason} for name, reason in reasons.items()]
    return status, {"retry-after": "60"}, json.dumps({"detail": "no", "errors": errors, "results": [{"id": "m"}]}).encode()


def test_a_conflict_of_any_notification_kills_the_row_of_its_event() -> None:
    """Accepted as well, the row would be deleted before it could be set aside."""
    fates = fates_of(source(what="events"), [0], [partly(409, i1="the same id was used")])
    assert (fates.accepted, fates.dead) == ([], {0: "the same id was used"})


@pytest.mark.parametrize("status", [429, 503])
def test_rows_accepted_beside_one_that_waits_are_settled(status: int) -> None:
    """Sent again with it until the engine has forgotten their ids, they would be delivered once more."""
    fates = fates_of(source(), [0, 2, 3], [partly(status, i1="no answer in time")])
    assert (fates.accepted, fates.dead, fates.wait_s) == ([0, 3], {}, 30)
    assert fates_of(source(what="events"), [0], [partly(status, i1="no answer in time")]).accepted == []


@pytest.mark.parametrize("what", ["notifications", "events"])
def test_a_row_for_a_user_with_too_many_timers_stops_no_other(what: str) -> None:
    fates = fates_of(source(what=what), [0], [partly(429, i0=TIMERS_FULL)])
    assert (fates.accepted, fates.dead, fates.wait_s) == ([], {0: TIMERS_FULL}, 0)


def test_an_event_that_finds_no_room_for_a_timer_stops_no_other() -> None:
    """A rule about inactivity arms its timer by a request of its own, whose refusal has no results."""
    answers = [(429, {"retry-after": "60"}, json.dumps({"detail": TIMERS_FULL}).encode())]
    fates = fates_of(source(what="events"), [0, 1], answers)
    assert (fates.accepted, fates.dead, fates.wait_s) == ([], {0: TIMERS_FULL}, 0)


def test_a_row_for_a_user_with_too_many_questions_stops_no_other() -> None:
    """Nothing was accepted: the others are sent again, at once."""
    answer = 429, {"retry-after": "10"}, json.dumps({"detail": "no", "errors": [{"index": 1, "detail": QUESTIONS_FULL}]}).encode()
    fates = fates_of(source(), [0, 2, 3], [answer])
    assert (fates.accepted, fates.dead, fates.wait_s) == ([], {2: QUESTIONS_FULL}, 0)


def test_a_row_that_ends_shards_stops_no_other() -> None:
    fates = fates_of(source(), [0, 1], [partly(503, i0=POISONED)])
    assert (fates.accepted, fates.dead, fates.wait_s) == ([1], {0: POISONED}, 0)


def test_a_row_whose_steps_find_no_room_is_looked_for() -> None:
    """The refusal names all rows whose steps may be missing."""
    unarmed = f"it was accepted without its steps: {TIMERS_FULL}"
    fates = fates_of(source(), [0, 1, 2], [partly(429, i0=unarmed, i2=unarmed)])
    assert (fates.accepted, fates.dead, fates.wait_s, fates.split) == ([1], {}, 0, True)
    assert fates_of(source(), [2], [partly(429, i0=unarmed)]).dead == {2: unarmed}


@given(
    st.integers(100, 599) | st.sampled_from([409, 422, 429, 503]),
    st.lists(st.integers(-1, 5), max_size=4),
    st.integers(1, 4),
    st.binary(max_size=20),
)
def test_a_row_has_one_fate_and_every_answer_makes_progress(status: int, indexes: list[int], count: int, garbage: bytes) -> None:
    for answer in (refusal(status, *indexes), (status, {"retry-after": "soon"}, garbage)):
        fates = fates_of(source(), range(count), [answer])
        assert len(set(fates.accepted)) == len(fates.accepted)
        assert not set(fates.accepted) & fates.dead.keys()
        assert set(fates.accepted) | fates.dead.keys() <= set(range(count))
        assert fates.accepted or fates.dead or fates.wait_s > 0 or (fates.split and count > 1)
        if status in (401, 403, 408, 429) or status >= 500:
            assert not fates.accepted
            assert not fates.dead
