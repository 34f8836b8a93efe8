"""Heartbeat probes while the client cannot connect."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from engine.client import heartbeat_probes
from engine.client.credentials import Credentials, parse_url
from engine.client.heartbeat_probes import HeartbeatProbes
from engine.client.links.transport_link import LinkOptions
from tests.support.raw_http_server import RawRequest, answer, raw_server
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def _no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_probes, "JITTER", 0)


def probes_to(url: str, device: str | None = None, cursor: str | None = None) -> HeartbeatProbes:
    return HeartbeatProbes(LinkOptions(parse_url(url), Credentials("tok"), lambda: cursor, device))


def answering(*answers: bytes) -> Iterator[bytes]:
    yield from answers
    while True:
        yield answer(200, {"online": True, "state": "suspect", "seq": 9})


async def test_probes_name_the_client_and_its_last_number_until_they_end() -> None:
    answers = answering()

    async def respond(_request: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(next(answers))

    async with raw_server(respond) as server:
        probes = probes_to(server.url, "Büro 2", "7-42")
        probes.begin(30)
        probes.begin(30)
        await until(lambda: len(server.of("/v1/heartbeat")) >= 3)
        probes.end()
        count = len(server.requests)
        await asyncio.sleep(0.1)  # nothing happens
        assert len(server.requests) <= count + 1
        headers = server.requests[0].headers
        assert (headers["x-client-id"], headers["x-last-seq"]) == ("B%C3%BCro 2", "42")
        assert headers["authorization"] == "Bearer tok"


async def test_a_client_without_a_device_has_a_name_for_all_its_probes() -> None:
    answers = answering()

    async def respond(_request: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(next(answers))

    async with raw_server(respond) as server:
        probes = probes_to(server.url)
        probes.begin(30)
        await until(lambda: len(server.requests) >= 2)
        probes.end()
        (name,) = {request.headers["x-client-id"] for request in server.requests}
        assert name
        assert server.requests[0].headers["x-last-seq"] == "0"


async def test_a_refused_probe_is_not_repeated_before_the_engine_wants_it() -> None:
    answers = answering(answer(429, {"detail": "later"}, Retry_After="0.5"))

    async def respond(_request: RawRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(next(answers))

    async with raw_server(respond) as server:
        probes = probes_to(server.url)
        probes.begin(30)
        await until(lambda: server.requests)
        begin = asyncio.get_running_loop().time()
        await until(lambda: len(server.requests) >= 2)
        probes.end()
        assert asyncio.get_running_loop().time() - begin > 0.3


async def test_probes_go_on_where_nothing_answers() -> None:
    closed = 0

    async def respond(_request: RawRequest, writer: asyncio.StreamWriter) -> None:
        nonlocal closed
        closed += 1
        writer.close()

    async with raw_server(respond) as server:
        probes = probes_to(server.url)
        probes.begin(30)
        await until(lambda: closed >= 3)
        probes.end()
