"""A head that came before is not parsed again and means what it would mean if it were; what may have changed is checked each time."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.publish_endpoint import PublishHead
from engine.core.model.revocation import USER, Revocation
from engine.publish.media_types import Content
from engine.transports.kept_heads import HEAD_BYTES_MAX, KeptHeads
from tests.support.edge_world import EdgeWorld, edge_world, standing_still
from tests.support.publish_requests import Connection, asked, connected, connections, counting
from tests.support.waiting import until

HEAD = PublishHead("token", Content("application/json"))
REQUEST = asked("token", b"{}")


class NoParser:
    """In the place of a connection's parser: nothing may be parsed."""

    def feed_data(self, data: bytes) -> None:
        raise AssertionError(bytes(data))


def item(number: int) -> bytes:
    """Bodies of one length."""
    return json.dumps({"user": "u1", "type": "test.event", "id": f"m{number:04}"}).encode()


async def warm(world: EdgeWorld, connection: Connection, token: str) -> Any:
    """Publish twice, so that the head is kept. Returns the server's end of the connection."""
    for number in range(2):
        assert b" 202 " in await connection.ask(asked(token, item(number)))
    (protocol,) = connections(world)
    assert len(protocol._fast_paths.heads) == 1
    return protocol


# -- What is found. --------------------------------------------------------------------------------------------------------
def test_a_kept_head_is_found_with_any_body_of_its_length() -> None:
    heads = KeptHeads(10)
    heads.keep(REQUEST, 2, HEAD)
    assert heads.find(REQUEST) == (HEAD, b"{}", 0)
    assert heads.find(REQUEST[:-2] + b"\r\n") == (HEAD, b"\r\n", 0)
    assert heads.find(REQUEST[:-1]) == (HEAD, b"{", 1)
    assert heads.find(REQUEST[:-2]) == (HEAD, b"", 2)


@pytest.mark.parametrize("data", [b"", b"\r\n\r\n", REQUEST[:-3], REQUEST + b"P", REQUEST * 2, b"\r\n" + REQUEST, REQUEST[1:]])
def test_nothing_but_one_request_from_its_beginning_is_found(data: bytes) -> None:
    heads = KeptHeads(10)
    heads.keep(REQUEST, 2, HEAD)
    assert heads.find(data) is None


@pytest.mark.parametrize(
    ("data", "body_bytes"),
    [
        (REQUEST, 1),
        (REQUEST * 2, 2),
        (b"\r\n" + REQUEST, 2),
        (b"\r\n\r\n" + REQUEST, 2),
        (b"\r\n\r\n{}", 2),
        (REQUEST[:-2], 0),
        (b"", 0),
        (asked("token", b"{}", method="PUT"), 2),
        (asked("token", b"{}", line=f"x: {'y' * HEAD_BYTES_MAX}"), 2),
    ],
)
def test_nothing_else_is_kept(data: bytes, body_bytes: int) -> None:
    heads = KeptHeads(10)
    heads.keep(data, body_bytes, HEAD)
    assert len(heads) == 0


@pytest.mark.parametrize("content", [Content(traceparent="00-1-1-01"), Content(attributes=[(b"ce-id", b"1")])])
def test_a_head_of_one_request_alone_takes_no_place(content: Content) -> None:
    heads = KeptHeads(10)
    heads.keep(REQUEST, 2, PublishHead("token", content))
    assert len(heads) == 0


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_bytes_around_a_request_never_become_a_part_of_it(before: bytes, behind: bytes) -> None:
    heads = KeptHeads(10)
    heads.keep(REQUEST, 2, HEAD)
    found = heads.find(before + REQUEST + behind)
    assert (found is not None) == (not before and not behind)


def test_the_oldest_head_makes_room() -> None:
    heads = KeptHeads(3)
    for number in range(5):
        heads.keep(asked(f"token{number}", b"{}"), 2, HEAD)
    assert [heads.find(asked(f"token{number}", b"{}")) is not None for number in range(5)] == [False, False, True, True, True]


# -- On a connection. ------------------------------------------------------------------------------------------------------
async def test_a_repeated_head_is_not_parsed_on_any_connection_and_reaches_no_application() -> None:
    seen: list[str] = []
    async with edge_world(wrap=counting(seen)) as world, connected(world) as connection:
        protocol = await warm(world, connection, token := world.token())
        protocol._parser = NoParser()
        assert b'"id":"m0002"' in await connection.ask(asked(token, item(2)))
        async with connected(world) as other:
            other.writer.write(asked(token, item(3)))  # the first request of a connection
            assert b'"id":"m0003"' in await other.answer()
            for (one,) in [set(connections(world)) - {protocol}]:
                one._parser = NoParser()
            other.writer.write(asked(token, item(4)))
            assert b'"id":"m0004"' in await other.answer()
        assert seen == []


async def test_a_kept_head_in_front_of_anything_but_its_body_is_parsed() -> None:
    async with edge_world() as world, connected(world) as connection:
        await warm(world, connection, token := world.token())
        request = asked(token, item(2))
        connection.writer.write(request + asked(token, item(3)))  # both in one read
        assert b'"id":"m0002"' in await connection.answer()
        assert b'"id":"m0003"' in await connection.answer()
        connection.writer.write(request[:-5])
        assert b'"id":"m0002"' in await connection.ask(request[-5:])
        connection.writer.write(b"\r\n" + request)  # RFC 9112, section 2.2
        assert b" 202 " in await connection.answer()
        assert b" 202 " in await connection.ask(request + b"rest")
        assert b" 400 " in await connection.ask(b" of nothing\r\n\r\n")


