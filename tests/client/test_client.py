"""The receiving client against servers that misbehave, over real sockets."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import time
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis

from engine import Client, Publisher
from engine.client.frames import Message
from engine.core.model.members import COPIED, LINK
from engine.errors import Forbidden, Refused, TooManyConnections, Unauthorized, Unreachable
from engine.store.keys import dead_letter_key
from tests.support.lossy_wire import wire_to
from tests.support.misbehaving_server import DEADLINE_S, Peer, misbehaving, sending, stay
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until


async def take(client: Client, count: int) -> list[Message]:
    async with asyncio.timeout(DEADLINE_S):
        return [await anext(client) for _ in range(count)]


async def test_messages_arrive_and_each_is_acknowledged_when_the_next_is_asked_for() -> None:
    async with misbehaving(sending(1, 2)) as server, Client(server.url, "tok", device="phone") as client:
        first, second = await take(client, 2)
        assert (first.seq, first.id, first.data, second.event_id) == (1, "m1", {"n": 1}, "7-2")
        await until(lambda: server.peers[0].frames)
        assert server.peers[0].frames == [{"type": "ack", "seq": 1}]
        assert server.peers[0].token == "tok"
        assert server.peers[0].query == {"device": "phone"}
        assert server.peers[0].socket.subprotocol == "notify.v1.json"


async def test_leaving_the_loop_acknowledges_the_last_message_and_an_exception_does_not() -> None:
    async with misbehaving(sending(1)) as server:
        async with Client(server.url, "tok") as client:
            async for _ in client:
                break
        await until(lambda: server.peers[0].frames == [{"type": "ack", "seq": 1}])
        client = Client(server.url, "tok")

        async def fail() -> None:
            async with client:
                async for _ in client:
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert server.peers[1].frames == []
        assert client.cursor is None


async def test_an_expired_token_is_replaced_and_the_connection_made_again() -> None:
    async def expires(peer: Peer) -> None:
        await peer.welcome()
        await peer.socket.close(4401, "token expired")

    made: list[str] = []

    async def fresh() -> str:
        made.append(f"tok{len(made)}")
        return made[-1]

    async with misbehaving(expires, sending(1)) as server, Client(server.url, fresh) as client:
        await take(client, 1)
        assert [peer.token for peer in server.peers] == ["tok0", "tok1"]


async def test_a_fresh_token_is_presented_before_the_old_one_expires() -> None:
    def jwt(expires_s: float) -> str:
        return f"h.{base64.urlsafe_b64encode(json.dumps({'exp': expires_s}).encode()).decode().rstrip('=')}.s"

    tokens = [jwt(time.time() + 2.3), jwt(time.time() + 3600)]
    async with misbehaving(sending()) as server, Client(server.url, lambda: tokens.pop(0) if len(tokens) > 1 else tokens[0]):
        await until(lambda: server.peers[0].frames)
        assert server.peers[0].frames == [{"type": "auth", "token": tokens[0]}]
        assert server.attempts == 1


@pytest.mark.parametrize(("code", "kind"), [(4401, Unauthorized), (4403, Forbidden), (4409, TooManyConnections)])
async def test_close_codes_that_are_final_raise_from_the_iteration_after_what_had_arrived(code: int, kind: type[Exception]) -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        await peer.send(1)
        await peer.socket.close(code, "because")

    async with misbehaving(script) as server, Client(server.url, "tok") as client:
        assert [message.seq for message in await take(client, 1)] == [1]
        with pytest.raises(kind, match="because"):
            await take(client, 1)


@pytest.mark.parametrize(("status", "kind"), [(401, Unauthorized), (403, Forbidden), (404, Refused)])
async def test_a_refused_handshake_raises_what_the_engine_said(status: int, kind: type[Exception]) -> None:
    body = json.dumps({"type": "about:blank", "title": "t", "status": status, "detail": "the signature does not match"})
    async with misbehaving((status, {"Content-Type": "application/problem+json"}, body)) as server:
        with pytest.raises(kind, match="the signature does not match"):
            async with Client(server.url, "tok"):
                pass
        assert server.attempts == (
            1 if status == 401 else 3
        )  # the token is the same on every transport; the others may be refused by a proxy


async def test_a_token_source_is_asked_once_more_after_a_401_and_then_believed() -> None:
    calls: list[int] = []

    def token() -> str:
        calls.append(1)
        return "bad"

    async with misbehaving((401, {}, "")) as server:
        with pytest.raises(Unauthorized):
            async with Client(server.url, token):
                pass
        assert server.attempts == len(calls) == 2


async def test_no_engine_at_all_is_said_with_the_reason_within_the_timeout() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(Unreachable, match=r"within 1 s: .*(refused|Connect call failed)"):
            async with Client(f"http://127.0.0.1:{port}", "tok", open_timeout_s=1):
                pass


async def test_the_cursor_is_handed_out_as_it_advances_and_taken_up_in_the_next_life(tmp_path: Path) -> None:
    async def second_life(peer: Peer) -> None:
        await peer.welcome(resumed="ok")
        await stay(peer)

    kept = tmp_path / "cursor"
    async with misbehaving(sending(1, 2, 3), second_life) as server:
        async with Client(server.url, "tok", on_cursor=kept.write_text) as client:
            await take(client, 3)
            await until(lambda: kept.exists() and kept.read_text() == "7-2")
        assert kept.read_text() == "7-3" == client.cursor
        async with Client(server.url, "tok", last_event_id=kept.read_text()):
            assert server.peers[1].query == {"last_event_id": "7-3"}


async def test_a_cursor_that_cannot_be_kept_ends_the_client() -> None:
    def full(_: str) -> None:
        raise OSError("disk full")

    async with misbehaving(sending(1, 2)) as server, Client(server.url, "tok", on_cursor=full) as client:
        with pytest.raises(OSError, match="disk full"):
            await take(client, 3)


async def test_cancelling_the_wait_for_a_message_loses_nothing() -> None:
    release = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.welcome()
        await release.wait()
        await peer.send(1)
        await stay(peer)

    async with misbehaving(script) as server, Client(server.url, "tok") as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await anext(client)
        release.set()
        assert [message.seq for message in await take(client, 1)] == [1]


async def test_a_closed_client_hands_out_nothing_that_it_could_not_acknowledge() -> None:
    async with misbehaving(sending(*range(1, 101))) as server, Client(server.url, "tok") as client:
        shown = []
        async for message in client:
            shown.append(message.seq)
            if message.seq == 3:
                await client.close()
        assert shown == [1, 2, 3]


async def test_a_handler_that_never_waits_does_not_keep_acknowledgements_back() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        for start in range(1, 1001, 100):
            await peer.send(*range(start, start + 100))
            await peer.hear_ack(start + 50)  # while the handler is at it, not after
        await stay(peer)

    async with misbehaving(script) as server, Client(server.url, "tok") as client:
        assert [message.seq for message in await take(client, 1000)] == list(range(1, 1001))


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://host", "http://", "http://host:99999"])
def test_a_url_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError):
        Client(url, "tok")


async def test_a_refusal_that_the_network_lost_ends_among_the_dead_letters_though_a_later_message_was_handled(
    engine: RunningEngine,
) -> None:
    storage = Redis.from_url(engine.state["redis_url"])
    async with wire_to(engine) as (wire, url), Client(url, engine.token("u", tenant="refusing"), auto_ack=False) as client:
        await engine.publish({"user": "u", "type": "t", "id": "bad"}, {"user": "u", "type": "t", "id": "good"}, tenant="refusing")
        bad, good = await anext(client), await anext(client)
        wire.deaf = True
        bad.nack("no such post")
        await until(lambda: wire.swallowed)
        wire.cut()
        good.ack()
        wire.deaf = False
        await until(lambda: client.cursor == good.event_id)
    letters = await storage.xrange(dead_letter_key("refusing"))
    assert [(fields[b"id"], fields[b"reason"]) for _, fields in letters] == [(b"bad", b"no such post")]
    await storage.aclose()


async def test_members_for_clients_arrive_by_every_way_of_publishing(engine: RunningEngine) -> None:
    given = {member.name: f"/{member.name}/1" if member.kind is LINK else {"is": member.name} for member in COPIED}
    links = {name: value for name, value in given.items() if isinstance(value, str)}
    user, tenant = "every-way", "every-way"
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "event", "subject": user, **links}
    async with httpx.AsyncClient(base_url=engine.url, timeout=60, trust_env=False, verify=False) as http:
        token = engine.token("app", "publish", tenant=tenant)
        for content_type, body in (
            ("application/x-ndjson", json.dumps({"user": user, "type": "line", **given})),
            ("application/cloudevents+json", json.dumps(event)),
        ):
            headers = {"Authorization": f"Bearer {token}", "Content-Type": content_type}
            assert (await http.post("/v1/notifications", content=body, headers=headers)).status_code == 202
        binary = {f"ce-{name}": value for name, value in (event | {"id": "2"}).items()}
        answer = await http.post("/v1/notifications", content=b"", headers={"Authorization": f"Bearer {token}", **binary})
        assert answer.status_code == 202
    async with Publisher(engine.url, token) as publisher:
        await publisher.publish(user=user, type="python", **given)  # type: ignore[arg-type]
        await publisher.publish(type="everyone", broadcast=True, **given)  # type: ignore[arg-type]
        await publisher.publish(user=user, type="late", delay=0.05, **given)  # type: ignore[arg-type]
    async with Client(engine.url, engine.token(user, tenant=tenant)) as client:
        arrived = {message.event_id: message for message in await take(client, 6)}.values()
        kept = (await client.inbox(limit=6)).messages
    assert sorted(message.type for message in arrived) == ["event", "event", "everyone", "late", "line", "python"]
    for message in (*arrived, *kept):
        expected = links if message.type == "event" else given
        assert {name: getattr(message, name) for name in expected} == expected
    assert len(kept) == 6
