"""What RFC 9112 demands of a request's head beyond the grammar that httptools (llhttp, in its strict mode) checks.

llhttp rejects what is malformed byte by byte: bare line feeds, folded lines, control characters, lengths that are no numbers, repeat or
stand beside chunks. What is left to its caller is what several fields mean together: where a message ends must not depend on who reads
it (request smuggling, section 11.2), and a request has one host.
"""

from __future__ import annotations

import functools
import re
from typing import Final
from urllib.parse import unquote_to_bytes

from engine.auth.tokens import RawHeaders
from engine.http.problems import Problem, bad_request

_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Za-z:._~!$&'()*+,;=-]+\])(?::[0-9]*)?")  # RFC 3986, section 3.2.2
_ABSOLUTE: Final = re.compile(rb"https?://([^/?]+)([^?]*)(.*)", re.IGNORECASE)
_VERSIONS: Final = frozenset(("1.0", "1.1"))
_LENGTH_DIGITS_MAX: Final = 20  # of a Content-Length: 64 bits have no more


@functools.lru_cache(256)  # nearly all requests name the same few
def _is_host(value: bytes) -> bool:
    return _HOST.fullmatch(value) is not None


def check_head(http_version: str, headers: RawHeaders) -> None:
    """Check what the fields of a head mean together. Names are in lower case.

    Raises:
        Problem: 400, no host or several (section 3.2), a transfer coding in HTTP/1.0 (section 6.1), one that leaves the end of the
            body open (section 6.3), or a length of too many digits; 501, another coding before `chunked`; 505, a version other than 1.0
            and 1.1.
    """
    if http_version not in _VERSIONS:
        raise Problem(505, "HTTP/1.1 and HTTP/1.0 are spoken here")
    fields = dict(headers)
    host = fields.get(b"host")
    if host is None:
        if http_version == "1.1":
            raise bad_request("Host: a request of HTTP/1.1 has this header")
    elif not _is_host(host):
        raise bad_request("Host: a name or an address is needed, with a port where it is not the usual one")
    if len(fields) != len(headers) and sum(name == b"host" for name, _ in headers) > 1:
        raise bad_request("Host: given more than once")
    if len(fields.get(b"content-length", b"")) > _LENGTH_DIGITS_MAX:  # llhttp takes any number of zeros, `int` no more than 4300 digits
        raise bad_request("Content-Length: too many digits")
    if b"transfer-encoding" in fields:
        if http_version == "1.0":
            raise bad_request("Transfer-Encoding: not part of HTTP/1.0")
        codings = b",".join(value for name, value in headers if name == b"transfer-encoding").lower()
        if codings != b"chunked":
            last = codings.rpartition(b",")[2].strip(b" \t")
            raise Problem(501 if last == b"chunked" else 400, "Transfer-Encoding: only `chunked` is implemented")


def check_path(target: bytes) -> None:
    """Check the percent-encoded path of a target. Raises Problem, 400: its names are in no encoding that is known, so two would be one."""
    try:
        unquote_to_bytes(target.partition(b"?")[0]).decode()
    except UnicodeDecodeError:
        raise bad_request("the request's target: the path is not UTF-8, percent-encoded") from None


def origin_form(method: bytes, target: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    """The target of a request as path and query (section 3.2.1). One in absolute form replaces the host in `headers` (section 3.2.2).

    Raises:
        Problem: 400, a target that is not of this server.
    """
    if b"#" in target:
        raise bad_request("the request's target has a fragment, which is the client's own")
    if target.startswith(b"/") or (target == b"*" and method == b"OPTIONS"):
        return target
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None or not _is_host(absolute[1]):
        raise bad_request("the request's target: a path is needed, or an http URL")
    headers[:] = [(b"host", absolute[1]), *(header for header in headers if header[0] != b"host")]
    return (absolute[2] or b"/") + absolute[3]
