"""What a hostile or broken client puts into a request: bodies that are almost publish requests or events, queries, cursors and headers."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from engine.publish.cloud_events import CloudEvent
from tests.support.hostile_input import encoded, json_tokens, mutated, objects, texts, values

JSON_TYPES = ("application/json", "application/x-ndjson", "application/cloudevents+json", "application/cloudevents-batch+json")

some_text = texts.map(encoded)
seconds = st.sampled_from([b"0", b"1", b"0.001", b"1e-12", b"60", b"315360000", b"315360001", b"-1", b"1e300"])
instants = st.sampled_from(
    [b"0", b"1", b"-1", b"4102444800000", b"253402300799999", b"99999999999999999999", b'"2031-05-17T09:30:00Z"', b'"2031-05-17T09:30:00"',
     b'"2031-02-29T00:00:00Z"', b'"9999-12-31T23:59:60Z"', b'"0000-01-01T00:00:00Z"', b'"1969-12-31T23:59:59+14:00"', b'"x"']
)  # fmt: skip
flags = st.sampled_from([b"true", b"false", b"1"])
words = st.sampled_from([b'"high"', b'"normal"', b'"low"', b'"HIGH"', b'""'])
types = st.sampled_from([b'"post.liked"', b'"a"', b'"a..b"', b'""', b'"\xc3\xa9"', b'"a b"', b'"' + b"a" * 129 + b'"'])
data = st.one_of(json_tokens, st.integers(65_500, 65_600).map(lambda size: b'"' + b"x" * size + b'"'))

ITEM: dict[str, st.SearchStrategy[bytes]] = {
    "user": st.one_of(st.sampled_from([b'"u1"', b'"u2"']), some_text),
    "users": st.one_of(st.lists(texts, max_size=5).map(encoded), st.just(encoded([f"u{n}" for n in range(1001)]))),
    "topic": some_text, "broadcast": flags, "type": types, "data": data, "id": st.one_of(st.just(b'"k1"'), some_text), "priority": words,
    "actor": data, "target": data, "context": data, "ts": instants, "delay": seconds, "at": instants, "ttl": seconds, "retain": flags,
    "collapse": objects({"key": some_text, "window": seconds, "leading": flags}, ["key"]),
}  # fmt: skip
EVENT: dict[str, st.SearchStrategy[bytes]] = {
    "specversion": st.sampled_from([b'"1.0"', b'"0.3"']), "id": some_text, "source": some_text, "type": types, "subject": some_text,
    "time": instants, "data": data, "data_base64": some_text, "priority": words, "delay": seconds, "ttl": seconds, "retain": flags,
}  # fmt: skip
GOOD: dict[str, st.SearchStrategy[Any]] = {
    "data": values, "id": st.uuids().map(str), "priority": st.sampled_from(["high", "normal", "low"]), "actor": values, "context": values,
    "ts": st.integers(0, 253_402_300_799_999), "delay": st.floats(0, 1e6), "ttl": st.floats(1e-6, 1e6), "retain": st.booleans(),
}  # fmt: skip
good_items = st.fixed_dictionaries({"type": st.just("post.liked"), "user": st.sampled_from(["u1", "é", "a:b"])}, optional=GOOD).map(encoded)
items = st.one_of(good_items, good_items, objects(ITEM, ["type", "user"]))
events = objects(EVENT, ["specversion", "id", "source", "type", "subject"])
bodies = st.one_of(good_items, st.lists(good_items, min_size=1, max_size=3).map(b"\n".join)) | mutated(
    st.one_of(
        items,
        events,
        st.lists(items, max_size=4).map(lambda parts: b"[" + b",".join(parts) + b"]"),
        st.lists(events, max_size=4).map(lambda parts: b"[" + b",".join(parts) + b"]"),
        st.lists(st.one_of(items, st.just(b""), json_tokens), max_size=4).map(b"\n".join),
        json_tokens,
        st.binary(max_size=40),
    )
)
odd_types = [None, "", ";", "application/json; charset=utf-8", "application/json; charset=latin-1", "text/plain", "a/b;=", "\xff/\xff"]
content_types = st.sampled_from([*JSON_TYPES, *JSON_TYPES, *odd_types])

_event_header = st.tuples(
    st.sampled_from([b"ce-" + name.encode() for name in (*CloudEvent.__struct_fields__, "users", "x")]),
    st.binary(max_size=20)
    | st.sampled_from([b"1.0", b"u1", b"a.b", b"low", b"5", b"1e999", b"nan", b"true", b"%00", b"%FF", b"%", b'"', b'"\\"']),
)
event_headers = st.builds(
    lambda good, bad: [(name, value) for name, value in good.items() if name not in dict(bad)] + bad,
    st.fixed_dictionaries(
        {
            b"ce-specversion": st.just(b"1.0"),
            b"ce-id": st.binary(min_size=1, max_size=9),
            b"ce-source": st.just(b"/s"),
            b"ce-type": st.just(b"a"),
        }
    ).map(lambda headers: {**headers, b"ce-subject": b"u1"}),
    st.lists(_event_header, max_size=3),
)

_HEADERS = (b"x-last-seq", b"x-client-id", b"origin", b"cookie", b"content-length", b"last-event-id", b"accept")
queries = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda name, value: name + b"=" + value,
        st.sampled_from([b"user", b"collapse", b"last_event_id", b"wait", b"device", b"token", b"ack"]),
        st.one_of(
            st.binary(max_size=20),
            st.sampled_from([b"nan", b"inf", b"-1", b"1e400", b"0", b"%ff%00", b"e7-1", b"%F0%9F%98%80", b"9" * 5000]),
        ),
    ),
)
headers = st.tuples(st.sampled_from(_HEADERS), st.binary(max_size=20))
cursors = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(
        [b"e7-0", b"e7-1", b"e6-1", b"e7-99999999999999999999", b"-", b"e7-", b"-1", b"e7--1", b"a-b-1", b"e7-%D9%A1", b"9" * 5000]
    ),
)
