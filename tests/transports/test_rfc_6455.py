"""RFC 6455 as a client of hand-made bytes sees it: what is understood, and what fails the connection with which code.

Each case is bytes after the handshake and what the server sends after its welcome, until it has answered the last ping or has closed. The
selection follows the sections of the Autobahn test suite; an echo server's answer is here the engine's own `pong` to a `ping` message.
"""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from hashlib import sha1
from typing import Any, NamedTuple

import pytest

from engine.config import Config
from tests.support.edge_world import EdgeWorld, RawClient, edge_world

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FRAME_BYTES_MAX = Config().frame_bytes_max

Heard = tuple[Any, ...]
"""("text", ts of a pong) or ("error", code); ("pong", payload); ("close", code), ("close",) without one."""


class Case(NamedTuple):
    name: str
    data: bytes
    heard: list[Heard]


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0, masked: bool = True, width: int = 0) -> bytes:
    """One frame (section 5.2), right or wrong. `width`: bytes of the extended length, chosen by the size when 0."""
    size = len(payload)
    width = width or (0 if size < 126 else 2 if size < 1 << 16 else 8)
    length = {0: size, 2: 126, 8: 127}[width]
    head = bytes([fin << 7 | rsv << 4 | opcode, masked << 7 | length]) + (size.to_bytes(width, "big") if width else b"")
    if not masked:
        return head + payload
    mask = b"\xa5\x00\xff\x3c"
    return head + mask + bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))


def message(ts: int, size: int = 0, text: str = "") -> bytes:
    """A message that is answered with its `ts`; of `size` bytes, if given."""
    body = f'{{"type":"ping","ts":{ts},"pad":"{text}"}}'.encode()
    return body[:-2] + b"x" * (size - len(body)) + body[-2:]


def fragments(*parts: bytes, opcode: int = TEXT) -> bytes:
    last = len(parts) - 1
    return b"".join(frame(CONT if index else opcode, part, fin=index == last) for index, part in enumerate(parts))


def close(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, struct.pack("!H", code) + reason)


def in_text(text: bytes) -> bytes:
    return b'{"type":"ping","ts":1,"pad":"' + text + b'"}'


AFTER = frame(TEXT, message(99))
WELL = ("text", 99)
PROTOCOL_ERROR, INVALID, TOO_BIG = ("close", 1002), ("close", 1007), ("close", 1009)

