"""What clients say is understood, ignored or malformed; never guessed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.wire import client_frames
from engine.core.wire.client_frames import ClientAck, ClientAuth, ClientNack, ClientPing, ClientSubscribe, ClientUnsubscribe
from engine.errors import Invalid


@given(st.integers(0, 10**18 - 1), st.booleans())
def test_a_plain_ack_is_recognised_however_it_is_spaced(seq: int, compact: bool) -> None:
    text = json.dumps({"type": "ack", "seq": seq}, separators=(",", ":") if compact else None).encode()
    assert client_frames.parse_ack(text) == (seq, 0)
    assert client_frames.parse(text) == ClientAck(seq=seq)


@given(st.integers(0, 10**18 - 1), st.integers(1, 10**13 - 1), st.booleans())
def test_a_plain_ack_may_have_the_time_of_its_client(seq: int, ts: int, compact: bool) -> None:
    text = json.dumps({"type": "ack", "seq": seq, "ts": ts}, separators=(",", ":") if compact else None).encode()
    assert client_frames.parse_ack(text) == (seq, ts)
    assert client_frames.parse(text) == ClientAck(seq=seq, ts=ts)


@pytest.mark.parametrize(
    ("ts", "ms"), [(None, 0), (0, 0), (-5, 0), (1.5e12, 1_500_000_000_000), (1_700_000_000_000.9, 1_700_000_000_000), (1e300, 0)]
)
def test_a_time_that_is_none_is_left_out(ts: float | None, ms: int) -> None:
    assert client_frames.time_of(ts) == ms


@pytest.mark.parametrize(
    "text",
    [
        b'{"type":"ack","seq":-1}',
        b'{"type":"ack","seq":007}',
        b'{"type":"ack","seq":1}x',
        b'{"type":"ack"}',
        b'{"seq":1,"type":"ack"}',
        b"",
    ],
)
def test_what_is_not_exactly_a_plain_ack_is_left_to_the_parser(text: bytes) -> None:
    assert client_frames.parse_ack(text) == (-1, 0)


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        (b'{"type":"ack","ids":["a","b"],"ts":1700000000000}', ClientAck(ids=["a", "b"], ts=1700000000000)),
        (b'{"seq":5,"type":"ack","later":{"a":[1]}}', ClientAck(seq=5)),
        (b'{"type":"nack","ids":["a"],"reason":"no"}', ClientNack(ids=["a"], reason="no")),
        (b'{"type":"ping","ts":12.5}', ClientPing(ts=12.5)),
        (b'{"type":"ping"}', ClientPing()),
        (b'{"type":"auth","token":"t"}', ClientAuth(token="t")),
        (b'{"type":"subscribe","topics":["a"]}', ClientSubscribe(["a"])),
        (b'{"type":"unsubscribe","topics":[]}', ClientUnsubscribe([])),
        (b'{"type":"greet","ids":5}', None),
        (b'{"type":""}', None),
    ],
)
def test_frames_are_understood_and_unknown_types_and_members_ignored(text: bytes, frame: client_frames.ClientFrame | None) -> None:
    assert client_frames.parse(text) == frame


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"hello",
        b"[]",
        b'"ack"',
        b"{}",
        b'{"type":7}',
        b'{"type":null}',
        b'{"type":"ack"}',
        b'{"type":"ack","seq":"5"}',
        b'{"type":"ack","seq":true}',
        b'{"type":"ack","seq":-1}',
        b'{"type":"ack","seq":9223372036854775808}',
        b'{"type":"ack","ids":"a"}',
        b'{"type":"nack"}',
        b'{"type":"auth","token":5}',
        b'{"type":"ping","ts":"x"}',
        b'{"type":"ack","seq":1',
        b"[" * 50_000,
        b'{"type":"ack","seq":"5","x":' + b"[" * 50_000,
    ],
)
def test_everything_else_is_malformed(text: bytes) -> None:
    with pytest.raises(Invalid):
        client_frames.parse(text)


def test_bytes_that_are_not_utf8_are_told_from_malformed_json() -> None:
    with pytest.raises(UnicodeDecodeError):
        client_frames.parse(b'{"type":"ack","seq":1,"x":"\xff"}')


def test_server_frames_are_json_objects_with_a_type() -> None:
    welcome = client_frames.WelcomeEvent(
        "c1", "u1", "7", 1050, "ok", 1041, 30_000, 60_000, 256, client_frames.ReconnectAdvice((1000, 2000), 0.3)
    )
    assert json.loads(client_frames.welcome(welcome)) == {
        "type": "welcome",
        "connection": "c1",
        "user": "u1",
        "epoch": "7",
        "seq": 1050,
        "resumed": "ok",
        "from": 1041,
        "heartbeat_ms": 30_000,
        "timeout_ms": 60_000,
        "window": 256,
        "reconnect": {"delays_ms": [1000, 2000], "jitter": 0.3},
    }
    assert json.loads(client_frames.revoke(["a"])) == {"type": "revoke", "ids": ["a"]}
    assert json.loads(client_frames.gap(900, 980)) == {"type": "gap", "from": 900, "to": 980}
    assert json.loads(client_frames.pong(5)) == {"type": "pong", "ts": 5}
    assert json.loads(client_frames.drain(4200)) == {"type": "drain", "after_ms": 4200}
    assert json.loads(client_frames.error("malformed", 'a "quote"')) == {"type": "error", "code": "malformed", "detail": 'a "quote"'}
