"""Requests of the kinds that the HTTP Garden (https://github.com/narfindustries/http-garden) found servers and proxies to disagree on.

Each goes to nginx and to HAProxy in front of an edge's HTTP server. Proxy and server must see the same requests: one that only the server
sees was smuggled past the proxy. A request has the path `/<case>/...`, so that all may be under way at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.edge_world import edge_world
from tests.support.front_proxies import PROXIES, front_proxy, installed
from tests.support.http_connection import respond, whole_body
from tests.support.missing_programs import untried

QUIET_S = 1.0
"""A proxy that has not answered for so long waits for more bytes."""

HIDDEN = b"GET /@/hidden HTTP/1.1\r\nHost: a\r\n\r\n"
LAST = b"GET /@/last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
SIZE = str(len(HIDDEN)).encode()
HEX = f"{len(HIDDEN):x}".encode()


def get(*fields: bytes, line: bytes = b"GET /@/first HTTP/1.1", body: bytes = b"") -> bytes:
    return b"\r\n".join((line, b"Host: a", *fields, b"", b"")) + body


def post(*fields: bytes, body: bytes = HIDDEN) -> bytes:
    return get(*fields, line=b"POST /@/first HTTP/1.1", body=body)


def chunks(body: bytes, *fields: bytes, coding: bytes = b"Transfer-Encoding: chunked") -> bytes:
    return post(coding, *fields, body=body)


LENGTH = b"Content-Length: " + SIZE
WHOLE = HEX + b"\r\n" + HIDDEN + b"\r\n0\r\n\r\n"
EMPTY = b"0\r\n\r\n" + HIDDEN
CASES = {
    "a request": get(),
    "two requests": get() + HIDDEN,
    "a body that looks like a request": post(LENGTH),
    "a chunk that looks like a request": chunks(WHOLE),
    # Content-Length.
    "two lengths, the greater first": post(LENGTH, b"Content-Length: 0"),
    "two lengths, the greater last": post(b"Content-Length: 0", LENGTH),
    "an empty length before one": post(b"Content-Length: ", LENGTH),
    "an empty length": post(b"Content-Length: "),
    "a list of lengths": post(b"Content-Length: 0, " + SIZE),
    "a signed length": post(b"Content-Length: +" + SIZE),
    "a negative length": post(b"Content-Length: -" + SIZE),
    "a length with an underscore": post(b"Content-Length: 3_4"),
    "an octal length": post(b"Content-Length: 0" + SIZE),
    "a hexadecimal length": post(b"Content-Length: 0x" + HEX),
    "a length with a letter behind": post(b"Content-Length: " + SIZE + b"Z"),
    "a length beyond 64 bits": post(b"Content-Length: 18446744073709551650"),
    "space before the colon of a length": post(b"Content-Length : " + SIZE),
    "a byte beyond ASCII in the name of a length": post(b"Content-Length\x85: " + SIZE),
    "a length without a colon": post(b"Content-Length " + SIZE),
    "a length of a GET": get(LENGTH, body=HIDDEN),
    "a length behind a vertical tab": post(b"Content-Length:\x0b" + SIZE),
    # Transfer-Encoding.
    "chunks twice": chunks(EMPTY, b"Transfer-Encoding: chunked"),
    "chunks and a length": chunks(EMPTY, LENGTH),
    "a length and chunks": chunks(EMPTY, coding=LENGTH + b"\r\nTransfer-Encoding: chunked"),
    "a comma before chunked": chunks(EMPTY, coding=b"Transfer-Encoding: ,chunked"),
    "a comma before chunked and a length": chunks(EMPTY, LENGTH, coding=b"Transfer-Encoding: ,chunked"),
    "another coding": chunks(EMPTY, coding=b"Transfer-Encoding: blegh"),
    "identity and a length": chunks(HIDDEN, LENGTH, coding=b"Transfer-Encoding: identity"),
    "chunked in capitals": chunks(WHOLE, coding=b"Transfer-Encoding: CHUNKED"),
    "a no-break space around chunked": chunks(EMPTY, coding=b"Transfer-Encoding: \xa0chunked\xa0"),
    "bytes beyond ASCII around chunked": chunks(EMPTY, coding=b"Transfer-Encoding: \xffchunked\xff"),
    "a vertical tab before chunked": chunks(EMPTY, coding=b"Transfer-Encoding: \x0bchunked"),
    "a name over two lines": chunks(EMPTY, b"Content-Length: 5", coding=b"Transfer-\r\nEncoding: chunked"),
    "a folded coding": chunks(EMPTY, LENGTH, coding=b"Transfer-Encoding:\r\n chunked"),
    "an underscore in the name": chunks(EMPTY, LENGTH, coding=b"Transfer_Encoding: chunked"),
    "chunks of HTTP/1.0": get(b"Transfer-Encoding: chunked", line=b"POST /@/first HTTP/1.0", body=EMPTY),
    "chunks without an end": chunks(b""),
    # Chunks.
    "a size with an underscore": chunks(b"0_22\r\n" + HIDDEN),
    "a signed size": chunks(b"+" + WHOLE),
    "a negative size": chunks(b"-0x0\r\n\r\n" + HIDDEN),
    "a size of 0x": chunks(b"0x" + WHOLE),
    "an empty size": chunks(b"\r\n\r\n" + HIDDEN),
    "a size with spaces before": chunks(b"        0\r\n\r\n" + HIDDEN),
    "a size beyond 64 bits": chunks(b"10000000000000000\r\n" + HIDDEN),
    "a size with bytes behind": chunks(b"1these\r\nZ\r\n" + EMPTY),
    "no size": chunks(b"INVALID!!!\r\n" + HIDDEN),
    "a chunk longer than its size": chunks(b"1\r\nZZ\r\n" + EMPTY),
    "a bare CR in an extension": chunks(b"2\r\r;a\r\n02\r\n" + HEX + b"\r\n0\r\n\r\n" + HIDDEN),
    "a bare CR behind a size": chunks(b"1\r0\n" + EMPTY),
    "a bare LF behind a size": chunks(b"1\nZ\r\n" + EMPTY),
    "a bare LF in an extension": chunks(b"1;a\nb\r\nZ\r\n" + EMPTY),
    "a bare LF behind a chunk": chunks(b"1\r\nZ\n" + EMPTY),
    "a bare LF at the end": chunks(b"0\n\n" + HIDDEN),
    "a trailer": chunks(b"0\r\nX: y\r\n\r\n" + HIDDEN),
    "a trailer that looks like a request": chunks(b"0\r\nX:POST /@/hidden HTTP/1.1\r\n\r\n"),
    "a length as trailer": chunks(b"0\r\n" + LENGTH + b"\r\n\r\n" + HIDDEN),
    "NUL behind the last chunk": chunks(b"0\r\n\r\n\x00" + HIDDEN),
    # Lines and fields.
    "a bare CR before a request": get(body=b"\rZ" + HIDDEN),
    "a bare CR in a value": get(b"X: a\rTransfer-Encoding: chunked", body=EMPTY),
    "a bare LF in a name": get(b"Te\nst: x", body=HIDDEN),
    "a bare LF in a value": get(b"X: a\nContent-Length: " + SIZE, body=HIDDEN),
    "an empty line of bare LF": b"GET /@/first HTTP/1.1\r\nHost: a\r\nX:\n\n" + HIDDEN,
    "lines of bare LF": b"GET /@/first HTTP/1.1\nHost: a\n\n" + HIDDEN,
    "NUL in a value": get(b"X: a\x00b", body=HIDDEN),
    "a field without a name": get(b": x", LENGTH, body=HIDDEN),
    "a field of a colon": get(b":", LENGTH, body=HIDDEN),
    "space before the first field": b"POST /@/first HTTP/1.1\r\n\tContent-Length: " + SIZE + b"\r\nHost: a\r\n\r\n" + HIDDEN,
    "two hosts": get(b"Host: b", body=HIDDEN),
    "a line break in the request line": b"GET /@/first\nHTTP/1.1\r\nHost: a\r\n\r\n" + HIDDEN,
    "CRs in the version": get(line=b"GET /@/first HTTP/\r\r1.1", body=HIDDEN),
    "HTTP/1.32": get(line=b"GET /@/first HTTP/1.32", body=HIDDEN),
    "HTTP/0.9": b"GET /@/first\r\n\r\n" + HIDDEN,
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN,
    "an upgrade to HTTP/2": get(b"Upgrade: h2c", b"Connection: Upgrade, HTTP2-Settings", b"HTTP2-Settings: AAMAAABkAAQAAP__", body=HIDDEN),
    "an upgrade to a WebSocket that fails": get(b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Version: 1", body=HIDDEN),
    "a body that is announced, with Expect": post(b"Expect: 100-continue", LENGTH),
    "a connection option that names the length": post(b"Connection: Content-Length", LENGTH),
}


@pytest.mark.parametrize("name", PROXIES)
async def test_a_proxy_and_an_edge_see_the_same_requests(name: str, tmp_path: Path) -> None:
    if not installed(name):
        untried(f"{name} is not installed: its view of requests was not compared with that of an edge")
    seen: list[str] = []

    async def record(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and await whole_body(receive) is not None:
            seen.append(f"{scope['method']} {scope['raw_path'].decode()} 200")
            await respond(send, b"seen")

    async with edge_world(wrap=lambda _: record, short=False) as world, front_proxy(name, tmp_path, world.port) as proxy:
        await asyncio.gather(*(exchange(proxy.port, case.replace(b"@", b"%d" % number)) for number, case in enumerate(CASES.values())))
    forwarded = [line for line in proxy.forwarded() if line.endswith(" 200")]
    cases = list(CASES)
    smuggled, swallowed = Counter(seen) - Counter(forwarded), Counter(forwarded) - Counter(seen)
    print(len(seen), sorted(seen))
    assert not [(cases[int(line.split("/")[1])], line) for line in (*smuggled, *swallowed)]
    assert Counter(seen)["GET /1/hidden 200"] == Counter(seen)["POST /2/first 200"] == Counter(seen)["POST /3/first 200"] == 1
    assert not {"GET /2/hidden 200", "GET /3/hidden 200"} & set(seen)


async def exchange(port: int, request: bytes) -> None:
    """Send it, and one behind it that ends the connection; read until the proxy ends it too, or waits."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        number = request.split(b"/", 2)[1].split(b"/")[0]
        writer.write(request + LAST.replace(b"@", number))
        while await asyncio.wait_for(reader.read(1 << 16), QUIET_S):
            pass
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
