"""What docs/PROTOCOL-RECEIVING.md promises of a server, one function each.

Its docstring is the promise. An assertion that fails tells how it was broken.

Each makes users of its own, so they may run at once, in any order, and against a server that is in use.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from tests.conformance.connections import DEADLINE_S, TRANSPORTS, Connection, Frame, Server, Unavailable, User

ServerPromise = Callable[[Server, random.Random], Awaitable[None]]
PROMISES: dict[ServerPromise, str] = {}
"""Each with the feature that keeps it, "" for delivery, which an engine without any feature keeps."""

_LOOKS = 20  # for what was acknowledged in a frame to be gone
_LOOK_S = 0.2
_TRIES = 3  # of a promise, while a part of the server is away


def promise(check: ServerPromise) -> ServerPromise:
    """Add to those that are checked, as a part of delivery."""
    return promise_of("")(check)


def promise_of(feature: str) -> Callable[[ServerPromise], ServerPromise]:
    """Add to those that are checked where the engine has this feature."""

    def added(check: ServerPromise) -> ServerPromise:
        PROMISES[check] = feature
        return check

    return added


def numbers(messages: list[Frame]) -> list[int]:
    return [message["seq"] for message in messages]


def texts(messages: list[Frame]) -> list[str]:
    return [message["data"]["text"] for message in messages]


async def nothing_pending(user: User) -> None:
    """A new connection without a cursor is sent all that is pending: it must get nothing before what is published now.

    An acknowledgement in a frame is not answered, and may reach the engine's storage behind a connection that begins meanwhile.
    """
    for _ in range(_LOOKS):
        async with user.connection() as connection:
            await user.publish("the last one")
            if texts(await connection.take(1)) == ["the last one"]:
                return
        await asyncio.sleep(_LOOK_S)
    raise AssertionError("something that was acknowledged came again")


# -- order and resumption ----------------------------------------------------------------------------------------------
@promise
async def order(server: Server, _random: random.Random) -> None:
    """New messages of a user arrive in the order of their numbers, without a hole, over each transport."""
    for transport in TRANSPORTS:
        user = server.user()
        await user.publish("0")
        async with user.connection(transport) as connection:
            for number in range(1, 10):
                await user.publish(str(number))
            messages = await connection.take(10)
            first = messages[0]["seq"]
            assert numbers(messages) == list(range(first, first + 10)), transport
            assert texts(messages) == [str(number) for number in range(10)], transport
            assert all(one["event_id"].endswith(f"-{one['seq']}") and one["attempt"] >= 1 for one in messages), transport


@promise
async def messages_wait(server: Server, _random: random.Random) -> None:
    """What was accepted while nobody was connected is delivered upon connecting, over each transport."""
    for transport in TRANSPORTS:
        user = server.user()
        results = await user.publish("a", "b", "c")
        async with user.connection(transport) as connection:
            messages = await connection.take(3)
        assert [one["id"] for one in messages] == [result["id"] for result in results], transport
        assert numbers(messages) == [result["seq"] for result in results], transport


@promise
async def resume(server: Server, _random: random.Random) -> None:
    """A cursor acknowledges everything up to it, and delivery goes on right after it, over each transport."""
    for transport in TRANSPORTS:
        user = server.user()
        await user.publish("a", "b", "c")
        async with user.connection(transport) as connection:
            messages = await connection.take(3)
        async with user.connection(transport, messages[1]["event_id"]) as connection:
            assert connection.welcome["resumed"] == "ok", transport
            assert texts(await connection.take(1)) == ["c"], transport
            await connection.ack(messages[2]["id"])
        await nothing_pending(user)


@promise
async def unknown_cursor(server: Server, _random: random.Random) -> None:
    """A cursor of another epoch or from the future is answered `gap`, and delivery starts at the oldest pending message."""
    for transport in TRANSPORTS:
        user = server.user()
        await user.publish("a", "b")
        async with user.connection() as connection:
            epoch, _, seq = (await connection.take(2))[1]["event_id"].rpartition("-")
        for cursor in (f"{epoch}-{int(seq) + 1000}", f"{int(epoch) + 1 if epoch.isdigit() else 'x'}-1"):
            async with user.connection(transport, cursor) as connection:
                assert connection.welcome["resumed"] == "gap", f"{transport}: {cursor} was answered {connection.welcome['resumed']}"
                assert texts(await connection.take(2)) == ["a", "b"], transport


@promise
async def gap(server: Server, _random: random.Random) -> None:
    """Numbers that are gone (a `ttl` that has passed) are announced by `gap` before anything after them."""
    for transport in TRANSPORTS:
        user = server.user()
        results = await user.publish({"data": {"text": "stale"}, "ttl": 1}, {"data": {"text": "fresh"}})
        await asyncio.sleep(1.2)  # the promise is about time
        deadline = time.monotonic() + DEADLINE_S
        while True:
            async with user.connection(transport) as connection:
                first = (await connection.take(1))[0]
                kinds = [frame["type"] for frame in connection.frames]
                if texts([first]) == ["fresh"]:
                    break
            assert time.monotonic() < deadline, f"{transport}: delivered long after its `ttl`"
        gone = connection.of_type("gap")
        assert any(one["from"] <= results[0]["seq"] <= one["to"] for one in gone), f"{transport}: {gone}"
        assert kinds.index("gap") < kinds.index("messages"), transport


# -- at least once -----------------------------------------------------------------------------------------------------
@promise
async def repeat(server: Server, _random: random.Random) -> None:
    """A message that is not acknowledged comes again with the same number and id, and with a higher attempt."""
    user = server.user()
    await user.publish("again")
    async with user.connection() as connection:
        await connection.until(lambda: len(connection.messages) >= 2, "the repeat")
        first, second = connection.messages[:2]
    assert (first["seq"], first["id"]) == (second["seq"], second["id"])
    assert (first["attempt"], second["attempt"]) == (1, 2)


@promise
async def acknowledged_is_gone(server: Server, _random: random.Random) -> None:
    """Nothing acknowledged comes again: cumulatively or by id, over each transport."""
    for transport in TRANSPORTS:
        user = server.user()
        await user.publish("a", "b", "c")
        async with user.connection(transport) as connection:
            first, second, third = await connection.take(3)
            await connection.ack(third["id"])
            await connection.ack(seq=second["seq"])
            await nothing_pending(user)
        assert first["seq"] < second["seq"]


@promise
async def late_acknowledgement(server: Server, _random: random.Random) -> None:
    """A request that acknowledges a number of another epoch is answered 409 and settles nothing, so that nothing new is lost by it."""
    user = server.user()
    await user.publish("a", "b")
    for transport in TRANSPORTS:
        async with user.connection(transport) as connection:
            message = (await connection.take(2))[1]
            assert texts(connection.messages[:2]) == ["a", "b"], transport
            ack = {"seq": message["seq"], "epoch": f"{connection.welcome['epoch']}0"}
            answer = await server.ask("POST", "/v1/ack", as_user=user.name, scope="connect", json=ack)
            assert answer.status_code == 409, f"a number of another epoch was answered {answer.status_code}: {answer.text}"
    ack["epoch"] = message["event_id"].rpartition("-")[0]
    answer = await server.ask("POST", "/v1/ack", as_user=user.name, scope="connect", json=ack)
    assert answer.is_success, f"a number of this epoch was answered {answer.status_code}: {answer.text}"
    await nothing_pending(user)


@promise
async def window(server: Server, _random: random.Random) -> None:
    """At most `window` messages are unacknowledged in flight; each acknowledgement makes room."""
    user = server.user()
    async with user.connection() as connection:
        size = connection.welcome["window"]
        for begin in range(0, size + 20, 200):
            await user.publish(*(str(number) for number in range(begin, min(begin + 200, size + 20))))
        messages = await connection.take(size)
        await connection.send(type="ping", ts=1)  # type: ignore[attr-defined]
        await connection.until(lambda: connection.of_type("pong"), "the pong")
        assert max(numbers(connection.messages)) == messages[-1]["seq"], "more than `window` are in flight"
        await connection.ack(seq=messages[9]["seq"])
        assert len(await connection.take(size + 10)) == size + 10
        await connection.ack(seq=messages[-1]["seq"] + 20)


@promise
async def early_copies(server: Server, _random: random.Random) -> None:
    """A high message passes 600 low ones without an ACK, without a cursor, and is settled by id or comes again in its place."""
    for transport in TRANSPORTS[:2]:  # between two polls the messages may leave memory
        user = server.user()
        for _ in range(3):
            await user.publish(*[{"priority": "low", "data": {"text": "low"}}] * 200)
        async with user.connection(transport) as connection:
            await connection.take(200)
            results = await user.publish(*[{"priority": "high", "data": {"text": "direct"}}] * 2)
            if transport == "sse":  # a written message makes room there: nothing waits
                await connection.take(602)
            else:
                await _check_early_copies(connection, *results)


async def _check_early_copies(connection: Connection, settled: Frame, left: Frame) -> None:
    def copies() -> dict[str, Frame]:
        return {one["id"]: one for frame in connection.of_type("early") for one in frame["messages"]}

    await connection.until(lambda: len(copies()) == 2, "two early copies", 5)
    assert all(one["early"] is True and "event_id" not in one for one in copies().values())
    assert copies()[left["id"]]["seq"] == left["seq"]
    await connection.ack(settled["id"])
    await connection.ack(seq=settled["seq"] - 1)
    await connection.until(lambda: left["id"] in {one["id"] for one in connection.messages}, "the repeat in its place")
    assert settled["id"] not in {one["id"] for one in connection.messages}


@promise
async def idempotency(server: Server, _random: random.Random) -> None:
    """A repeated publish under one id is a `duplicate` with the first number; with another payload it is `409`."""
    user = server.user()
    item = {"data": {"text": "once"}, "id": f"{user.name}-key"}
    (first,) = await user.publish(item)
    (second,) = await user.publish(item)
    assert (first["status"], second["status"], second["seq"]) == ("accepted", "duplicate", first["seq"])
    other = {"user": user.name, "type": "conformance", **item, "data": {"text": "twice"}}
    assert (await server.ask("POST", "/v1/notifications", json=other)).status_code == 409
    async with user.connection() as connection:
        assert texts(await connection.take(1)) == ["once"]
        await connection.ack(seq=first["seq"])
    await nothing_pending(user)


# -- several connections -----------------------------------------------------------------------------------------------
@promise
async def revoke(server: Server, _random: random.Random) -> None:
    """What one connection acknowledges is revoked on the user's others."""
    user = server.user()
    async with user.connection() as first, user.connection("sse") as second:
        (result,) = await user.publish("for both")
        await asyncio.gather(first.take(1), second.take(1))
        await first.ack(result["id"])
        await second.until(lambda: any(result["id"] in one["ids"] for one in second.of_type("revoke")), "the revoke")
    await nothing_pending(user)


