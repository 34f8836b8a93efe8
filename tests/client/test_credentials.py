"""Addresses and tokens of the clients."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import Any

import pytest

from engine.client import credentials as credentials_module
from engine.client.credentials import Credentials, EngineUrl, expires_s, parse_url


def jwt(**claims: Any) -> str:
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{part}.c2ln"


@pytest.mark.parametrize(
    ("url", "address", "http", "websocket"),
    [
        ("http://host", EngineUrl(False, "host", 80, ""), "http://host:80", "ws://host:80"),
        ("wss://host/a/b/", EngineUrl(True, "host", 443, "/a/b"), "https://host:443/a/b", "wss://host:443/a/b"),
        ("https://[::1]:8443", EngineUrl(True, "::1", 8443, ""), "https://[::1]:8443", "wss://[::1]:8443"),
        ("ws://127.0.0.1:8000/", EngineUrl(False, "127.0.0.1", 8000, ""), "http://127.0.0.1:8000", "ws://127.0.0.1:8000"),
    ],
)
def test_a_url_of_either_scheme_gives_both(url: str, address: EngineUrl, http: str, websocket: str) -> None:
    parsed = parse_url(url)
    assert (parsed, parsed.http, parsed.websocket) == (address, http, websocket)


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://host", "http://", "http://host:99999", "http://host:port", f"http://{'a' * 64}"]
)
def test_another_url_is_a_value_error(url: str) -> None:
    with pytest.raises(ValueError):
        parse_url(url)


@pytest.mark.parametrize("url", ["http://me:secret@host", "http://me@host/a", "http://host/?tenant=secret", "http://host/#secret"])
def test_members_of_a_url_that_nothing_would_use_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="no user, password, query or fragment") as refused:
        parse_url(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("chars", range(4))
def test_the_expiry_of_a_jwt_is_read_whatever_its_length(chars: int) -> None:
    assert expires_s(jwt(sub="u" * chars, exp=1_700_000_000)) == 1_700_000_000


@pytest.mark.parametrize("token", ["", "opaque", "a.b.c", "a.é.c", jwt(), jwt(exp="soon"), jwt(exp=None), "e30.bnVsbA.c"])
def test_a_token_without_a_readable_expiry_never_expires(token: str) -> None:
    assert expires_s(token) is None


async def test_a_fixed_token_is_never_renewed() -> None:
    credentials = Credentials(jwt(exp=time.time() - 10))
    assert not credentials.renewable
    assert credentials.renew_in_s() is None
    assert await credentials.get(fresh=True) == await credentials.get()


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_source_is_called_at_first_when_fresh_is_wanted_and_after_expiry(asynchronous: bool) -> None:
    issued: list[str] = []

    def issue() -> str:
        lifetimes = (100, 100, 0.5, 100)
        issued.append(jwt(n=len(issued), exp=time.time() + lifetimes[len(issued)]))
        return issued[-1]

    async def issue_later() -> str:
        return issue()

    credentials = Credentials(issue_later if asynchronous else issue)
    assert credentials.renewable
    assert credentials.renew_in_s() is None, "there is no token yet"
    assert await credentials.get() == await credentials.get() == issued[0]
    assert len(issued) == 1
    assert await credentials.get(fresh=True) == issued[1]
    assert await credentials.get(fresh=True) == issued[2]
    assert await credentials.get() == issued[3], "the third is about to expire"
    assert len(issued) == 4


async def test_a_token_is_renewed_before_it_expires() -> None:
    credentials = Credentials(lambda: jwt(exp=time.time() + 100))
    await credentials.get()
    due_s = credentials.renew_in_s()
    assert due_s is not None
    assert 88 < due_s <= 89


async def test_what_the_source_raises_is_raised() -> None:
    def issue() -> str:
        raise PermissionError("no")

    with pytest.raises(PermissionError):
        await Credentials(issue).get()


async def test_a_token_that_comes_expired_is_used_until_it_is_refused() -> None:
    issued: list[str] = []

    def issue() -> str:
        issued.append(jwt(n=len(issued), exp=time.time() - 60))  # as a clock sees it that is ahead
        return issued[-1]

    credentials = Credentials(issue)
    assert await credentials.get() == await credentials.get() == issued[0]
    assert credentials.renew_in_s() is None
    assert await credentials.get(refused=issued[0]) == issued[1]
    assert len(issued) == 2


async def test_a_source_that_never_returns_is_an_error_for_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials_module, "TOKEN_TIMEOUT_S", 0.05)
    calls = 0

    async def source() -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.Event().wait()
        return "tok"

    credentials = Credentials(source)
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*(credentials.get() for _ in range(3)), return_exceptions=True)
    assert {str(answer) for answer in answers} <= {"the token function has not returned within 0.05 s", "tok"}
    assert isinstance(answers[0], TimeoutError)
    assert await credentials.get() == "tok"


async def test_an_error_names_a_token_with_a_line_break_or_another_type() -> None:
    with pytest.raises(ValueError, match="the token has a line break"):
        Credentials("secret\n")
    with pytest.raises(ValueError, match="the token has a line break"):
        await Credentials(lambda: "secret\r\n").get()
    nothing: Any = lambda: None  # noqa: E731
    credentials = Credentials(nothing)
    for _ in range(2):
        with pytest.raises(TypeError, match="the token function returned NoneType"):
            await credentials.get()
