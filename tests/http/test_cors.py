"""Which origins may use the engine, and what their browsers are told."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import Config
from engine.http.cors import CrossOrigin, origin_allowed


def config(*origins: str) -> Config:
    return Config(jwt_secret="s" * 32, allowed_origins=origins)


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        (None, "x", True),
        ("http://x", "x", True),
        ("http://x:80", "x", True),
        ("https://x", "x:443", True),
        ("http://x:8000", "x", False),
        ("https://app.example", "x", True),
        ("https://app.example:443", "x", True),
        ("http://app.example", "x", False),
        ("https://app.example.evil", "x", False),
        ("https://sub.app.example", "x", False),
        ("null", "x", False),
        ("", "x", False),
        ("https://", "", False),
        ("http://x:99999999", "x", False),
        ("http://[x", "x", False),
    ],
)
def test_only_the_engines_own_pages_and_listed_origins_are_allowed(origin: str | None, host: str, allowed: bool) -> None:
    assert origin_allowed(origin, host, config("https://app.example")) is allowed


@pytest.mark.parametrize(
    ("origin", "host", "listens_on", "allowed"),
    [
        ("http://localhost:3000", "127.0.0.1:8000", "127.0.0.1", True),
        ("http://127.0.0.1:5173", "localhost:8000", "localhost", True),
        ("http://[::1]:3000", "[::1]:8000", "::1", True),
        ("http://localhost:3000", "engine.example", "127.0.0.1", False),  # behind a proxy
        ("http://localhost:3000", "127.0.0.1:8000", "0.0.0.0", False),
        ("http://localhost.evil.example", "127.0.0.1:8000", "127.0.0.1", False),
        ("http://app.example", "127.0.0.1:8000", "127.0.0.1", False),
    ],
)
def test_pages_that_this_machine_serves_may_use_an_engine_that_only_it_reaches(
    origin: str, host: str, listens_on: str, allowed: bool
) -> None:
    assert origin_allowed(origin, host, Config(jwt_secret="s" * 32, host=listens_on)) is allowed


async def test_a_page_that_is_refused_learns_its_origin_and_the_setting() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/v1/poll", "headers": [(b"origin", b"https://app.example"), (b"host", b"x")]}
    await CrossOrigin(None, config())(scope, None, send)  # type: ignore[arg-type]  # it is not reached
    assert b"'https://app.example'" in sent[1]["body"]
    assert b"allowed_origins" in sent[1]["body"]


def test_a_star_allows_every_origin() -> None:
    assert origin_allowed("https://anywhere.example", "x", config("*"))


async def answer(origins: tuple[str, ...], method: str = "GET", path: str = "/v1/poll", **headers: str) -> tuple[int, dict[str, str], bool]:
    """Status and headers of the response, and whether the application was reached."""
    reached: list[bool] = []
    sent: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        reached.append(True)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"y")]})

    async def send(message: Any) -> None:
        sent.append(message)

    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in {"host": "x", **headers}.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": fields}
    await CrossOrigin(application, config(*origins))(scope, None, send)  # type: ignore[arg-type]  # it receives nothing
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}, bool(reached)


async def test_a_foreign_origin_is_refused_before_anything_happens() -> None:
    status, _, reached = await answer((), origin="https://evil.example")
    assert (status, reached) == (403, False)


async def test_a_request_of_another_site_without_an_origin_is_refused() -> None:
    assert (await answer(("*",), sec_fetch_site="cross-site"))[0] == 403
    assert (await answer(("*",), sec_fetch_site="same-site"))[0] == 403, "an image on a sibling domain would acknowledge"
    assert (await answer((), sec_fetch_site="same-origin"))[0] == 200


async def test_what_is_not_of_the_interface_is_for_everyone() -> None:
    assert (await answer((), path="/client.js", origin="https://evil.example"))[0] == 200


async def test_an_allowed_origin_may_read_the_response() -> None:
    status, headers, _ = await answer(("https://app.example",), origin="https://app.example")
    assert status == 200
    assert headers["access-control-allow-origin"] == "https://app.example"
    assert headers["vary"] == "origin"
    assert headers["x"] == "y"


async def test_a_preflight_is_answered_without_the_application() -> None:
    asked = {"origin": "https://app.example", "access_control_request_method": "POST"}
    status, headers, reached = await answer(("https://app.example",), "OPTIONS", **asked)
    assert (status, reached) == (204, False)
    assert "POST" in headers["access-control-allow-methods"]
    assert "authorization" in headers["access-control-allow-headers"]