@promise
async def nack(server: Server, _random: random.Random) -> None:
    """A refused message is confirmed by `nacked` and never comes again."""
    user = server.user()
    (result,) = await user.publish("bad")
    async with user.connection() as connection:
        await connection.take(1)
        for _ in range(2):  # a repeated refusal is confirmed too
            confirmed = len(connection.of_type("nacked"))
            await connection.send(type="nack", ids=[result["id"]], reason="conformance")  # type: ignore[attr-defined]
            await connection.until(lambda: len(connection.of_type("nacked")) > confirmed, "`nacked`")  # noqa: B023
        assert all(result["id"] in one["ids"] for one in connection.of_type("nacked"))
    await nothing_pending(user)


@promise
async def nack_by_request(server: Server, _random: random.Random) -> None:
    """On SSE and polling `POST /v1/nack` refuses messages, which never come again."""
    for transport in ("sse", "poll"):
        user = server.user()
        bad, worse, good = await user.publish("bad", "worse", "good")
        refusal = {"ids": [bad["id"], worse["id"]], "reason": "conformance"}
        async with user.connection(transport) as connection:
            await connection.take(3)
            for _ in range(2):  # a repeated refusal is confirmed too
                answer = await server.ask("POST", "/v1/nack", as_user=user.name, scope="connect", json=refusal)
                assert answer.status_code == 200, f"{transport}: a refusal was answered {answer.status_code}: {answer.text}"
            await connection.ack(good["id"])
        await nothing_pending(user)
    empty = await server.ask("POST", "/v1/nack", as_user=user.name, scope="connect", json={"ids": []})
    assert (empty.status_code, empty.json()["errors"][0]["path"]) == (422, "$.ids")


