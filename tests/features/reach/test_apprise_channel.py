"""Services by Apprise: which URLs users may have, and what a service gets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import pytest
from msgspec.structs import replace

from engine.core.model.constants import NORMAL
from engine.errors import ActionFailed, Invalid
from engine.features.actions.store import QueuedAction
from engine.features.reach.apprise_channel import check_url, lane_of, send
from tests.support.free_port import free_port
from tests.support.webhook_target import webhook_server

BODY = b'{"id":"m1","type":"alert.raised","url":"https://x.example/1","data":{"title":"Disk full","body":"On db1"}}'
ACTION = QueuedAction("1-0", "channel://apprise", "acme", "ann", "m1", "k1", 1000, NORMAL, BODY)
SLACK = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/"


async def test_a_service_gets_title_text_and_link() -> None:
    async with webhook_server() as server:
        await send(ACTION, f"json://127.0.0.1:{server.port}/hook")
        (got,) = server.received
    assert (got.event["title"], got.event["message"]) == ("Disk full", "On db1\nhttps://x.example/1")


@pytest.mark.parametrize("status", [404, 503])
async def test_a_service_that_does_not_take_it_is_tried_again_and_its_url_is_nowhere(status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with webhook_server() as server:
        server.statuses = [status]
        with pytest.raises(ActionFailed) as failed:
            await send(ACTION, f"json://127.0.0.1:{server.port}/secret-token")
    assert not failed.value.final
    assert "secret-token" not in f"{failed.value}{caplog.text}"


async def test_a_service_that_is_away_is_tried_again() -> None:
    with pytest.raises(ActionFailed, match=r"json\.127\.0\.0\.1 did not take it"):
        await send(ACTION, f"json://127.0.0.1:{free_port()}/")


async def test_endless_answers_of_a_service_hold_up_no_other() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.append(asyncio.current_task())
        with contextlib.suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while not done.is_set():
                writer.write(b"x")
                await asyncio.sleep(0.05)
            writer.close()
            await writer.wait_closed()

    async def given_up(url: str, number: int) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await send(replace(ACTION, key=f"k{number}"), url)

    done, answering = asyncio.Event(), list[Any]()
    await send_one()  # imports what is slow to import
    async with await asyncio.start_server(drip, "localhost", 0) as endless:
        port = endless.sockets[0].getsockname()[1]
        await asyncio.gather(*(given_up(f"json://localhost:{port}/", number) for number in range(40)))
        async with asyncio.timeout(20):
            await send_one()
            await asyncio.to_thread(str)
        done.set()
        await asyncio.gather(*answering)


@pytest.mark.parametrize("early", [False, True])
async def test_a_slow_service_gets_one_call_for_all_tries(early: bool) -> None:
    """Apprise pauses for 5.5 s between two targets of one URL, so three take longer than a try may."""
    calls, answered = list[bytes](), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append(await reader.readuntil(b"\r\n\r\n"))
        await answered.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    await send_one()  # imports what is slow to import
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"json://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await send(ACTION, url)
        again = asyncio.ensure_future(asyncio.sleep(0) if early else send(ACTION, url))
        answered.set()
        await again
        await send(ACTION, url)
    assert len(calls) == (1 if early else 2), "a try after the answer is a new one"


async def send_one() -> None:
    async with webhook_server() as server:
        await send(ACTION, f"json://127.0.0.1:{server.port}/hook")


async def test_a_url_of_no_service_is_given_up() -> None:
    with pytest.raises(ActionFailed) as failed:
        await send(ACTION, "nonsense://x")
    assert failed.value.final


def test_a_lane_is_named_by_the_service_and_a_host_that_users_name() -> None:
    assert [lane_of(url) for url in (SLACK, "ntfy://ntfy.example.com/topic")] == ["slack", "ntfy.ntfy.example.com"]


@pytest.mark.parametrize("url", [SLACK, "ntfy://ntfy.example.com/topic", "tgram://123456789:abcdefg_hijklmnop/12315544/"])
def test_a_url_that_begins_as_an_operator_allows_is_taken(url: str) -> None:
    check_url(url, ("slack://", "ntfy://ntfy.example.com/", "tgram://"))


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js", "one of the beginnings of apprise_urls"),
        ("ntfy://ntfy.example.com.evil.example/topic", "one of the beginnings"),
        ("ntfy://user@ntfy.example.com/topic", "one of the beginnings"),
        ("slack://x", "no URL of a service"),
        (SLACK + "?format=text", "without query"),
        ("json://10.0.0.1/hook", "it names a host"),
        ("acs://ops@example.com/bXlrZXlteWtleW15a2V5bXlrZXk=/db.corp.internal/ann@example.org", "it names a host"),
    ],
)
def test_any_other_url_is_refused_with_the_reason(url: str, told: str) -> None:
    with pytest.raises(Invalid, match=told):
        check_url(url, ("slack://", "ntfy://ntfy.example.com/", "json://", "acs://"))
