"""The cases of RFC 9112 that decide where a request ends and whose it is, as an edge answers them (`docs/SECURITY.md` has the table)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.http_connection import HttpClient, respond, whole_body

HOST = b"Host: x"
CHUNKED = b"Transfer-Encoding: chunked"
HELLO = b"5\r\nhello\r\n0\r\n\r\n"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with what it was asked."""
    body = await whole_body(receive)
    if body is None:
        return
    host = dict(scope["headers"]).get(b"host", b"")
    await respond(send, b" ".join((scope["method"].encode(), host, scope["raw_path"], scope["query_string"], body)))


def head(line: bytes, *fields: bytes) -> bytes:
    return b"\r\n".join((line, *fields, b"", b""))


def get(*fields: bytes, line: bytes = b"GET / HTTP/1.1", host: bytes = HOST) -> bytes:
    return head(line, host, *fields)


def post(*fields: bytes, body: bytes = b"", line: bytes = b"POST / HTTP/1.1") -> bytes:
    return head(line, HOST, *fields) + body


REFUSED: dict[str, tuple[int, bytes]] = {
    # Host (sections 3.2, 3.2.2)
    "no host": (400, head(b"GET / HTTP/1.1")),
    "two hosts": (400, get(HOST)),
    "two hosts, differing": (400, get(b"Host: y")),
    "two hosts in HTTP/1.0": (400, get(HOST, line=b"GET / HTTP/1.0")),
    "a host with a space": (400, get(host=b"Host: a b")),
    "a host with a path": (400, get(host=b"Host: a/b")),
    "a host with a user": (400, get(host=b"Host: a@b")),
    "a list of hosts": (400, get(host=b"Host: a:80, b:80")),
    "a port that is no number": (400, get(host=b"Host: a:b")),
    "a host with a stray bracket": (400, get(host=b"Host: [::1")),
    "two hosts beside an absolute target": (400, get(HOST, line=b"GET http://x/ HTTP/1.1")),
    # The request line (sections 3, 3.2)
    "a fragment": (400, get(line=b"GET /a#b HTTP/1.1")),
    "a relative target": (400, get(line=b"GET a HTTP/1.1")),
    "an asterisk for GET": (400, get(line=b"GET * HTTP/1.1")),
    "a user in the target": (400, get(line=b"GET http://u@x/ HTTP/1.1")),
    "no host in the target": (400, get(line=b"GET http:///a HTTP/1.1")),
    "another scheme": (400, get(line=b"GET ftp://x/a HTTP/1.1")),
    "authority form": (400, get(line=b"CONNECT x:80 HTTP/1.1")),
    "a space in the target": (400, get(line=b"GET /a b HTTP/1.1")),
    "a tab as separator": (400, get(line=b"GET\t/ HTTP/1.1")),
    "a control character in the target": (400, get(line=b"GET /\x00 HTTP/1.1")),
    "bytes beyond ASCII in the target": (400, get(line=b"GET /\xff HTTP/1.1")),
    "a path that is not UTF-8": (400, get(line=b"GET /v1/users/caf%E9 HTTP/1.1")),
    "a path with half a surrogate": (400, get(line=b"GET /%ED%A0%AF HTTP/1.1")),
    "a space before the method": (400, get(line=b" GET / HTTP/1.1")),
    "a method in lower case": (400, get(line=b"get / HTTP/1.1")),
    "a space behind the version": (400, get(line=b"GET / HTTP/1.1 ")),
    "no version": (505, get(line=b"GET /")),
    "HTTP/0.9": (505, get(line=b"GET / HTTP/0.9")),
    "HTTP/1.2": (400, get(line=b"GET / HTTP/1.2")),
    "HTTP/2.0": (505, get(line=b"GET / HTTP/2.0")),
    "the preface of HTTP/2": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    # Lines and fields (sections 2.2, 5)
    "a bare LF behind the request line": (400, b"GET / HTTP/1.1\nHost: x\r\n\r\n"),
    "a bare LF behind a field": (400, b"GET / HTTP/1.1\r\nHost: x\nX: y\r\n\r\n"),
    "a bare LF at the end": (400, b"GET / HTTP/1.1\r\nHost: x\r\n\n"),
    "a bare CR in a field": (400, get(b"X: a\rContent-Length: 5")),
    "a bare CR at the end": (400, b"GET / HTTP/1.1\r\nHost: x\r\n\rX"),
    "a folded field": (400, get(b"X: a\r\n b")),
    "space before the first field": (400, b"GET / HTTP/1.1\r\n Host: x\r\n\r\n"),
    "space before the colon": (400, get(b"Content-Length : 5")),
    "a field without a name": (400, get(b": a")),
    "a field without a colon": (400, get(b"a")),
    "NUL in a value": (400, get(b"X: a\x00b")),
    "NUL in a name": (400, get(b"X\x00: a")),
    "a control character in a value": (400, get(b"X: a\x01b")),
    # Content-Length (sections 6.2, 6.3)
    "two lengths": (400, post(b"Content-Length: 5", b"Content-Length: 6", body=b"hello")),
    "the same length twice": (400, post(b"Content-Length: 5", b"Content-Length: 5", body=b"hello")),
    "a list of lengths": (400, post(b"Content-Length: 5, 5", body=b"hello")),
    "a signed length": (400, post(b"Content-Length: +5", body=b"hello")),
    "a negative length": (400, post(b"Content-Length: -5", body=b"hello")),
    "a hexadecimal length": (400, post(b"Content-Length: 0x5", body=b"hello")),
    "an empty length": (400, post(b"Content-Length: ", body=b"hello")),
    "a length beyond 64 bits": (400, post(b"Content-Length: 18446744073709551621", body=b"hello")),
    "a length of thousands of digits": (400, post(b"Content-Length: " + b"5".zfill(5000), body=b"hello")),
    # Transfer-Encoding (sections 6.1, 6.3)
    "a length beside chunks": (400, post(b"Content-Length: 5", CHUNKED, body=HELLO)),
    "chunks beside a length": (400, post(CHUNKED, b"Content-Length: 5", body=HELLO)),
    "chunks in HTTP/1.0": (400, post(CHUNKED, body=HELLO, line=b"POST / HTTP/1.0")),
    "a coding behind chunked": (400, post(b"Transfer-Encoding: chunked, gzip", body=HELLO)),
    "a coding without chunked": (400, post(b"Transfer-Encoding: gzip", body=HELLO)),
    "identity": (400, post(b"Transfer-Encoding: identity", body=HELLO)),
    "identity and a length": (400, post(b"Transfer-Encoding: identity", b"Content-Length: 5", body=b"hello")),
    "a coding before chunked": (501, post(b"Transfer-Encoding: gzip, chunked", body=HELLO)),
    "a coding in a field before chunked": (501, post(b"Transfer-Encoding: gzip", CHUNKED, body=HELLO)),
    "an empty coding before chunked": (501, post(b"Transfer-Encoding: , chunked", body=HELLO)),
    "chunked twice": (400, post(b"Transfer-Encoding: chunked, chunked", body=HELLO)),
    "chunked in two fields": (400, post(CHUNKED, CHUNKED, body=HELLO)),
    "chunked and a parameter": (400, post(b"Transfer-Encoding: chunked;q=1", body=HELLO)),
    "nearly chunked": (400, post(b"Transfer-Encoding: xchunked", body=HELLO)),
    "chunked behind a control character": (400, post(b"Transfer-Encoding: \x0bchunked", body=HELLO)),
    "an empty transfer coding": (400, post(b"Transfer-Encoding: ", body=HELLO)),
    # Chunks (section 7.1)
    "a chunk of more than 64 bits": (400, post(CHUNKED, body=b"10000000000000005\r\nhello\r\n0\r\n\r\n")),
    "a signed chunk size": (400, post(CHUNKED, body=b"+5\r\nhello\r\n0\r\n\r\n")),
    "a chunk size with 0x": (400, post(CHUNKED, body=b"0x5\r\nhello\r\n0\r\n\r\n")),
    "no chunk size": (400, post(CHUNKED, body=b"\r\nhello\r\n0\r\n\r\n")),
    "space around a chunk size": (400, post(CHUNKED, body=b"5 \r\nhello\r\n0\r\n\r\n")),
    "a bare LF behind a chunk size": (400, post(CHUNKED, body=b"5\nhello\r\n0\r\n\r\n")),
    "a bare LF behind an extension": (400, post(CHUNKED, body=b"5;a\nhello\r\n0\r\n\r\n")),
    "a bare CR in an extension": (400, post(CHUNKED, body=b"5;a\rb\r\nhello\r\n0\r\n\r\n")),
    "a bare LF behind a chunk": (400, post(CHUNKED, body=b"5\r\nhello\n0\r\n\r\n")),
    "a chunk longer than its size": (400, post(CHUNKED, body=b"5\r\nhelloXX0\r\n\r\n")),
    "a folded trailer": (400, post(CHUNKED, body=b"5\r\nhello\r\n0\r\nX: y\r\n z\r\n\r\n")),
    "a length as trailer": (400, post(CHUNKED, body=b"5\r\nhello\r\n0\r\nContent-Length: 5\r\n\r\n")),
    "a bare LF behind the last chunk": (400, post(CHUNKED, body=b"5\r\nhello\r\n0\r\n\n")),
}  # fmt: skip