@promise_of("dead_letters")
async def refused_messages_are_dead_letters(server: Server, _random: random.Random) -> None:
    """Messages that `POST /v1/nack` refuses are dead letters with its answer."""
    user = server.user()
    bad, worse = await user.publish("bad", "worse")
    refusal = {"ids": [bad["id"], worse["id"]], "reason": "conformance"}
    async with user.connection("sse") as connection:
        await connection.take(2)
        await server.ask("POST", "/v1/nack", as_user=user.name, scope="connect", json=refusal)
    listed = await server.ask("GET", f"/v1/dead-letters?user={user.name}", scope="admin")
    letters = {(letter["id"], letter["reason"]) for letter in listed.json()["dead_letters"]}
    assert letters == {(bad["id"], "conformance"), (worse["id"], "conformance")}


@promise
async def nack_of_what_storage_has(server: Server, _random: random.Random) -> None:
    """A message is refused by `POST /v1/nack` also when no connection is left."""
    user = server.user()
    bad, good = await user.publish("bad", "good")
    async with user.connection("poll") as connection:
        await connection.take(2)
    answer = await server.ask("POST", "/v1/nack", as_user=user.name, scope="connect", json={"ids": [bad["id"]]})
    assert answer.status_code == 200, f"a refusal was answered {answer.status_code}: {answer.text}"
    async with user.connection() as connection:
        assert texts(await connection.take(1)) == ["good"]
        await connection.ack(good["id"])
    await nothing_pending(user)