async def test_a_body_that_comes_behind_a_kept_head_is_waited_for_in_any_pieces() -> None:
    seen: list[str] = []
    async with edge_world(wrap=counting(seen), request_timeout_s=5) as world, connected(world) as connection:
        protocol = await warm(world, connection, token := world.token())
        parser, protocol._parser = protocol._parser, NoParser()
        request = asked(token, item(2))
        start = request.index(b"\r\n\r\n") + 4
        for ends in [start], [start + 1], [start, start + 7], range(start, len(request)):
            sent = 0
            for end in ends:
                connection.writer.write(request[sent:end])
                await until(lambda end=end: protocol._held == request[:end])
                assert protocol.busy
                sent = end
            assert b'"id":"m0002"' in await connection.ask(request[sent:])
        protocol._parser = parser
        connection.writer.write(request[:start])
        await until(lambda: protocol._held)
        connection.writer.write(request[start:] + asked(token, item(3)))  # more than the body: all of it is parsed
        assert b'"id":"m0002"' in await connection.answer()
        assert b'"id":"m0003"' in await connection.answer()
        assert b" 408 " in await connection.ask(request[:-1])
        assert seen == ["/v1/notifications"], "the one that was sent before the other was answered"


async def test_any_cut_of_the_same_requests_gets_the_same_answers() -> None:
    random = Random(18)
    async with edge_world() as world, connected(world) as connection:
        protocol = await warm(world, connection, token := world.token())
        requests = [asked(token, item(2)), asked("nonsense", item(3)), asked(token, item(4)), asked(token, b"[]"), asked(token, item(5))]
        sent = b"".join(requests)
        for _ in range(40):
            cuts = sorted({0, len(sent), *random.sample(range(len(sent)), random.randint(0, 8))})
            for start, end in itertools.pairwise(cuts):
                await until(lambda: not protocol._reading_paused)
                protocol.data_received(sent[start:end])
                if random.random() < 0.5:
                    await asyncio.sleep(0)
            statuses = [(await connection.answer()).split(b" ")[1] for _ in requests]
            assert statuses == [b"202", b"401", b"202", b"422", b"202"], cuts


async def test_a_server_that_stops_waits_for_the_body_behind_a_kept_head() -> None:
    async with edge_world() as world, connected(world) as connection:
        protocol = await warm(world, connection, token := world.token())
        request = asked(token, item(2))
        connection.writer.write(request[:-3])
        await until(lambda: protocol._held)
        protocol.shutdown()
        answer = await connection.ask(request[-3:])
        assert b'"id":"m0002"' in answer
        assert answer.endswith(b"<end>")


async def test_a_client_that_leaves_before_the_body_behind_a_kept_head_leaves_nothing(world: EdgeWorld) -> None:
    async with connected(world) as connection:
        protocol = await warm(world, connection, token := world.token())
        connection.writer.write(asked(token, item(2))[:-3])
        await until(lambda: protocol._held)
    await until(lambda: not world.server.server_state.connections)
    assert not protocol._held
    assert protocol._timer is None


async def test_a_kept_head_of_a_revoked_token_is_refused_and_the_connection_stays() -> None:
    async with edge_world() as world, connected(world) as connection:
        token = world.token("revoked")
        protocol = await warm(world, connection, token)
        protocol._parser = NoParser()
        now_ms = int(time.time() * 1000)
        world.gateway.revoked.add([Revocation(USER, "default", "revoked", now_ms + 600_000, now_ms + 1000)])
        for _ in range(2):
            assert b" 401 " in await connection.ask(asked(token, item(2)))


async def test_a_kept_head_of_an_expired_token_is_refused() -> None:
    async with edge_world() as world, connected(world) as connection:
        token = world.token(ttl_s=600)
        protocol = await warm(world, connection, token)
        protocol._parser = NoParser()
        world.gateway.wall_ms = lambda: int(time.time() * 1000) + 601_000
        assert b" 401 " in await connection.ask(asked(token, item(2)))


async def test_requests_with_a_kept_head_count_against_the_quota_of_their_tenant() -> None:
    async with edge_world(tenant_requests_per_s=2) as world, connected(world) as connection:
        token = world.token()
        await warm(world, connection, token)
        statuses = set()
        with standing_still(world):
            for number in range(8):
                statuses.add((await connection.ask(asked(token, item(number)))).split(b" ")[1])
        assert b"429" in statuses


async def test_a_connection_that_retires_says_so_in_the_answer_to_a_kept_head() -> None:
    async with edge_world() as world, connected(world) as connection:
        token = world.token()
        protocol = await warm(world, connection, token)
        protocol.retire()
        answer = await connection.ask(asked(token, item(2)))
        assert b"connection: close" in answer
        assert answer.endswith(b"<end>")


async def test_heads_of_who_is_refused_are_not_kept() -> None:
    async with edge_world() as world, connected(world) as connection:
        for token in ("nonsense", world.token(scopes="connect"), "nonsense"):
            assert b" 40" in await connection.ask(asked(token, item(0)))
        (protocol,) = connections(world)
        assert len(protocol._fast_paths.heads) == 0
