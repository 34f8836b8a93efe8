"""Any rules file is taken or refused with a reason, and rules in force make something lawful, or nothing, of any event."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from engine.core.model.names import is_event_type, is_id, is_topic, is_user
from engine.core.wire import records as wire
from engine.errors import RulesError
from engine.features.rules.core.cases import parse_cases
from engine.features.rules.core.toml_loader import parse_rules
from tests.support.edge_in_process import EdgeInProcess
from tests.support.hostile_input import DEPTHS, encoded, json_tokens, mutated, nested, objects, strict_json, texts, values

EXAMPLES = Path(__file__).parents[2] / "examples"
GOOD = [(EXAMPLES / name / "rules.toml").read_bytes() for name in ("touch", "forum", "github")]
FORUM = parse_rules(GOOD[1].decode(), "forum")
TOUCH = parse_rules(GOOD[0].decode(), "touch")

LINES = (
    b'delay = "1h"', b"delay = 5", b'delay = "9999999999999d"', b"delay = { by = 1 }", b'collapse = "{a.b[]|c:9}"', b'cancel_on = ["x", 1]',
    b'delay = { by = "a", x = "1h", others = "1h", factor = nan }', b"rollout = { share = inf }", b"rollout = { share = nan }", b"fire = 1",
    b'template = { a = "{{ x }}" }', b'template = { a = "{% for x in y %}" }', b"inactive = true", b"when = [{ path = 'a', in = 5 }]",
    b'window = "5m"', b'window = "9999999999d"', b'ttl = "0s"', b'topic = "a/{b}"', b"broadcast = true", b'leading = 1', b'summary = "{"',
    b'locales = { de = { title = "x" } }', b'locales = { "" = {} }', b'variants = [{ name = "a", weight = inf }]', b"[total]\ncap = 3",
    b'recipients = ["$user"]', b'id = "{"', b"data = { a = 1979-05-27 }", b"x = " + b"[" * 3000 + b"]" * 3000, b"n = " + b"9" * 5000,
)  # fmt: skip
lines = st.sampled_from(LINES)
files = st.one_of(
    mutated(st.sampled_from(GOOD)),
    st.lists(lines, max_size=3).map(
        lambda more: b"\n".join([b'[[rule]]\nname = "r"\nevent = "e"\ntype = "t"\nrecipients = ["user"]', *more])
    ),
    st.binary(max_size=60),
)


@settings(max_examples=200, deadline=None)
@given(files)
@example(b"a = " + b"[" * 5000)
def test_any_file_is_taken_or_refused_with_a_reason(file: bytes) -> None:
    text = file.decode("utf-8", "replace")
    for parse in (parse_rules, parse_cases):
        try:
            parse(text, "x.toml")
        except RulesError as refused:
            reason = str(refused)
        else:
            reason = "x.toml"
        assert reason.startswith("x.toml")


payloads = st.dictionaries(st.sampled_from(["type", "user", "actor", "target", "context", "ts", "data", "id", "text"]), values, max_size=8)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(
        [
            "reply.created", "message.sent", "post.liked", "notice.published", "notice.withdrawn", "order.paid", "cart.abandoned",
            "thread.created", "announcement.made", "announcement.withdrawn", "member.joined",
        ]
    ),
    payloads,
)  # fmt: skip
def test_any_event_makes_lawful_notifications_or_none(name: str, payload: dict[str, Any]) -> None:
    for rules in (FORUM, TOUCH):
        outcome = rules.apply(name, payload, "d", now_ms=1_900_000_000_000)
        for told in outcome.notifications:
            assert is_user(told.user, 128) if told.topic is None else told.topic == "" or is_topic(told.topic, 128)
            assert is_id(told.id, 128)
            assert is_event_type(told.type, 128)
            assert told.delay_ms >= 0
            assert not told.collapse or is_id(told.collapse, 128)
        for cancelled in outcome.cancellations:
            assert is_user(cancelled.user, 128) if cancelled.topic is None else cancelled.topic == "" or is_topic(cancelled.topic, 128)
            assert is_id(cancelled.collapse, 128)


@pytest.fixture(scope="module")
def edge() -> Iterator[EdgeInProcess]:
    running = EdgeInProcess(rules_path=str(EXAMPLES / "forum" / "rules.toml"))
    yield running
    running.close()


kinds = st.sampled_from(
    [
        b'"reply.created"',
        b'"post.liked"',
        b'"thread.created"',
        b'"announcement.made"',
        b'"notice.published"',
        b'"notice.withdrawn"',
        b'"post.audited"',
        b'"a b"',
        b"1",
    ]
)
stamps = st.sampled_from([b"0", b"-1", b"1e400", b"1900000000000", b'"x"'])
members = st.lists(texts, max_size=3).map(lambda users: encoded({"members": users, "text": "@ann", "title": "t"}))
events = objects(
    {
        "type": kinds, "user": texts.map(encoded), "id": texts.map(encoded), "actor": json_tokens, "target": json_tokens,
        "context": json_tokens, "ts": stamps, "data": st.one_of(json_tokens, members),
    },
    ["type", "user"],
)  # fmt: skip
good_events = st.builds(
    lambda kind, data: encoded({"type": kind, "user": "u1", "actor": "bob", "data": data}),
    st.sampled_from(["reply.created", "notice.published", "post.liked", "post.audited", "thread.created", "announcement.made"]),
    st.one_of(values, st.fixed_dictionaries({"members": st.lists(texts, max_size=3), "text": texts, "title": values})),
)


@settings(max_examples=200, deadline=None)
@given(st.one_of(good_events, mutated(events), json_tokens))
def test_any_event_over_http_is_taken_or_refused_with_a_reason(edge: EdgeInProcess, body: bytes) -> None:
    edge.world.shard.received.clear()
    answer = edge.ask("POST", "/v1/events", body)
    answer.check(202)
    event(f"answered {answer.status}")
    for record in edge.world.shard.of(wire.Post):
        strict_json(b"{%b}" % record.envelope.body)
    if answer.status == 202:
        assert set(answer.told()) == {"matched", "results", "scheduled", "cancelled"}


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("array", [True, False])
@pytest.mark.parametrize("field", ["data", "target"])
def test_deep_nesting_in_an_event_is_refused_or_taken(edge: EdgeInProcess, depth: int, array: bool, field: str) -> None:
    body = b'{"type":"post.liked","user":"u1","actor":"bob","%b":%b}' % (field.encode(), nested(depth, array))
    edge.ask("POST", "/v1/events", body).check(202)