@promise
async def topics(server: Server, _random: random.Random) -> None:
    """`subscribe` is answered with all topics of the user; from then on what is published to the topic arrives."""
    user = server.user()
    topic = f"{user.name}-topic"
    async with user.connection() as connection:
        await connection.send(type="subscribe", topics=[topic])  # type: ignore[attr-defined]
        await connection.until(lambda: connection.of_type("subscribed"), "`subscribed`")
        assert connection.of_type("subscribed")[0]["topics"] == [topic]
        item = {"topic": topic, "type": "conformance", "data": {"text": "to the topic"}}
        assert (await server.ask("POST", "/v1/notifications", json=item)).status_code == 202
        assert texts(await connection.take(1)) == ["to the topic"]


@promise
async def lost_broadcast(server: Server, _random: random.Random) -> None:
    """A message for a topic that left the log while its subscriber was away is announced by `gap`, over each transport."""
    for transport in TRANSPORTS:
        user = server.user()
        topic = f"{user.name}-topic"
        item = {"topic": topic, "type": "conformance"}
        async with user.connection() as connection:
            await connection.send(type="subscribe", topics=[topic])  # type: ignore[attr-defined]
            await connection.until(lambda: connection.of_type("subscribed"), "`subscribed`")
            await server.ask("POST", "/v1/notifications", json={**item, "data": {"text": "before"}})
            (before,) = await connection.take(1)
            await connection.ack(before["id"])
        stale = {**item, "data": {"text": "stale"}, "ttl": 1}
        assert (await server.ask("POST", "/v1/notifications", json=[stale, stale])).status_code == 202
        await asyncio.sleep(1.2)  # the promise is about time
        await server.ask("POST", "/v1/notifications", json={**item, "data": {"text": "fresh"}})
        async with user.connection(transport, before["event_id"]) as connection:
            (fresh,) = await connection.take(1)
            gone = connection.of_type("gap")
        assert texts([fresh]) == ["fresh"], transport
        announced = {seq for one in gone for seq in range(one["from"], one["to"] + 1)}  # a poll may announce it again
        assert announced, f"{transport}: nothing was announced"
        assert announced == set(range(before["seq"] + 1, fresh["seq"])), f"{transport}: {gone}, {fresh['seq']}"


# -- the edges ---------------------------------------------------------------------------------------------------------
@promise
async def unknown_is_ignored(server: Server, _random: random.Random) -> None:
    """Frames of unknown types and unknown fields are ignored; a ping is answered with its `ts`."""
    async with server.user().connection() as connection:
        await connection.send(type="of-the-future", x=1)  # type: ignore[attr-defined]
        await connection.send(type="ping", ts=17, x={"y": 1})  # type: ignore[attr-defined]
        await connection.until(lambda: connection.of_type("pong"), "the pong")
        assert connection.of_type("pong")[0]["ts"] == 17
        assert not connection.of_type("error")