CASES = [
    # Framing: lengths.
    *[
        Case(f"a text of {size} bytes", frame(TEXT, message(1, size)), [("text", 1)])
        for size in (40, 125, 126, 127, 128, 65_535, FRAME_BYTES_MAX)
    ],
    Case("a 16-bit length that would fit 7 bits", frame(TEXT, message(1), width=2), [("text", 1)]),
    Case("a 64-bit length that would fit 7 bits", frame(TEXT, message(1), width=8), [("text", 1)]),
    Case("a text over the limit", frame(TEXT, message(1, FRAME_BYTES_MAX + 1)), [TOO_BIG]),
    Case("a 64-bit length with its high bit", b"\x81\xff" + struct.pack("!Q", 1 << 63) + b"mask", [TOO_BIG]),
    Case("fragments that together are over the limit", fragments(message(1, 60_000), b"x" * 6000), [TOO_BIG]),
    Case("an empty text", frame(TEXT) + AFTER, [("error", "malformed"), WELL]),
    Case("a binary message", frame(BINARY, b"\x00\xff") + AFTER, [("error", "malformed"), WELL]),
    Case("a binary message in fragments", fragments(b"\xff", b"\xfe", opcode=BINARY) + AFTER, [("error", "malformed"), WELL]),
    # Framing: what must not be.
    Case("a frame without a mask", frame(TEXT, message(1), masked=False), [PROTOCOL_ERROR]),
    Case("a ping without a mask", frame(PING, b"x", masked=False), [PROTOCOL_ERROR]),
    *[Case(f"reserved bits {rsv:03b}", AFTER + frame(TEXT, message(1), rsv=rsv), [WELL, PROTOCOL_ERROR]) for rsv in range(1, 8)],
    Case("reserved bits of a ping", frame(PING, b"x", rsv=4), [PROTOCOL_ERROR]),
    *[Case(f"opcode {opcode}", AFTER + frame(opcode, b"x"), [WELL, PROTOCOL_ERROR]) for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)],
    # Control frames.
    Case("a ping without payload", frame(PING), [("pong", b"")]),
    Case("a ping of 125 bytes", frame(PING, b"\x00\xff\x81" * 41 + b"ab"), [("pong", b"\x00\xff\x81" * 41 + b"ab")]),
    Case("a ping of 126 bytes", frame(PING, b"x" * 126), [PROTOCOL_ERROR]),
    Case("a pong of 126 bytes", frame(PONG, b"x" * 126), [PROTOCOL_ERROR]),
    Case("ten pings", b"".join(frame(PING, b"%d" % n) for n in range(10)), [("pong", b"%d" % n) for n in range(10)]),
    Case("a pong that nobody asked for", frame(PONG, b"x") + frame(PONG) + AFTER, [WELL]),
    *[Case(f"a fragment of opcode {opcode}", frame(opcode, b"x", fin=False), [PROTOCOL_ERROR]) for opcode in (CLOSE, PING, PONG)],
    # Fragmentation.
    Case("two fragments", fragments(message(1)[:9], message(1)[9:]), [("text", 1)]),
    Case("empty fragments before, between and behind", fragments(b"", b"", message(1), b"", b""), [("text", 1)]),
    Case("a fragment per byte", fragments(*[bytes([byte]) for byte in message(1)]), [("text", 1)]),
    Case(
        "a ping between fragments",
        frame(TEXT, message(1)[:9], fin=False) + frame(PING, b"in between") + frame(CONT, message(1)[9:]),
        [("pong", b"in between"), ("text", 1)],
    ),
    Case("a pong between fragments", frame(TEXT, message(1)[:9], fin=False) + frame(PONG) + frame(CONT, message(1)[9:]), [("text", 1)]),
    Case("two messages in fragments", fragments(b"", message(1)) + fragments(message(2), b""), [("text", 1), ("text", 2)]),
    Case("a continuation of nothing", frame(CONT, b"x"), [PROTOCOL_ERROR]),
    Case("an unfinished continuation of nothing", frame(CONT, b"x", fin=False), [PROTOCOL_ERROR]),
    Case("a continuation behind a whole message", AFTER + frame(CONT, b"x"), [WELL, PROTOCOL_ERROR]),
    Case("a message inside a message", frame(TEXT, b"{", fin=False) + frame(TEXT, message(1)), [PROTOCOL_ERROR]),
    Case("fragments of two messages", frame(TEXT, b"{", fin=False) + frame(BINARY, b"}", fin=False), [PROTOCOL_ERROR]),
    Case("128 fragments", fragments(*[b""] * 127, message(1)), [("text", 1)]),
    Case("too many fragments", fragments(*[b""] * 200, message(1)), [("close", 1008)]),
    # UTF-8 (section 8.1).
    Case("text of every length of UTF-8", frame(TEXT, in_text("κ\u0080\u07ff\u0800\uffff\U00010000\U0010ffff".encode())), [("text", 1)]),
    Case("a character in two fragments", fragments(in_text("€".encode())[:-4], in_text("€".encode())[-4:]), [("text", 1)]),
    *[
        Case(f"invalid UTF-8: {name}", frame(TEXT, in_text(text)), [INVALID])
        for name, text in {
            "a lone continuation byte": b"\x80",
            "a lead byte alone": b"\xc3",
            "an overlong slash": b"\xc0\xaf",
            "an overlong NUL": b"\xe0\x80\x80",
            "a surrogate": b"\xed\xa0\x80",
            "beyond U+10FFFF": b"\xf4\x90\x80\x80",
            "five bytes": b"\xf8\x88\x80\x80\x80",
            "FE and FF": b"\xfe\xff",
        }.items()
    ],
    Case("invalid UTF-8 fails with its fragment", frame(TEXT, b'{"\xff', fin=False), [INVALID]),
    Case("invalid UTF-8 over two fragments", fragments(b'{"\xe2', b"\x28", b""), [INVALID]),
    Case("UTF-8 that ends in mid-character", fragments(b'{"', b"\xe2\x82"), [INVALID]),
    # Closing (sections 5.5.1, 7.4).
    Case("a close without a code", frame(CLOSE), [("close",)]),
    *[
        Case(f"a close with {code}", close(code), [("close", code)])
        for code in (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999)
    ],
    *[
        Case(f"a close with {code}, which must not be sent", close(code), [PROTOCOL_ERROR])
        for code in (0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535)
    ],
    Case("a close with half a code", frame(CLOSE, b"\x03"), [PROTOCOL_ERROR]),
    Case("a close with the longest reason", close(1000, b"x" * 123), [("close", 1000)]),
    Case("a close with a reason too long", close(1000, b"x" * 124), [PROTOCOL_ERROR]),
    Case("a close with a reason that is not UTF-8", close(1000, b"\xff"), [INVALID]),
    Case("a message behind a close", close(1000) + AFTER, [("close", 1000)]),
    Case("a close between fragments", frame(TEXT, b"{", fin=False) + close(1000) + frame(CONT, b"}"), [("close", 1000)]),
    Case("a wrong close between fragments", frame(TEXT, b"{", fin=False) + close(999), [PROTOCOL_ERROR]),
]