SERVED: dict[str, tuple[bytes, bytes]] = {
    "an empty line before the request": (b"\r\n" + get(), b"GET x /  "),
    "two spaces in the request line": (get(line=b"GET  /  HTTP/1.1"), b"GET x /  "),
    "a port": (get(host=b"Host: a.example:8000"), b"GET a.example:8000 /  "),
    "an address of IPv6": (get(host=b"Host: [::1]:8000"), b"GET [::1]:8000 /  "),
    "an empty host": (get(host=b"Host:"), b"GET  /  "),
    "no host in HTTP/1.0": (head(b"GET / HTTP/1.0"), b"GET  /  "),
    "an absolute target, whose host counts": (get(line=b"GET http://y:80/a?b HTTP/1.1"), b"GET y:80 /a b "),
    "an absolute target without a path": (get(line=b"GET HTTP://y?b HTTP/1.1"), b"GET y / b "),
    "a percent sign that encodes nothing": (get(line=b"GET /100%25%zz% HTTP/1.1"), b"GET x /100%25%zz%  "),
    "an asterisk for OPTIONS": (get(line=b"OPTIONS * HTTP/1.1"), b"OPTIONS x *  "),
    "a target that begins with two slashes": (get(line=b"GET //y/a HTTP/1.1"), b"GET x //y/a  "),
    "space around a value": (post(b"Content-Length:\t 5 \t", body=b"hello"), b"POST x /  hello"),
    "chunked in capitals": (post(b"Transfer-Encoding: Chunked", body=HELLO), b"POST x /  hello"),
    "an extension": (post(CHUNKED, body=b'5;a="b"\r\nhello\r\n0;c\r\n\r\n'), b"POST x /  hello"),
    "a trailer": (post(CHUNKED, body=b"5\r\nhello\r\n0\r\nHost: evil\r\n\r\n"), b"POST x /  hello"),
    "a body of GET": (get(b"Content-Length: 5") + b"hello", b"GET x /  hello"),
    "a field that only looks like chunks": (post(b"Transfer_Encoding: chunked"), b"POST x /  "),
    "an upgrade in HTTP/1.0": (get(b"Connection: upgrade", b"Upgrade: websocket", line=b"GET / HTTP/1.0"), b"GET x /  "),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
async def test_a_request_that_could_be_read_in_two_ways_is_refused_and_nothing_behind_it_is_read(case: str) -> None:
    status, request = REFUSED[case]
    client = HttpClient(echo).sending(request + get(line=b"GET /smuggled HTTP/1.1"))
    answer = await client.answered(1)
    assert answer.statuses == [status]
    assert answer.headers[0]["connection"] == "close"
    assert answer.headers[0]["content-type"] == "application/problem+json"
    assert client.transport.ended


@pytest.mark.parametrize("case", SERVED)
async def test_a_request_that_has_one_meaning_is_served(case: str) -> None:
    request, told = SERVED[case]
    client = HttpClient(echo).sending(request)
    answer = await client.answered(1)
    assert (answer.statuses, answer.bodies) == ([200], [told])


@pytest.mark.parametrize("case", [*REFUSED, *SERVED])
async def test_it_does_not_matter_how_a_request_is_cut(case: str) -> None:
    request = REFUSED[case][1] if case in REFUSED else SERVED[case][0]
    whole, cut = HttpClient(echo), HttpClient(echo)
    whole.send(request)
    cut.send(*(request[at : at + 1] for at in range(len(request))))
    for client in (whole, cut):
        await client.answered(1)
    assert cut.responses().statuses == whole.responses().statuses
    assert cut.responses().bodies == whole.responses().bodies