@promise
async def malformed_frames(server: Server, _random: random.Random) -> None:
    """A malformed frame is answered with `error`; ten of them close with 1008."""
    async with server.user().connection() as connection:
        for _ in range(10):
            await connection.send(type="ack", seq="not a number")  # type: ignore[attr-defined]
        await connection.until(lambda: connection.close_code is not None, "the end of the connection")
        assert connection.of_type("error")
        assert connection.close_code == 1008


@promise
async def tokens(server: Server, _random: random.Random) -> None:
    """No or a bad token is 401, one without the scope 403, as plain responses before any upgrade; problems are RFC 9457's."""
    user = server.user()
    good, bad = server.token(user.name), server.token(user.name).rpartition(".")[0] + "." + 43 * "A"
    for token, scope_path, status in ((None, "/v1/poll", 401), (bad, "/v1/poll", 401), (good, "/v1/notifications", 403)):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        item = {"user": user.name, "type": "t"}
        answer = await (
            server.http.post(scope_path, json=item, headers=headers) if status == 403 else server.http.get(scope_path, headers=headers)
        )
        assert answer.status_code == status, f"{scope_path} was answered {answer.status_code}"
        assert answer.headers["content-type"].startswith("application/problem+json")
        assert answer.json()["status"] == status
    url = str(httpx.URL(server.url.replace("http", "ws", 1) + "/v1/ws"))
    for subprotocols, token, status in ((["notify.v1.json"], bad, 401), (["another"], good, 400)):
        offered = [Subprotocol(one) for one in subprotocols]
        refused = await _refused_status(
            connect(url, subprotocols=offered, additional_headers={"Authorization": f"Bearer {token}"}, proxy=None)
        )
        assert refused == status, f"a WebSocket that offers {subprotocols} was answered {refused}"


async def _refused_status(attempt: connect) -> int:
    """101 when it was not refused."""
    try:
        async with attempt:
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


@promise
async def refusals_name_the_field(server: Server, _random: random.Random) -> None:
    """An invalid item of a batch is 422 with its index, and nothing of the batch is accepted."""
    user = server.user()
    items = [{"user": user.name, "type": "conformance"}, {"user": user.name, "type": "no spaces please"}]
    answer = await server.ask("POST", "/v1/notifications", json=items)
    assert answer.status_code == 422, f"an invalid batch was answered {answer.status_code}: {answer.text}"
    assert answer.json()["errors"][0]["index"] == 1
    await nothing_pending(user)


# -- everything at once ------------------------------------------------------------------------------------------------
@promise
async def switching_transports_under_cuts(server: Server, random: random.Random) -> None:
    """Whatever transports a client uses one after another, however they are cut: it gets everything, and nothing that it acknowledged."""
    user = server.user()
    published: list[str] = []
    received: dict[str, Frame] = {}
    acknowledged: set[str] = set()
    cursor: str | None = None
    async with asyncio.timeout(DEADLINE_S * 3):
        while len(published) < 60 or len(acknowledged) < len(published):
            if len(published) < 60:
                texts_now = [f"{len(published) + at}" for at in range(random.randint(1, 6))]
                published += [result["id"] for result in await user.publish(*texts_now)]
            transport = random.choice(TRANSPORTS)
            async with AsyncExitStack() as stack:
                connection = await stack.enter_async_context(user.connection(transport, cursor))
                missing = set(published) - acknowledged
                wanted = random.randint(0, len(missing))
                await connection.until(lambda: len({one["id"] for one in connection.messages}) >= wanted, f"{wanted} over {transport}")  # noqa: B023
                _check_arrivals(connection, received, acknowledged)
                fresh = [one for one in connection.messages if one["id"] not in acknowledged]
                if fresh and random.random() < 0.5:  # by cursor, whichever transport presents it next
                    last = fresh[random.randrange(len(fresh))]
                    cursor = max(filter(None, (cursor, last["event_id"])), key=lambda one: int(one.rpartition("-")[2]))
                elif fresh:  # by number, and heard: a WebSocket that is cut may not have been
                    last = random.choice(fresh)
                    await connection.ack(seq=last["seq"])
                    if transport == "websocket":
                        await connection.send(type="ping", ts=1)  # type: ignore[attr-defined]
                        await connection.until(lambda: connection.of_type("pong"), "the pong")  # noqa: B023
                    acknowledged |= {one["id"] for one in received.values() if one["seq"] <= last["seq"]}
            if cursor is not None:
                presented = int(cursor.rpartition("-")[2])
                acknowledged |= {one["id"] for one in received.values() if one["seq"] <= presented}
    assert [received[one]["data"]["text"] for one in published] == [str(number) for number in range(len(published))]
    assert numbers([received[one] for one in published]) == sorted(numbers(list(received.values())))
    if cursor is not None:
        async with user.connection("websocket", cursor):
            pass
    await nothing_pending(user)


