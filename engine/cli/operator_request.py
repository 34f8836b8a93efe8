"""One request of an operator to the running engine, over HTTP."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final, NoReturn

import msgspec

from engine.cli.local_engine import EngineTarget, printable
from engine.client.credentials import parse_url
from engine.errors import EngineError, Refused, Unauthorized

_TIMEOUT_S: Final = 10
_PIECE_BYTES: Final = 64 << 10

_NO_ANSWER: Final = (OSError, http.client.HTTPException, msgspec.MsgspecError)
"""There is no answer, or one that no engine gives."""


class _Failing(http.client.HTTPException):
    """A 5xx: the engine, or a proxy, says that something does not answer. `detail` says what, where it is the engine."""

    def __init__(self, status: int, reason: str, detail: str) -> None:
        super().__init__(f"{status} {reason}{f': {detail}' if detail else ''}")
        self.detail = detail


class _Answer(dict[str, Any]):
    """An answer from this URL, which may be another server's."""

    def __init__(self, url: str, members: dict[str, Any]) -> None:
        super().__init__(members)
        self.url = url

    def __missing__(self, name: str) -> NoReturn:
        raise EngineError(f"the answer of {self.url} is not an engine's: it has no `{name}`")


class _Problem(msgspec.Struct):
    detail: str = ""


def ask(
    target: EngineTarget,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    *,
    text: bool = False,
    advice: str = "",
) -> dict[str, Any]:
    """The engine's answer, a JSON object.

    Args:
        body: sent as JSON; bytes are sent as TOML.
        text: the answer is TOML: it is returned as the member `text`.
        advice: what to do when there is no answer.

    Raises:
        EngineError: the engine refuses the request, or there is no answer. One line, with what to do where that is known. Later, too:
            the answer lacks a member that is asked for.
    """
    toml = isinstance(body, bytes)
    content = body if toml or body is None else msgspec.json.encode(body)
    content_type = "application/toml" if toml else "application/json"
    with _explained(target, advice), _answer(target, method, path, content, {"Content-Type": content_type, **(headers or {})}) as answer:
        if text and (kind := answer.headers.get_content_type()) != "application/toml":  # the page of a proxy
            raise http.client.HTTPException(f"it is {kind}, not TOML")
        found = answer.read()
        return {"text": found.decode()} if text else _Answer(target.url, msgspec.json.decode(found, type=dict[str, Any]))


def pieces(target: EngineTarget, path: str, *, advice: str = "") -> Iterator[bytes]:
    """The engine's answer to a GET, JSON, while it arrives. Raises as `ask`; what was yielded before is a part of it."""
    with _explained(target, advice), _answer(target, "GET", path, None, {}) as answer:
        if (found := answer.headers.get_content_type()) != "application/json":  # the page of a proxy
            raise http.client.HTTPException(f"it is {found}, not JSON")
        while piece := answer.read(_PIECE_BYTES):
            yield piece
        if answer.length:  # a read of some bytes tells nothing of it
            raise http.client.IncompleteRead(b"", answer.length)


@contextlib.contextmanager
def _explained(target: EngineTarget, advice: str) -> Iterator[None]:
    try:
        yield
    except EngineError as error:
        raise target.explained(error) from error
    except _NO_ANSWER as error:
        reason = printable(str(error).strip() or type(error).__name__)
        told = error.detail if isinstance(error, _Failing) else ""
        told = told or f"the engine at {target.url} does not answer: {reason}"
        raise EngineError(f"{told}; {advice}" if advice else told) from error


@contextlib.contextmanager
def _answer(target: EngineTarget, method: str, path: str, content: Any, headers: Mapping[str, str]) -> Iterator[http.client.HTTPResponse]:
    """An answer that is no refusal, whose body is to be read. Raises as `ask`."""
    address = parse_url(target.url)
    token = target.token if isinstance(target.token, str) else target.token()
    made = http.client.HTTPSConnection if address.secure else http.client.HTTPConnection
    with contextlib.closing(made(address.host, address.port, timeout=_TIMEOUT_S)) as connection:
        connection.request(method, address.prefix + path, content, {"Authorization": f"Bearer {token}", **headers})
        answer = connection.getresponse()
        if answer.status in (HTTPStatus.OK, HTTPStatus.ACCEPTED):
            yield answer
            return
        found = answer.read()
        if HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
            detail = printable(msgspec.json.decode(found, type=_Problem).detail)
            raise Unauthorized(detail, answer.status) if answer.status == HTTPStatus.UNAUTHORIZED else Refused(detail, answer.status)
        raise _Failing(answer.status, answer.reason, printable(_detail_of(found)))


def _detail_of(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Problem).detail
    except msgspec.MsgspecError:
        return ""  # of a proxy
