"""Webhooks on real sockets: what is sent and how it is signed, which answers are final, and where nothing is sent."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.config import Config
from engine.core.model.action import WebhookTarget, parse_target
from engine.core.model.constants import NORMAL
from engine.errors import ActionFailed
from engine.features.actions import guarded_post
from engine.features.actions.address_guard import AddressGuard
from engine.features.actions.store import QueuedAction
from engine.features.actions.webhooks import Webhooks
from tests.support.link_actors import certificates
from tests.support.webhook_target import OLDER_SECRET, SECRET, webhook_server

NOW_MS = 1_900_000_000_500
ACTION = QueuedAction("1-0", "", "acme", "ann", "m1", "k" * 32, 17, NORMAL, '{"id":"m1","data":"\u00e9"}'.encode())


def webhooks(guard: AddressGuard | None = None, **settings: Any) -> Webhooks:
    given = {"webhook_hosts": ("127.0.0.1", "*.example.com"), "webhook_networks": ("127.0.0.0/8",), "webhook_secret": SECRET} | settings
    return Webhooks(Config(**given), lambda: NOW_MS, guard)


def target(url: str) -> WebhookTarget:
    found = parse_target(url)
    assert isinstance(found, WebhookTarget)
    return found


async def failure(url: str, caller: Webhooks) -> ActionFailed:
    with pytest.raises(ActionFailed) as raised:
        await caller.call(target(url), ACTION)
    return raised.value


async def test_an_action_is_posted_and_signed_with_every_secret() -> None:
    async with webhook_server() as server:
        await webhooks(webhook_secret=f"{SECRET}, {OLDER_SECRET}").call(target(server.url("/hook?a=b")), ACTION)
        (received,) = server.received
        assert received.path == "/hook?a=b"
        assert received.event == {
            "key": "k" * 32, "tenant": "acme", "user": "ann", "due": 17, "message": {"id": "m1", "data": "\u00e9"},
        }  # fmt: skip
        assert (received.headers["webhook-id"], received.headers["webhook-timestamp"]) == ("k" * 32, "1900000000")
        assert received.headers["host"] == f"127.0.0.1:{server.port}"
        assert received.headers["content-type"] == "application/json"
        assert [received.verified(secret) for secret in (SECRET, OLDER_SECRET)] == [True, True]
        await webhooks().call(target(server.url()), ACTION)
        assert [server.received[1].verified(secret) for secret in (SECRET, OLDER_SECRET)] == [True, False]
        assert "traceparent" not in received.headers


async def test_the_trace_of_a_message_is_handed_on_in_the_header_and_in_the_body() -> None:
    traceparent = f"00-{'a' * 32}-{'b' * 16}-01"
    traced = msgspec.structs.replace(ACTION, body=b'{"traceparent":"%b",%b' % (traceparent.encode(), ACTION.body[1:]))
    async with webhook_server() as server:
        await webhooks().call(target(server.url()), traced)
        (received,) = server.received
    assert received.headers["traceparent"] == received.event["traceparent"] == traceparent
    assert received.verified(SECRET)


@pytest.mark.parametrize(
    ("status", "final"),
    [(200, None), (299, None), (500, False), (503, False), (429, False), (408, False), (425, False), (400, True), (404, True), (410, True)],
)
async def test_an_answer_is_done_may_pass_or_is_final(status: int, final: bool | None) -> None:
    async with webhook_server() as server:
        server.statuses = [status]
        if final is None:
            await webhooks().call(target(server.url()), ACTION)
        else:
            error = await failure(server.url(), webhooks())
            assert (error.final, str(status) in str(error)) == (final, True)


@pytest.mark.parametrize(("header", "seconds"), [("7", 7), ("Fri, 31 Dec 1999 23:59:59 GMT", 0), ("9" * 5000, 0), ("-1", 0)])
async def test_a_refusal_has_the_seconds_of_its_retry_after(header: str, seconds: int) -> None:
    async with webhook_server() as server:
        server.statuses, server.headers = [429], f"Retry-After: {header}\r\n"
        assert (await failure(server.url(), webhooks())).retry_after_s == seconds


async def test_a_redirect_is_not_followed() -> None:
    async with webhook_server() as server:
        server.statuses, server.headers = [307], "Location: http://169.254.169.254/latest/meta-data\r\n"
        error = await failure(server.url(), webhooks())
        assert error.final
        assert "redirects are not followed" in str(error)
        assert len(server.received) == 1


@pytest.mark.parametrize("raw", [b"nonsense\r\n\r\n", b"HTTP/1.1 204 No", b"", b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000])
async def test_what_is_no_answer_may_pass(raw: bytes) -> None:
    async with webhook_server() as server:
        server.raw = raw or b" "
        assert not (await failure(server.url(), webhooks())).final


async def test_nobody_listening_may_pass() -> None:
    async with webhook_server() as server:
        url = server.url()
    assert not (await failure(url, webhooks())).final


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"webhook_hosts": ()}, "webhook_hosts"),
        ({"webhook_hosts": ("example.com", "27.0.0.1", "*.0.0.1x")}, "webhook_hosts"),
        ({"webhook_networks": ()}, "http:// is allowed only inside"),
        ({"webhook_networks": ("10.0.0.0/8",)}, "http:// is allowed only inside"),
        ({"webhook_secret": ""}, "webhook_secret"),
    ],
)
async def test_what_the_settings_do_not_allow_is_not_sent(settings: dict[str, Any], reason: str) -> None:
    async with webhook_server() as server:
        error = await failure(server.url(), webhooks(**settings))
        assert error.final
        assert reason in str(error)
        assert not server.received


async def test_the_address_that_was_checked_is_the_one_that_is_called() -> None:
    """A name that has another address at the second look (DNS rebinding)."""
    looked: list[str] = []

    async def resolve(host: str, _port: int) -> Sequence[str]:
        looked.append(host)
        return ["127.0.0.1"] if len(looked) == 1 else ["10.0.0.1"]

    async with webhook_server() as server:
        guard = AddressGuard(["127.0.0.0/8"], resolve)
        await webhooks(guard).call(target(f"http://hooks.example.com:{server.port}/"), ACTION)
        assert looked == ["hooks.example.com"]
        assert server.received[0].headers["host"] == f"hooks.example.com:{server.port}"
        error = await failure(f"http://hooks.example.com:{server.port}/", webhooks(guard))
        assert (error.final, "10.0.0.1" in str(error), len(server.received)) == (True, True, 1)


async def test_over_tls_the_certificate_must_be_of_the_name_and_of_a_known_authority(tmp_path: Path) -> None:
    made = certificates(tmp_path / "tls")  # for 127.0.0.1
    served, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=made["link_tls_ca"])
    served.load_cert_chain(made["link_tls_cert"], made["link_tls_key"])
    settings = Config(webhook_hosts=("127.0.0.1", "h.example"), webhook_networks=("127.0.0.0/8",), webhook_secret=SECRET)

    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    guard = AddressGuard(["127.0.0.0/8"], resolve)
    async with webhook_server(served) as server:
        await Webhooks(settings, lambda: NOW_MS, guard, trusting).call(target(f"https://127.0.0.1:{server.port}/"), ACTION)
        assert len(server.received) == 1
        for url, tls in ((f"https://h.example:{server.port}/", trusting), (f"https://127.0.0.1:{server.port}/", None)):
            error = await failure(url, Webhooks(settings, lambda: NOW_MS, guard, tls))
            assert not error.final
            assert isinstance(error.__cause__, ssl.SSLCertVerificationError)
        assert len(server.received) == 1, "nothing was sent before the certificate was verified"


@pytest.mark.parametrize("host", ["hooks.example.com", "a.b.example.com", "example.com", "badexample.com", "example.com.evil.net"])
async def test_a_pattern_allows_the_names_below_it(host: str) -> None:
    async def resolve(_host: str, _port: int) -> Sequence[str]:
        raise OSError("no such name")

    error = await failure(f"https://{host}/", webhooks(AddressGuard([], resolve)))
    assert ("webhook_hosts" not in str(error)) == host.endswith(".example.com")


async def test_a_name_with_an_address_that_refuses_is_called_at_its_next_one() -> None:
    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return ["127.0.0.2", "127.0.0.1"]

    async with webhook_server() as server:
        guard = AddressGuard(["127.0.0.0/8"], resolve)
        await webhooks(guard).call(target(f"http://hooks.example.com:{server.port}/"), ACTION)
        assert len(server.received) == 1


@pytest.mark.parametrize("fault", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EACCES, errno.EPERM, errno.ENETDOWN])
async def test_a_machine_without_ipv6_calls_the_next_address(fault: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which error `connect` raises there depends on how IPv6 is switched off, or filtered."""
    connect = socket.socket.connect

    def connect_by_ipv4(self: socket.socket, address: Any) -> None:
        if self.family == socket.AF_INET6:
            raise OSError(fault, "no IPv6 here")
        connect(self, address)

    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return ["::1", "127.0.0.1"]

    monkeypatch.setattr(socket.socket, "connect", connect_by_ipv4)
    async with webhook_server() as server:
        await webhooks(AddressGuard(["127.0.0.0/8", "::1/128"], resolve)).call(target(f"http://hooks.example.com:{server.port}/"), ACTION)
    assert len(server.received) == 1


async def test_an_address_that_does_not_answer_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return ["127.0.0.2", "127.0.0.1"]

    monkeypatch.setattr(guarded_post, "_CONNECT_S", 0.1)
    async with webhook_server() as server:
        with ExitStack() as open_sockets:
            deaf = open_sockets.enter_context(socket.create_server(("127.0.0.2", server.port), backlog=0))
            for _ in range(3):  # its queue is full: Linux drops what comes
                waiting = open_sockets.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(deaf.getsockname())
            async with asyncio.timeout(5):
                await webhooks(AddressGuard(["127.0.0.0/8"], resolve)).call(target(f"http://h.example.com:{server.port}/"), ACTION)
        assert len(server.received) == 1