# -- preferences -------------------------------------------------------------------------------------------------------
@promise_of("policy")
async def preferences(server: Server, _random: random.Random) -> None:
    """Changes of preferences at once are all there, a repeat or null changes what it says, and messages are decided by them then."""
    user = server.user()

    async def change(**members: object) -> Frame:
        return await _change(server, user, **members)

    await asyncio.gather(
        change(types={"conformance.off": "off"}), change(types={"conformance.*": "on"}, zone="Asia/Tokyo"), change(targets={"t": "off"})
    )
    mine = (await server.ask("GET", "/v1/preferences", as_user=user.name, scope="connect")).json()
    assert (mine["types"], mine["targets"]) == ({"conformance.off": "off", "conformance.*": "on"}, {"t": "off"}), mine
    assert mine["zone"] == "Asia/Tokyo"
    kinds = ("conformance.off", "conformance.on", "conformance")
    results = await user.publish(*({"type": kind} for kind in kinds), {"target": "t"})
    assert [result["status"] for result in results] == ["suppressed", "accepted", "accepted", "suppressed"]
    for _ in range(2):
        assert (await change(types={"conformance.off": None}, targets=None))["types"] == {"conformance.*": "on"}
    assert [result["status"] for result in await user.publish({"type": "conformance.off"}, {"target": "t"})] == ["accepted", "accepted"]
    refused = await server.ask("PATCH", "/v1/preferences", as_user=user.name, scope="connect", json={"level": "vip"})
    assert refused.status_code == 422, f"a user's change of the level was answered {refused.status_code}"


@promise_of("windows")
async def digest(server: Server, _random: random.Random) -> None:
    """A message that the user wants in the digest counts there, and is not delivered by itself."""
    user = server.user()
    await _change(server, user, types={"conformance.*": "digest"})
    assert [result["status"] for result in await user.publish({"type": "conformance.on"}, "alone")] == ["merged", "accepted"]
    async with user.connection() as connection:
        assert texts(await connection.take(1)) == ["alone"]


async def _change(server: Server, user: User, **members: object) -> Frame:
    """Change the user's preferences. Returns all of them."""
    answer = await server.ask("PATCH", f"/v1/preferences?user={user.name}", json=members)
    assert answer.status_code == 200, f"a change of preferences was answered {answer.status_code}: {answer.text}"
    changed: Frame = answer.json()
    return changed


def _check_arrivals(connection: Connection, received: dict[str, Frame], acknowledged: set[str]) -> None:
    """In order on this connection, under the number it had before, and nothing acknowledged before."""
    last = 0
    for message in connection.messages:
        known = received.setdefault(message["id"], message)
        assert known["seq"] == message["seq"], "a message came again under another number"
        assert message["id"] not in acknowledged, "a message came again that had been acknowledged"
        assert message["attempt"] > 1 or message["seq"] > last, "out of order"
        last = max(last, message["seq"])


async def check(promise: ServerPromise, server: Server, seed: int | str) -> None:
    """Raises what a promise fails with. It is tried anew, with new users, when a part of the server was away meanwhile."""
    for _ in range(_TRIES - 1):
        with suppress(Unavailable):
            await promise(server, random.Random(seed))
            return
    await promise(server, random.Random(seed))


async def broken_promises(url: str, jwt_secret: str) -> dict[str, BaseException]:
    """What each promise fails with, by its name; without those that are kept. All are checked at once: each has users of its own."""
    servers = [Server(url, jwt_secret) for _ in PROMISES]
    checks = (check(promise, server, promise.__name__) for promise, server in zip(PROMISES, servers, strict=True))
    found = await asyncio.gather(*checks, return_exceptions=True)
    for server in servers:
        await server.http.aclose()
    return {promise.__name__: error for promise, error in zip(PROMISES, found, strict=True) if error is not None}
