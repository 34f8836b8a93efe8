"""Frames from the server, as PROTOCOL.md defines them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from engine.client import frames
from engine.core.model.message import frame_bytes


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        ({"type": "revoke", "ids": ["a"]}, frames.RevokeFrame(["a"])),
        ({"type": "gap", "from": 3, "to": 5}, frames.GapFrame(3, 5)),
        ({"type": "nacked", "ids": ["a"]}, frames.NackedFrame(["a"])),
        ({"type": "pong", "ts": 5}, frames.PongFrame()),
        ({"type": "drain", "after_ms": 100}, frames.DrainFrame(100)),
        ({"type": "error", "code": "malformed", "detail": "x"}, frames.ErrorFrame("malformed", "x")),
        ({"type": "welcome", "epoch": "7", "seq": 9, "resumed": "ok", "from": 4}, frames.WelcomeFrame("7", 9, "ok", from_=4)),
        (
            {"type": "welcome", "epoch": "7", "seq": 0, "resumed": "new", "reconnect": {"delays_ms": [5], "jitter": 0.5}},
            frames.WelcomeFrame("7", 0, "new", reconnect=frames.Reconnect((5,), 0.5)),
        ),
    ],
)
def test_each_type_is_decoded_with_its_members(text: dict[str, Any], frame: frames.Frame) -> None:
    assert frames.parse(json.dumps(text)) == frame
    assert frames.parse(json.dumps({**text, "added_later": [1]}).encode()) == frame


def test_messages_are_read_as_an_edge_writes_them() -> None:
    body = b'"id":"a","type":"post.liked","priority":"high","ts":5,"actor":{"name":"bob"},"count":3,"data":[1]'
    frame = frames.parse(frame_bytes("7", [(42, 2, body), (43, 1, b'"id":"b","type":"t"')]))
    assert isinstance(frame, frames.MessagesFrame)
    first, second = frame.messages
    assert (first.seq, first.id, first.event_id, first.attempt) == (42, "a", "7-42", 2)
    assert (first.type, first.priority, first.ts, first.actor, first.count, first.data) == (
        "post.liked",
        "high",
        5,
        {"name": "bob"},
        3,
        [1],
    )
    assert (second.seq, second.priority, second.count, second.data) == (43, "normal", None, None)


def test_a_frame_of_an_unknown_type_is_ignored() -> None:
    assert frames.parse(b'{"type":"confetti","ids":7}') is None


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b'{"type":"gap"}', b'{"type":"messages","messages":[{}]}', b'{"ids":[]}', b'{"type":5}', b"\xff"]
)
def test_a_malformed_frame_is_an_error(text: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        frames.parse(text)


class Settled:
    def __init__(self) -> None:
        self.calls: list[tuple[str, str | None]] = []

    def settle(self, message: frames.Message, reason: str | None) -> None:
        self.calls.append((message.id, reason))


def test_settling_takes_effect_without_being_awaited_and_may_be_awaited() -> None:
    owner = Settled()
    message = frames.Message(seq=1, id="a", event_id="7-1", type="t")
    message.__dict__["owner"] = owner
    message.ack()
    message.nack("no")
    message.nack("")

    async def awaited() -> None:
        await message.ack()

    asyncio.run(awaited())
    assert owner.calls == [("a", None), ("a", "no"), ("a", "refused"), ("a", None)]


def test_a_message_without_a_client_cannot_be_settled() -> None:
    with pytest.raises(RuntimeError):
        frames.Message(seq=1, id="a", event_id="7-1", type="t").ack()