async def heard(client: RawClient, count: int) -> list[Heard]:
    """What the server sends after its welcome, until that is so much, or the end."""
    found: list[Heard] = []
    while len(found) < count and not (found and found[-1][0] == "close"):
        opcode, payload = await client.frame()
        if opcode == TEXT:
            told = json.loads(payload)
            if told["type"] == "pong":
                found.append(("text", told["ts"]))
            elif told["type"] == "error":
                found.append(("error", told["code"]))
        elif opcode == PONG:
            found.append(("pong", payload))
        elif opcode == CLOSE:
            found.append(("close", *(struct.unpack("!H", payload[:2]) if payload else ())))
    return found


async def test_the_accept_key_is_that_of_section_1_3_and_no_extension_is_agreed_on(world: EdgeWorld) -> None:
    for key in ("dGhlIHNhbXBsZSBub25jZQ==", b64encode(bytes(range(16))).decode()):
        client = await world.raw_unasked()
        await client.send(
            "GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Extensions: permessage-deflate\r\n"
            f"Authorization: Bearer {world.token()}\r\n\r\n".encode()
        )
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += await client.read(1)
        accept = b64encode(sha1(key.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        assert b"sec-websocket-accept: " + accept.lower() in answer.lower()
        assert b"extensions" not in answer.lower()
        client.close()


@pytest.mark.parametrize("short", [True, False], ids=["direct", "general"])
@pytest.mark.parametrize("bytes_at_once", [1 << 20, 7], ids=["whole", "cut"])
async def test_every_case_is_answered_as_the_rfc_wants(short: bool, bytes_at_once: int) -> None:
    async with edge_world(short=short) as world:
        wrong = {}
        for case in CASES:
            if len(case.data) < 1000 or bytes_at_once > 1000:
                found = await outcome(world, case, bytes_at_once)
                if found != case.heard:
                    wrong[case.name] = found, case.heard
        assert not wrong


async def outcome(world: EdgeWorld, case: Case, bytes_at_once: int) -> list[Heard]:
    client = await world.raw()
    try:
        for start in range(0, len(case.data), bytes_at_once):
            await client.send(case.data[start : start + bytes_at_once])
        found = await heard(client, len(case.heard))
        if found and found[-1][0] == "close":
            with pytest.raises((EOFError, ConnectionResetError)):  # the server ends the connection, and sends nothing more
                await client.frame()
    finally:
        client.close()
    return found
