"""The boundaries of a running engine that strangers reach, and what any bytes they send there may lead to.

Each `Boundary` draws bytes (valid prefixes with mutations, and plain noise), sends them over a connection of their own and checks what
comes back: an answer is well formed, explains itself when it refuses (RFC 9457), and none says that the engine failed. What must hold of
all processes meanwhile is checked by `tests.support.engine_watch`.

Other ways in are not reached by strangers and are fuzzed in process: links (test_links), stored records (test_records), the rules file
(test_rules), settings (test_settings), published keys (test_tokens).
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from tests.support.edge_in_process import NO_FAULT
from tests.support.edge_world import client_frame
from tests.support.hostile_bodies import EVENT, ITEM, bodies, content_types, cursors, flags, headers, instants, queries, seconds, types
from tests.support.hostile_frames import client_messages, frames_for
from tests.support.hostile_input import encoded, json_tokens, mutated, objects, strict_json, texts, values
from tests.support.http_connection import Responses
from tests.support.running_engine import RunningEngine
from tests.support.websocket_bytes import written_messages

TOKEN = b"@TOKEN@"
"""Stands for a valid token in what is drawn, so that an example does not depend on the engine it is sent to; `@TOKEN:3:90@` for a part."""
_TOKEN = re.compile(rb"@TOKEN(?::(\d+):(\d+))?@")
FRAME_BYTES_MAX = 64 << 10
_QUIET_S = 0.1
"""Without a byte for so long the client ends its side; twenty times what an answer takes here."""
_GONE_S = 20.0
"""The engine has ended its side by then, whatever it was sent."""


class Boundary(NamedTuple):
    """What strangers send there, as pieces of bytes on one connection, and the check of all bytes that come back."""

    name: str
    pieces: st.SearchStrategy[list[bytes]]
    check: Callable[[bytes], None]

    def attack(self, engine: RunningEngine, pieces: Sequence[bytes]) -> None:
        """Send one example and check what comes back."""
        token = engine.token("fuzz-1", "connect publish admin").encode()

        def part(found: re.Match[bytes]) -> bytes:
            return token[int(found[1]) : int(found[2])] if found[1] else token

        self.check(exchange(engine, [_TOKEN.sub(part, piece) for piece in pieces]))


def exchange(engine: RunningEngine, pieces: Sequence[bytes]) -> bytes:
    """Send the pieces on a connection of their own; returns all that comes back until the engine has closed it."""
    received = b""
    with socket.create_connection(("127.0.0.1", int(engine.url.rpartition(":")[2])), _GONE_S) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(ConnectionError):  # the engine may end a connection at any byte
            for piece in pieces:
                client.sendall(piece)
            client.settimeout(_QUIET_S)
            try:
                while data := client.recv(1 << 16):
                    received += data
            except TimeoutError:
                client.shutdown(socket.SHUT_WR)
                client.settimeout(_GONE_S)
                while data := client.recv(1 << 16):
                    received += data
    return received


# -- What comes back. --------------------------------------------------------------------------------------------------
_UPGRADED = b"HTTP/1.1 101 "
GOOD = frozenset({100, 200, 202, 204, 304})
"""With 100, which a client that expects it gets before the answer, also where its request has no body (RFC 9110, 10.1.1)."""

REFUSED = NO_FAULT | {408, 431, 501, 505}
"""With what the server refuses before any application: late, too large a head, a coding or a version that is not served."""


def check_http(received: bytes) -> None:
    """Responses, each a good one or a refusal that explains itself; the last may be cut off, as the client ended the connection."""
    if not received or received.startswith(_UPGRADED):
        return
    responses = Responses(received.partition(_UPGRADED)[0])
    for number in range(responses.complete):
        status, head, body = responses.statuses[number], responses.headers[number], responses.bodies[number]
        if status in GOOD:
            continue
        assert status in REFUSED, (status, body)
        if head["content-type"] == "application/problem+json":
            problem = strict_json(body)
            assert problem["status"] == status
            assert problem["title"]
            assert problem["detail"]
        else:  # what cannot be read as HTTP gets its answer before any application
            assert body, (status, head)


def check_websocket(received: bytes) -> None:
    """A handshake that was refused, or frames of valid JSON with a type."""
    if not received.startswith(_UPGRADED):
        check_http(received)
        return
    for message in written_messages(received.partition(b"\r\n\r\n")[2]):
        assert isinstance(message["type"], str)


_SSE_LINE = re.compile(rb"(?::.*|(?:id|event|data|retry): .*|)")


def check_stream(received: bytes) -> None:
    """A refusal, or an event stream whose lines are fields, comments or empty."""
    head, _, _ = received.partition(b"\r\n\r\n")
    if b"text/event-stream" not in head:
        check_http(received)
        return
    for body in Responses(received).bodies:
        for line in body.split(b"\n")[:-1]:
            assert _SSE_LINE.fullmatch(line), line


# -- What is sent. -----------------------------------------------------------------------------------------------------
def request(
    method: bytes, target: bytes, lines: Sequence[bytes] = (), body: bytes = b"", *, token: bytes = TOKEN, close: bool = True
) -> bytes:
    """One valid request around what is drawn."""
    closing = b"connection: close\r\n" if close else b""
    head = b"%b %b HTTP/1.1\r\nhost: h\r\nauthorization: Bearer %b\r\n%b" % (method, target, token, closing)
    return head + b"".join(line + b"\r\n" for line in lines) + b"content-length: %d\r\n\r\n%b" % (len(body), body)


methods = st.sampled_from([b"GET", b"GET", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"CONNECT", b"PRI", b"get"])


def escaped(raw: bytes) -> bytes:
    """The bytes as a part of a path."""
    return b"".join(b"%%%02x" % byte for byte in raw)


def visible(raw: bytes) -> bytes:
    """The bytes as a part of a query, those that would end it as blanks."""
    return re.sub(rb"[^!-~]", b"%20", raw)


def in_one_line(raw: bytes) -> bytes:
    """The bytes as a part of a header."""
    return re.sub(rb"[\r\n]", b"", raw)


users = st.one_of(st.sampled_from([b"fuzz-1", b"fuzz-2"]), st.binary(max_size=8).map(escaped))
paths = st.one_of(
    st.sampled_from([
        b"/v1/notifications", b"/v1/events", b"/v1/ack", b"/v1/nack",
        b"/v1/scheduled", b"/v1/scheduled/0-x", b"/v1/subscriptions", b"/v1/signals",
        b"/v1/explain", b"/v1/heartbeat", b"/v1/poll?wait=0", b"/v1/status", b"/v1/ws", b"/healthz", b"/readyz", b"/metrics",
        b"/openapi.json", b"/", b"*", b"/%ff", b"/..", b"http://h/v1/status", b"//", b"",
    ]),
    users.map(lambda user: b"/v1/users/%b/profile" % user),
    users.map(lambda user: b"/v1/users/%b/messages/m1" % user),
    users.map(lambda topic: b"/v1/subscriptions/%b" % topic),
)  # fmt: skip
lengths = st.sampled_from([b"0", b"5", b"-1", b"+5", b"5, 5", b"5, 6", b"0x5", b"99999999999999999999", b" 5 ", b""])
codings = st.sampled_from(
    [b"chunked", b"Chunked", b"gzip, chunked", b"chunked, chunked", b"chunked, gzip", b"identity", b"\x0bchunked", b""]
)
odd_lines = st.one_of(
    lengths.map(lambda value: b"content-length: " + value),
    codings.map(lambda value: b"transfer-encoding: " + value),
    st.sampled_from([
        b"host: other", b"host:", b"connection: close", b"connection: upgrade", b"upgrade: h2c", b"upgrade: websocket",
        b"expect: 100-continue", b"connection: keep-alive, te", b"te: trailers", b"trailer: authorization", b" folded", b"no-colon",
        b"name : value", b": empty", b"x: \x00", b"content-type: application/json", b"content-encoding: gzip", b"cookie: " + b"c" * 9000,
    ]),
    headers.map(lambda header: header[0] + b": " + header[1]),
    st.binary(max_size=30),
)  # fmt: skip
chunks = st.lists(
    st.one_of(
        st.binary(max_size=20).map(lambda data: b"%x\r\n%b\r\n" % (len(data), data)),
        st.sampled_from([
            b"0\r\n\r\n", b"0\r\nauthorization: Bearer x\r\n\r\n", b"5;ext=1\r\nhello\r\n", b"fffffffffffffffff\r\n", b"-1\r\n",
            b"5\nhello\n", b"zz\r\n",
        ]),
        st.integers(1, 4000).map(lambda size: b"1;" + b"e" * size + b"\r\nx\r\n"),
    ),
    max_size=5,
).map(b"".join)  # fmt: skip


@st.composite
def raw_requests(draw: st.DrawFn) -> bytes:
    """A request whose head, framing and body need not agree."""
    version = draw(st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.2", b""]))
    newline = draw(st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r"]))
    lines = [b"%b %b %b" % (draw(methods), draw(paths), version), b"host: h", *draw(st.lists(odd_lines, max_size=4))]
    if draw(st.booleans()):
        lines.append(b"authorization: Bearer " + TOKEN)
    return newline.join(lines) + newline * 2 + draw(st.one_of(st.just(b""), chunks, st.binary(max_size=40), bodies))


@st.composite
def cut(draw: st.DrawFn, streams: st.SearchStrategy[bytes]) -> list[bytes]:
    """A stream in up to three pieces, sent one after another; the last may be missing, as of a client that went away."""
    stream = draw(streams)
    places = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=2)))
    pieces = [stream[start:stop] for start, stop in zip([0, *places], [*places, len(stream)], strict=True)]
    return pieces[:-1] if len(pieces) > 1 and draw(st.integers(0, 3)) == 0 else pieces


def alone(requests: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    """One request on its connection, in one piece."""
    return requests.map(lambda stream: [stream])


event_members = {name: ITEM[name] for name in ("user", "type", "id", "ts", "actor", "target", "context", "data")}
event_bodies = mutated(objects({**event_members, "x": values.map(encoded)}, ["type", "user"]))
profiles = mutated(
    objects({
        "zone": texts.map(encoded), "level": texts.map(encoded), "quiet": objects({"from": texts.map(encoded), "to": texts.map(encoded)}),
        "mutes": values.map(encoded), "digest": values.map(encoded), "limits": values.map(encoded),
    })
)  # fmt: skip
small_bodies = mutated(
    st.one_of(
        objects({"seq": json_tokens, "ids": values.map(encoded)}),
        objects({"at": instants, "delay": seconds}),
        objects({"name": texts.map(encoded), "amount": json_tokens, "retain": flags}),
        objects({**EVENT, **ITEM}, ["user", "type"]),
        objects({"type": types, "user": texts.map(encoded), "at": instants}),
        json_tokens,
        st.binary(max_size=40),
    )
)
json_line = b"content-type: application/json"
UNSIGNED = b"eyJhbGciOiJub25lIn0.eyJzdWIiOiJmdXp6LTEiLCJleHAiOjQxMDI0NDQ4MDB9."
"""`{"alg":"none"}`, a user, and a time to come."""
tokens = st.one_of(
    st.builds(
        lambda at, cut, put: b"@TOKEN:0:%d@%b@TOKEN:%d:999@" % (at, visible(put), at + cut),
        st.integers(0, 300), st.integers(0, 3), st.binary(max_size=6),
    ),
    st.builds(lambda left, right: b".".join([left, right]), st.binary(max_size=40), st.binary(max_size=40)),
    st.sampled_from([b"", b".", b"..", b"...", b"e30.e30.", UNSIGNED, b"a" * 70_000]),
)  # fmt: skip
HANDSHAKE = (
    b"GET /v1/ws?device=d HTTP/1.1\r\nhost: h\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: notify.v1.json\r\nauthorization: Bearer %b\r\n\r\n" % TOKEN
)
topics = st.lists(st.one_of(st.sampled_from(["a", "team/1"]), texts), max_size=3).map(encoded)
frames = st.one_of(
    frames_for(FRAME_BYTES_MAX),
    st.builds(client_frame, mutated(st.one_of(client_messages, topics.map(lambda names: b'{"type":"subscribe","topics":%b}' % names)))),
)

publishes = st.builds(
    lambda body, kind: request(b"POST", b"/v1/notifications", [b"content-type: " + (kind or "").encode("latin-1")], body),
    bodies,
    content_types,
)
puts = st.builds(lambda user, body: request(b"PUT", b"/v1/users/%b/profile" % user, [json_line], body), users, profiles)
others = st.builds(lambda method, path, body: request(method, path or b"/", [json_line], body), methods, paths, small_bodies)
gets = st.builds(
    lambda path, query, header: request(b"GET", b"%b?%b" % (path, visible(query)), [in_one_line(b": ".join(header))]),
    st.sampled_from([b"/v1/scheduled", b"/v1/heartbeat", b"/v1/signals", b"/v1/subscriptions", b"/v1/status", b"/metrics"]),
    queries,
    headers,
)

BOUNDARIES = (
    Boundary("noise", cut(st.binary(max_size=200)), check_http),
    Boundary("http", cut(mutated(st.lists(raw_requests(), min_size=1, max_size=3).map(b"".join))), check_http),
    Boundary("publish", alone(publishes), check_http),
    Boundary("events", alone(event_bodies.map(lambda body: request(b"POST", b"/v1/events", [json_line], body))), check_http),
    Boundary("profiles", alone(puts), check_http),
    Boundary("bodies", alone(others), check_http),
    Boundary("queries", alone(gets), check_http),
    Boundary("tokens", alone(tokens.map(lambda token: request(b"GET", b"/v1/status", token=in_one_line(token)))), check_http),
    Boundary("poll", alone(cursors.map(lambda raw: request(b"GET", b"/v1/poll?wait=0&last_event_id=" + visible(raw)))), check_http),
    Boundary("sse", alone(cursors.map(lambda raw: request(b"GET", b"/v1/sse?last_event_id=" + visible(raw)))), check_stream),
    Boundary("handshake", cut(mutated(st.just(HANDSHAKE))), check_websocket),
    Boundary("frames", st.lists(frames, min_size=1, max_size=8).map(lambda sent: [HANDSHAKE, b"".join(sent)]), check_websocket),
)
"""In the order in which they are attacked."""
