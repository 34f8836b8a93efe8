"""What a publish request becomes: drafts, byte for byte, or a problem that says where it is wrong."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.auth.tokens import Principal
from engine.config import Config
from engine.core.model.constants import HIGH, LOW, TS_MS_MAX
from engine.core.model.envelope import Envelope, Merge
from engine.core.model.members import COPIED, LINK, SENT, Member
from engine.core.model.message import object_bytes, timer_effect_id
from engine.core.model.routing import timer_id
from engine.core.wire.records import Post, Schedule
from engine.http.problems import Problem, problem_response
from engine.publish.cloud_events import CloudEvent, message_id
from engine.publish.drafts import Draft, parse_drafts
from engine.publish.items import Item
from engine.publish.media_types import Content
from engine.publish.message_ids import MessageIds
from engine.publish.request_trace import RequestTrace
from engine.publish.results import records_of
from tests.support.json_values import json_values

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
CONFIG = Config()
SMALL = Config(body_bytes_max=4096, items_max=5, data_bytes_max=100, context_bytes_max=50, errors_told_max=3, json_depth_max=10)
PUBLISHER = Principal("acme", "publisher", frozenset(("publish",)), 0)
JSON = "application/json"
LINES = "application/x-ndjson"
EVENT = "application/cloudevents+json"
EVENTS = "application/cloudevents-batch+json"
LINKS = [member.name for member in COPIED if member.kind is LINK]


def counter() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"made-{next(numbers)}"


def publish(body: bytes | str | object, content_type: str | None = JSON, config: Config = CONFIG) -> list[Draft]:
    raw = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return parse_drafts(raw, Content(content_type), PUBLISHER, config, NOW_MS, counter())


def refused(body: bytes | str | object, content_type: str | None = JSON, config: Config = CONFIG) -> Problem:
    with pytest.raises(Problem) as caught:
        publish(body, content_type, config)
    json.loads(bytes(problem_response(caught.value).body))
    return caught.value


def paths(problem: Problem) -> list[tuple[int, str]]:
    return [(error["index"], error["path"]) for error in problem.members["errors"]]


def item(**fields: Any) -> dict[str, Any]:
    return {"user": "ann", "type": "post.liked", **fields}


def member(draft: Draft, name: str) -> Any:
    return json.loads(b"{%b}" % draft.envelope.body)[name]


# -- Drafts, byte for byte. --------------------------------------------------------------------------------------------
def test_the_smallest_item_becomes_a_draft() -> None:
    (draft,) = publish(b'{"user":"ann","type":"post.liked"}')
    assert draft == Draft(
        "acme:ann",
        "ann",
        Envelope(
            "made-1",
            draft.envelope.digest,
            1,
            True,
            b'"id":"made-1","ts":1700000000000,"type":"post.liked","priority":"normal","data":null',
        ),
        False,
        NOW_MS + 3 * DAY_MS,
        3 * DAY_MS,
        0,
    )
    assert len(draft.envelope.digest) == 8


def test_the_fullest_item_becomes_a_draft() -> None:
    (draft,) = publish(
        b'{"user":"ann","type":"post.liked","id":"k\\"1","priority":"high","actor":{"id":7},"target":"post/9","context":null,'
        b'"ts":1600000000000,"delay":1.5,"ttl":60,"retain":false,"data":{ "a" : [1.50, 1e3, "\xc3\xa9\\u00e9"] }}'
    )
    assert draft.envelope.body == (
        b'"id":"k\\"1","ts":1600000000000,"actor":{"id":7},"target":"post/9","context":null,"type":"post.liked","priority":"high",'
        b'"data":{ "a" : [1.50, 1e3, "\xc3\xa9\\u00e9"] }'
    )
    assert (draft.envelope.id, draft.idempotent, draft.envelope.priority, draft.envelope.retain) == ('k"1', True, 0, False)
    assert (draft.due_ms, draft.ttl_ms, draft.expires_ms) == (NOW_MS + 1500, 60_000, NOW_MS + 61_500)


def test_a_body_makes_the_message_that_clients_read() -> None:
    (draft,) = publish(item(id="k", data={"post": 7}))
    assert json.loads(object_bytes("e1", 42, 1, draft.envelope.body)) == {
        "seq": 42,
        "event_id": "e1-42",
        "attempt": 1,
        "id": "k",
        "ts": NOW_MS,
        "type": "post.liked",
        "priority": "normal",
        "data": {"post": 7},
    }


def test_users_share_one_id_body_and_digest() -> None:
    drafts = publish({"users": ["ann", "bob", "ann", "zoë"], "type": "x", "data": 1})
    assert [(draft.key, draft.user) for draft in drafts] == [("acme:ann", "ann"), ("acme:bob", "bob"), ("acme:zoë", "zoë")]
    assert len({(draft.envelope.id, draft.envelope.body, draft.envelope.digest) for draft in drafts}) == 1


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (b'"data":{"a":1,"b":[1,{"c":null,"d":2}]}', b'"data": {"b" :[1, {"d":2,"c":null}],"a":1}', True),
        (b'"data":"\xc3\xa9/","actor":{"x":1,"y":2}', b'"actor":{"y":2,"x":1},"data":"\\u00e9\\/"', True),
        (b'"data":[1,2]', b'"data":[2,1]', False),
        (b'"data":{"a":1,"b":2}', b'"data":{"a":2,"b":1}', False),
        (b'"data":1', b'"data":"1"', False),
        (b'"data":123456789012345678901234567890', b'"data":123456789012345678901234567891', False),
        (b'"actor":{"x":1}', b'"target":{"x":1}', False),
    ],
)
def test_the_same_json_in_another_order_and_spelling_is_the_same_payload(one: bytes, other: bytes, same: bool) -> None:
    first, second = (publish(b'{"user":"ann","type":"x","id":"k",%b}' % members)[0] for members in (one, other))
    assert (first.envelope.digest == second.envelope.digest) is same


def test_arrays_and_lines_keep_their_order() -> None:
    items = [item(user=f"u{n}", id=f"k{n}") for n in range(20)]
    lines = b"\r\n\n".join(json.dumps(one).encode() for one in items) + b"\n"
    assert (
        [draft.envelope.id for draft in publish(items)]
        == [draft.envelope.id for draft in publish(lines, LINES)]
        == [f"k{n}" for n in range(20)]
    )


def test_a_text_of_several_lines_becomes_one_line() -> None:
    pretty = json.dumps(item(data={"a": ["x y", {"b": 1.0}]}, actor=[1, 2], context={"c": "\n"}), indent="\t").replace("\n", "\r\n")
    (draft,) = publish(pretty)
    assert draft.envelope.body.endswith(
        b'"actor":[1,2],"context":{"c":"\\n"},"type":"post.liked","priority":"normal","data":{"a":["x y",{"b":1.0}]}'
    )


@pytest.mark.parametrize("content_type", [None, ""])
def test_a_body_of_no_named_media_type_is_json(content_type: str | None) -> None:
    assert len(publish(item(), content_type)) == 1


# -- CloudEvents. ------------------------------------------------------------------------------------------------------
CLOUD_EVENT = (
    b'{"specversion":"1.0","id":"A234-1","source":"/repos/engine","type":"com.github.star.created","subject":"ann",'
    b'"time":"2023-11-14T22:13:20.5+00:00","datacontenttype":"application/json","traceparent":"00-ab","data":{"stars":3}}'
)


def test_a_cloud_event_becomes_a_draft() -> None:
    (draft,) = publish(CLOUD_EVENT, "application/cloudevents+json; charset=utf-8")
    id = message_id("/repos/engine", "A234-1")
    assert (draft.envelope.id, draft.idempotent, draft.user) == (id, True, "ann")
    assert draft.envelope.body == (
        b'"id":"%b","ts":1700000000500,"context":{"source":"/repos/engine","id":"A234-1"},"type":"com.github.star.created",'
        b'"priority":"normal","data":{"stars":3}' % id.encode()
    )


def test_a_batch_of_cloud_events_becomes_drafts_and_honours_the_engines_own_attributes() -> None:
    event = json.loads(CLOUD_EVENT)
    first, second = publish([event, {**event, "id": "B", "priority": "low", "delay": 2, "retain": False}], EVENTS)
    assert (first.envelope.priority, first.due_ms, first.envelope.retain) == (1, 0, True)
    assert (second.envelope.priority, second.due_ms, second.envelope.retain) == (2, NOW_MS + 2000, False)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"specversion": "0.3"}, "$.specversion"),
        ({"subject": ""}, "$.subject"),
        ({"time": "yesterday"}, "$.time"),
        ({"time": "1960-01-01T00:00:00Z"}, "$.time"),
        ({"type": "a b"}, "$.type"),
        ({"source": "x" * 5000}, "$.source"),
        ({"data_base64": "AAAA"}, "$.data_base64"),
        ({"id": 5}, "$.id"),
    ],
)
def test_what_is_wrong_with_a_cloud_event_is_told_by_its_own_names(change: dict[str, Any], path: str) -> None:
    event = {**json.loads(CLOUD_EVENT), **change}
    assert paths(refused(event, EVENT)) == [(0, path)]
    assert paths(refused([json.loads(CLOUD_EVENT), event], EVENTS)) == [(1, f"$[1]{path[1:]}")]


def test_one_cloud_event_is_not_a_batch_and_a_batch_is_not_one() -> None:
    assert refused(CLOUD_EVENT, EVENTS).status == 422
    assert refused(b"[%b]" % CLOUD_EVENT, EVENT).status == 422


# -- Time. -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fields", "due_ms"),
    [
        ({"delay": 0}, 0),
        ({"delay": 0.01}, NOW_MS + 10),
        ({"delay": 0.07}, NOW_MS + 70),
        ({"delay": 0.0105}, NOW_MS + 11),  # never early
        ({"delay": CONFIG.delay_s_max}, NOW_MS + CONFIG.delay_s_max * 1000),
        ({"at": NOW_MS + 1}, NOW_MS + 1),
        ({"at": NOW_MS}, 0),
        ({"at": 0}, 0),
        ({"at": "2023-11-14T22:13:20Z"}, 0),
        ({"at": "2023-11-14T22:13:20.25Z"}, NOW_MS + 250),
        ({"at": "2023-11-15T00:13:21+02:00"}, NOW_MS + 1000),
        ({"at": "1969-12-31T23:00:00-02:00"}, 0),
    ],
)
def test_a_delayed_item_is_due_when_it_says(fields: dict[str, Any], due_ms: int) -> None:
    (draft,) = publish(item(ttl=10, **fields))
    assert draft.due_ms == due_ms
    assert draft.expires_ms == (due_ms or NOW_MS) + 10_000  # the time to live counts from when it is due


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"delay": -1}, "$.delay"),
        ({"delay": CONFIG.delay_s_max + 1}, "$.delay"),
        ({"delay": "5"}, "$.delay"),
        ({"delay": None}, "$.delay"),
        ({"delay": True}, "$.delay"),
        ({"delay": 10**400}, "$.delay"),
        ({"delay": 1, "at": NOW_MS}, "$.at"),
        ({"at": -1}, "$.at"),
        ({"at": NOW_MS + CONFIG.delay_s_max * 1000 + 1}, "$.at"),
        ({"at": 1.5}, "$.at"),
        ({"at": "2031-05-17T09:30:00"}, "$.at"),  # no offset
        ({"at": "2031-05-17"}, "$.at"),
        ({"at": "1700000000000"}, "$.at"),
        ({"at": "1960-01-01T00:00:00Z"}, "$.at"),
        ({"at": "9999-12-31T23:59:59-12:00"}, "$.at"),
        ({"ttl": 0}, "$.ttl"),
        ({"ttl": -1}, "$.ttl"),
        ({"ttl": CONFIG.ttl_s_max + 1}, "$.ttl"),
        ({"ts": -1}, "$.ts"),
        ({"ts": TS_MS_MAX + 1}, "$.ts"),
        ({"ts": 1.5}, "$.ts"),
        ({"ts": "2031-05-17T09:30:00Z"}, "$.ts"),
        ({"retain": "no"}, "$.retain"),
        ({"retain": None}, "$.retain"),
    ],
)
def test_a_time_out_of_range_or_of_another_kind_is_told(fields: dict[str, Any], path: str) -> None:
    assert paths(refused(item(**fields))) == [(0, path)]


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize(
    "link", ["https://example.com/orders/17?tab=1#top", "HTTP://localhost:8080", "/orders/17", "/", "https://exämple.de/ü"]
)
def test_a_link_reaches_the_client_as_it_was_given(link: str, name: str) -> None:
    (draft,) = publish(item(**{name: link}))
    assert member(draft, name) == link
    (event,) = publish({"specversion": "1.0", "id": "1", "source": "/s", "type": "a.b", "subject": "ann", name: link}, EVENT)
    assert member(event, name) == link


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize(
    "link",
    [
        "https://example.com/" + "x" * 5000,
        "",
        7,
        "orders/17",
        "javascript:alert(1)",
        "data:text/html,x",
        "//evil.example/",
        "/\\evil.example/",
        "https:///orders",
        "https://example.com/a b",
        "https://example.com/\n",
    ],
)
def test_another_value_than_a_link_is_refused(link: object, name: str) -> None:
    assert paths(refused(item(**{name: link}))) == [(0, f"$.{name}")]


@pytest.mark.parametrize("copied", COPIED, ids=lambda copied: copied.name)
def test_a_member_reaches_the_client_without_the_others(copied: Member) -> None:
    given = "/a" if copied.kind is LINK else {"a": [1]}
    (draft,) = publish(item(**{copied.name: given}))
    assert member(draft, copied.name) == given


def test_a_time_to_live_is_at_least_a_millisecond() -> None:
    assert publish(item(ttl=0.0001))[0].ttl_ms == 1


# -- What is wrong, and where. -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"type": ""}, "$.type"),
        ({"type": "a..b"}, "$.type"),
        ({"type": "x" * 129}, "$.type"),
        ({"type": 5}, "$.type"),
        ({"user": ""}, "$.user"),
        ({"user": "a\nb"}, "$.user"),
        ({"user": "x" * 129}, "$.user"),
        ({"user": None}, "$.user"),
        ({"user": ["ann"]}, "$.user"),
        ({"id": ""}, "$.id"),
        ({"id": "a\tb"}, "$.id"),
        ({"id": "x" * 129}, "$.id"),
        ({"id": 7}, "$.id"),
        ({"id": "timer:3-01a2016c-2647-7ab9-a075-06aafb696dcf"}, "$.id"),
        ({"priority": "urgent"}, "$.priority"),
        ({"priority": 0}, "$.priority"),
        ({"dealy": 5}, "$.dealy"),
        ({"users": ["bob"]}, "$.users"),
        ({"topic": "t"}, "$.topic"),
        ({"broadcast": True}, "$.broadcast"),
        ({"collapse": {"key": ""}}, "$.collapse.key"),
        ({"collapse": {"key": "x" * 129}}, "$.collapse.key"),
        ({"collapse": {"key": "k", "window": 5, "text": "{"}}, "$.collapse.text"),
        ({"collapse": {"key": "k", "window": 5, "text": "x" * 501}}, "$.collapse.text"),
        ({"collapse": {"key": "k", "window": 5, "text": 7}}, "$.collapse.text"),
        ({"collapse": {"key": "k", "text": "{count}"}}, "$.collapse.text"),
        ({"collapse": {"key": "k", "window": 5}, "ttl": 5}, "$.ttl"),
        ({"collapse": {"key": "k", "window": 5}, "data": "x" * 8200}, "$.data"),
        ({"collapse": {"key": "k", "window": -1}}, "$.collapse.window"),
        ({"collapse": {"key": "k", "window": 86401}}, "$.collapse.window"),
        ({"collapse": {"key": "k", "window": "5"}}, "$.collapse.window"),
        ({"collapse": {"key": "k", "leading": True}}, "$.collapse.leading"),
        ({"collapse": {"key": "k", "leading": 1}}, "$.collapse.leading"),
        ({"collapse": {"key": "k", "windw": 5}}, "$.collapse.windw"),
        ({"collapse": {}}, "$.collapse"),
        ({"actor": "x" * 5000}, "$.actor"),
        ({"target": "x" * 5000}, "$.target"),
        ({"context": "x" * 5000}, "$.context"),
    ],
)
def test_every_wrong_field_is_told_with_its_path_in_every_form(fields: dict[str, Any], path: str) -> None:
    bad = item(**fields)
    assert paths(refused([item(), bad, item()])) == [(1, f"$[1]{path[1:]}")]
    assert paths(refused("\n".join(json.dumps(one) for one in (item(), bad, item())), LINES)) == [(1, path)]
    assert paths(refused(bad)) == [(0, path)]


@pytest.mark.parametrize("id", ["timer", "a-timer:1", "Timer:1", "3-01a2016c-2647-7ab9-a075-06aafb696dcf"])
def test_an_id_may_resemble_that_of_a_timers_effect_as_long_as_it_begins_otherwise(id: str) -> None:
    assert publish(item(id=id))[0].envelope.id == id


@pytest.mark.parametrize("id", ["timer:", "timer:3", "timer:3-tea", "timer:3-01a2016c-2647-7ab9-a075-06aafb696dcf"])
def test_an_id_with_the_prefix_of_the_engines_own_is_refused(id: str) -> None:
    """Replay and the timeline of a message take any id with it for the effect of a timer."""
    problem = refused(item(id=id))
    assert (problem.status, paths(problem)) == (422, [(0, "$.id")])
    assert "must not begin with `timer:`" in problem.members["errors"][0]["detail"]
    (draft,) = publish({"specversion": "1.0", "id": id, "source": "/s", "type": "a.b", "subject": "ann"}, EVENT)
    assert not draft.envelope.id.startswith("timer:")


@given(st.sampled_from(["acme:ann", "acme:b", "acme:\nnews"]))
def test_no_publisher_can_take_the_id_of_a_timers_effect(key: str) -> None:
    """Its message would make the timer a repeat, so the delayed message would never be delivered."""
    assert paths(refused(item(id=timer_effect_id(timer_id(key, MessageIds()()))))) == [(0, "$.id")]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"type": "x"}, "$.user"),
        ({"type": "x", "broadcast": False}, "$.user"),
        ({"user": "u"}, "$"),
        ({"type": "x", "users": []}, "$.users"),
        ({"type": "x", "users": ["a", ""]}, "$.users[1]"),
        ({"type": "x", "users": ["a", 5]}, "$.users[1]"),
        ({"type": "x", "topic": "t", "user": "u"}, "$.topic"),
        ({"type": "x", "broadcast": True, "topic": "t"}, "$.broadcast"),
        ({"type": "x", "collapse": {"key": "k"}}, "$.user"),
        (5, "$"),
        ("text", "$"),
        (None, "$"),
    ],
)
def test_an_item_names_exactly_one_audience(body: object, path: str) -> None:
    assert paths(refused(json.dumps(body))) == [(0, path)]


def test_a_collapse_key_is_kept_beside_the_body_and_another_one_is_another_payload() -> None:
    plain, keyed, other, zero = publish(
        [
            item(id="a", collapse=collapse) if collapse else item(id="a")
            for collapse in (None, {"key": "likes"}, {"key": "views"}, {"key": "likes", "window": 0, "leading": False})
        ]
    )
    assert [draft.envelope.collapse for draft in (plain, keyed, other, zero)] == ["", "likes", "views", "likes"]
    assert plain.envelope.body == keyed.envelope.body
    assert len({draft.envelope.digest for draft in (plain, keyed, other)}) == 3
    assert keyed.envelope.digest == zero.envelope.digest


def test_a_window_goes_with_the_draft_and_another_one_is_another_payload() -> None:
    windows = [{}, {"window": 300}, {"window": 0.0005}, {"window": 300, "leading": True}, {"window": 300, "text": "{count} likes"}]
    drafts = publish([item(id="a", collapse={"key": "likes", **window}) for window in windows])
    assert [draft.envelope.collapse for draft in drafts] == ["likes"] * 5
    assert [draft.envelope.merge for draft in drafts] == [
        None,
        Merge(300_000),
        Merge(1),
        Merge(300_000, True),
        Merge(300_000, False, "{count} likes"),
    ]
    assert len({draft.envelope.digest for draft in drafts}) == 5
    assert len({draft.envelope.body for draft in drafts}) == 1


def test_a_window_reaches_the_shard_also_with_a_delay() -> None:
    now, later = publish([item(collapse={"key": "likes", "window": 5}), item(collapse={"key": "likes", "window": 5}, delay=9)])
    post, schedule = records_of([now, later], 0, NOW_MS, lambda: "uuid")
    assert isinstance(post, Post)
    assert isinstance(schedule, Schedule)
    assert (
        (post.envelope.collapse, post.envelope.merge)
        == (schedule.timer.envelope.collapse, schedule.timer.envelope.merge)
        == ("likes", Merge(5000))
    )


def test_each_draft_knows_which_item_of_the_request_it_is_of() -> None:
    drafts = publish([{"users": ["a", "b"], "type": "x"}, item(), {"users": ["c"], "type": "x", "collapse": {"key": "k"}}])
    assert [(draft.user, draft.item, draft.envelope.collapse) for draft in drafts] == [
        ("a", 0, ""),
        ("b", 0, ""),
        ("ann", 1, ""),
        ("c", 2, "k"),
    ]


def test_every_bad_item_is_told_and_nothing_accepted() -> None:
    problem = refused([item(), item(type="a b"), {"type": "x"}, item(priority="urgent"), item(user="")])
    assert problem.status == 422
    assert paths(problem) == [(1, "$[1].type"), (2, "$[2].user"), (3, "$[3].priority"), (4, "$[4].user")]
    assert "4 of 5" in problem.detail


def test_the_list_of_bad_items_is_bounded_and_their_number_told() -> None:
    problem = refused([item(type="")] * 5, config=SMALL)
    assert len(problem.members["errors"]) == 3
    assert "5 of 5" in problem.detail


def test_an_unknown_field_is_told_by_name_with_what_is_allowed() -> None:
    (error,) = refused(item(dealy=5)).members["errors"]
    detail, _, allowed = error["detail"].partition("; allowed are ")
    assert (detail, set(allowed.split(", "))) == ("unknown field `dealy`", SENT.keys())


def test_a_long_unknown_field_does_not_fill_the_answer() -> None:
    assert len(bytes(problem_response(refused(item(**{"x" * 60_000: 1}))).body)) < 1500


def test_a_broadcast_is_one_draft_of_low_priority_unless_the_publisher_says_otherwise() -> None:
    everyone, topic, urgent = publish(
        [{"type": "x", "broadcast": True}, {"type": "x", "topic": "t"}, {"type": "x", "topic": "t", "priority": "high"}]
    )
    assert [(draft.user, draft.topic, draft.envelope.priority) for draft in (everyone, topic, urgent)] == [
        ("", "", LOW),
        ("", "t", LOW),
        ("", "t", HIGH),
    ]
    assert b'"priority":"low"' in everyone.envelope.body
    assert b'"priority":"high"' in urgent.envelope.body
    assert len({draft.key for draft in (everyone, topic)}) == 2


@pytest.mark.parametrize(
    "body", [b"", b" ", b"{", b"nonsense", b'{"user":"ann",}', b'{"a":NaN}', b"[1] [2]", b'{"user":"\xff"}', b"\xef\xbb\xbf{}"]
)
def test_what_is_no_json_is_400(body: bytes) -> None:
    assert refused(body).status == 400


def test_a_bad_line_is_told_by_its_index() -> None:
    problem = refused(b'{"user":"ann","type":"x"}\nnonsense\n\n{"user":"ann","type":"x"}\n{', LINES)
    assert problem.status == 422
    assert paths(problem) == [(1, "$"), (2 + 1, "$")]


@pytest.mark.parametrize(("body", "content_type"), [(b"[]", JSON), (b"", LINES), (b"\n \n", LINES), (b"[]", EVENTS)])
def test_nothing_to_publish_is_422(body: bytes, content_type: str) -> None:
    assert refused(body, content_type).status == 422


# -- Limits. -----------------------------------------------------------------------------------------------------------
def test_a_body_over_the_limit_is_413_before_it_is_read() -> None:
    assert refused(b"x" * 4097, config=SMALL).status == 413


def test_too_many_items_are_413_however_they_are_written() -> None:
    assert len(publish([item()] * 5, config=SMALL)) == 5
    assert refused([item()] * 6, config=SMALL).status == 413
    assert refused("\n".join([json.dumps(item())] * 6), LINES, SMALL).status == 413
    assert refused([5] * 6, config=SMALL).status == 413
    assert refused("x\n" * 6, LINES, SMALL).status == 413


def test_each_user_of_users_counts_as_an_item() -> None:
    several = {"users": ["a", "b", "c"], "type": "x"}
    assert len(publish([several, item(), item()], config=SMALL)) == 5
    assert refused([several, several], config=SMALL).status == 413
    assert refused([several, item(), item(), item()], config=SMALL).status == 413


def test_data_at_its_limit_is_accepted_and_beyond_it_told() -> None:
    assert len(publish(item(data="x" * 98), config=SMALL)) == 1
    problem = refused(item(data="x" * 99), config=SMALL)
    assert problem.status == 413
    assert paths(problem) == [(0, "$.data")]
    assert refused([item(data="x" * 99)], config=SMALL).status == 422


def test_the_size_of_data_is_that_of_what_is_kept() -> None:
    assert len(publish(b'{"user":"ann","type":"x","data":[%b1]}' % (b"\n" * 200), config=SMALL)) == 1


def test_nesting_is_followed_to_its_limit_and_refused_beyond() -> None:
    def nested(depth: int) -> bytes:
        return b'{"user":"ann","type":"x","data":%b"]}[{",{"k":"\\"]]"}%b}' % (b"[" * (depth - 1), b"]" * (depth - 1))

    assert len(publish(nested(10), config=SMALL)) == 1
    assert paths(refused(nested(11), config=SMALL)) == [(0, "$.data")]


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"user":"ann","type":"x","data":' + b"["])
def test_bottomless_nesting_is_a_problem_not_a_crash(opening: bytes) -> None:
    assert refused(opening * 25_000).status in (400, 422)
    assert refused(opening * 25_000, LINES).status in (400, 422)


@pytest.mark.parametrize("value", [b"1e999", b"-1e999", b"9" * 5000])
@pytest.mark.parametrize("name", ["data", "actor", "target", "context"])
def test_a_number_no_client_can_read_is_refused_where_it_stands(name: str, value: bytes) -> None:
    body = b'[{"user":"ann","type":"x"},{"user":"ann","type":"x","%b":{"n":[%b]}}]' % (name.encode(), value)
    assert paths(refused(body)) == [(1, f"$[1].{name}")]


@pytest.mark.parametrize("text", [b'"\\ud800"', b'"a\\udc00b"', b'{"\\ud800":1}', b'"\xed\xa0\x80"', b'"\xff"', b'"a\nb"', b'"\x00"'])
def test_text_that_is_no_unicode_is_refused(text: bytes) -> None:
    for body in (b'{"user":"ann","type":"x","data":%b}' % text, b'{"user":%b,"type":"x"}' % text, b'{"type":%b,"user":"u"}' % text):
        assert refused(body).status in (400, 422)


def test_a_surrogate_pair_is_a_character() -> None:
    (draft,) = publish(b'{"user":"\\ud83d\\ude00","type":"x","data":"\\ud83d\\ude00"}')
    assert draft.user == "😀"
    assert draft.envelope.body.endswith(b'"data":"\\ud83d\\ude00"')


# -- The digest. -------------------------------------------------------------------------------------------------------
def digest(**fields: Any) -> bytes:
    return publish(item(**fields))[0].envelope.digest


def test_the_digest_depends_on_everything_the_publisher_chose() -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"type": "other"},
        {"priority": "high"},
        {"actor": 1},
        {"target": 1},
        {"context": 1},
        *({name: link} for name in LINKS for link in ("/a", "/b")),
        {"data": 1},
        {"data": "1"},
        {"data": 12},
        {"delay": 1},
        {"delay": 1000},
        {"at": NOW_MS + 1000},
        {"ttl": 1},
        {"retain": False},
        {"retain": True},
        {"ts": NOW_MS},
        {"ts": 1},
    ]
    assert len({digest(**fields) for fields in variants}) == len(variants)


def test_the_digest_depends_on_nothing_else() -> None:
    body = b'{"user":"ann","type":"x","id":"k","data":{"a":1},"ttl":5,"delay":1,"actor":2}'
    shuffled = b' { "actor":2 , "delay":1.0,"data":{"a":1},\t"ttl":5.0,"id":"k2","type":"x","users":["bob"]}'
    first = parse_drafts(body, Content(JSON), PUBLISHER, CONFIG, NOW_MS, counter())[0]
    later = parse_drafts(shuffled, Content(JSON), PUBLISHER, CONFIG, NOW_MS + 99_999, counter())[0]
    assert first.envelope.digest == later.envelope.digest
    assert digest(at="2031-05-17T09:30:00Z") == digest(at="2031-05-17T11:30:00+02:00")


def test_the_digest_stays_what_it_was() -> None:
    # It is kept for 24 h and compared across upgrades: another value would turn every repeat into a conflict.
    assert digest().hex() == "cb3f5974903f9893"
    assert digest(data={"a": 1}, delay=1, ttl=5, actor=2, priority="low").hex() == "22903a0a82f04110"


# -- Whatever comes. ---------------------------------------------------------------------------------------------------
field_names = st.sampled_from((*Item.__struct_fields__, *CloudEvent.__struct_fields__, "x"))
near_items = st.dictionaries(field_names, json_values | st.sampled_from(["ann", "a.b", "high", "1.0", 5, 0.5, "2031-05-17T09:30:00Z"]))
media_types = st.sampled_from([JSON, LINES, EVENT, EVENTS, None])
CLOSE = [
    b'{"user":"u","type":"x","data":',
    b"}",
    b"[",
    b"]",
    b",",
    b"\n",
    b'"\\ud800"',
    b"1e999",
    b"NaN",
    b"9" * 4400,
    b"[" * 600,
    b"\xff",
    b'{"users":["a","b"],"type":"x"}',
]


@given(st.binary() | st.lists(st.sampled_from(CLOSE), max_size=8).map(b"".join), media_types)
@example(b'[{"user":"u","type":"x","data":1e999},', JSON)
@example(b'[{"data":1e999},' + b"[" * 2000, JSON)
def test_arbitrary_bytes_become_drafts_or_a_problem(body: bytes, content_type: str | None) -> None:
    for config in (CONFIG, SMALL):
        try:
            drafts = publish(body, content_type, config)
        except Problem as problem:
            assert problem.status in (400, 413, 422)  # noqa: PT017 -- either outcome is fine
            problem_response(problem)
        else:
            assert all(b"\n" not in draft.envelope.body and b"\r" not in draft.envelope.body for draft in drafts)
            for draft in drafts:
                json.loads(object_bytes("e", 1, 1, draft.envelope.body))
                msgspec.json.decode(object_bytes("e", 1, 1, draft.envelope.body))


@given(near_items | st.lists(near_items, max_size=4), media_types, st.sampled_from([None, 1]))
def test_arbitrary_json_becomes_drafts_or_a_problem(value: object, content_type: str | None, indent: int | None) -> None:
    try:
        publish(json.dumps(value, indent=indent), content_type)
    except Problem as problem:
        assert problem.status in (400, 413, 422)  # noqa: PT017
        problem_response(problem)


@given(
    data=json_values,
    around=st.dictionaries(st.sampled_from(["actor", "target", "context"]), json_values),
    id_=st.none() | st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=20),
    indent=st.sampled_from([None, 1, "\t"]),
    ascii_only=st.booleans(),
    priority=st.sampled_from(["high", "normal", "low"]),
)
def test_the_body_holds_exactly_what_was_published(
    data: object, around: dict[str, Any], id_: str | None, indent: str | int | None, ascii_only: bool, priority: str
) -> None:
    sent = {"user": "ann", "type": "a.b", "data": data, "priority": priority, **around} | ({} if id_ is None else {"id": id_})
    text = json.dumps(sent, indent=indent, ensure_ascii=ascii_only)
    (draft,) = publish(text.encode())
    expected = {"id": id_ or "made-1", "ts": NOW_MS, "type": "a.b", "priority": priority, "data": data, **around}
    assert json.loads(b"{%b}" % draft.envelope.body) == expected
    assert b"\n" not in draft.envelope.body


# -- Trace context. ----------------------------------------------------------------------------------------------------
TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def test_a_traceparent_is_the_first_member_of_the_message_and_no_part_of_what_makes_a_repeat_another_message() -> None:
    (traced,) = publish(item(id="m", traceparent=TRACEPARENT, data=1))
    (plain,) = publish(item(id="m", data=1))
    assert traced.envelope.body == b'"traceparent":"%b",%b' % (TRACEPARENT.encode(), plain.envelope.body)
    assert traced.envelope.digest == plain.envelope.digest


def test_the_traceparent_of_the_request_is_that_of_its_items_that_have_none() -> None:
    own = TRACEPARENT.replace("a", "c")
    trace = RequestTrace(TRACEPARENT)
    body = json.dumps([item(), item(traceparent=own)]).encode()
    drafts = parse_drafts(body, Content(JSON), PUBLISHER, CONFIG, NOW_MS, counter(), trace=trace)
    assert [member(draft, "traceparent") for draft in drafts] == [TRACEPARENT, own]


@pytest.mark.parametrize("text", ["", "nonsense", TRACEPARENT.upper(), TRACEPARENT + '","x":"'])
def test_a_traceparent_that_is_none_is_refused_in_an_item(text: str) -> None:
    problem = refused([item(), item(traceparent=text)])
    assert (problem.status, paths(problem)) == (422, [(1, "$[1].traceparent")])
