"""`POST /v1/tokens/revoke` over real sockets: who may, what it ends, what is said, and what a storage that is away or forgets changes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import jwt
import pytest

from engine.auth.revoked_tokens import RevokedTokens
from engine.auth.tokens import Principal, mint
from engine.core.model.revocation import Revocation
from engine.features.event_groups.store import GroupEvent, Position, PresenceEvent
from tests.support.edge_world import SECRET, EdgeWorld, closed_with, edge_world, frame_of
from tests.support.waiting import until

PATH = "/v1/tokens/revoke"


def issued(ago_s: float, user: str = "ann", **claims: Any) -> str:
    """A token of a user that was issued some time ago."""
    return mint(SECRET, user, ("connect", "publish"), 600 + ago_s, now_s=time.time() - ago_s, **claims)


async def revoke(world: EdgeWorld, body: Any, status: int = 200, **claims: Any) -> Any:
    answer = await world.once("root", **claims).post(PATH, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def status_of(world: EdgeWorld, token: str) -> int:
    """Of a request with the token that no load on this machine refuses."""
    async with httpx.AsyncClient(base_url=world.url(), timeout=20, trust_env=False, verify=False) as client:
        return (await client.get("/v1/heartbeat", headers={"Authorization": f"Bearer {token}"})).status_code


# -- What it ends. -----------------------------------------------------------------------------------------------------
async def test_all_tokens_of_a_user_that_were_issued_before_end_and_later_ones_do_not(world: EdgeWorld) -> None:
    old, other = issued(10), issued(10, "bob")
    assert await status_of(world, old) == 200
    before_ms = int(time.time() * 1000) - 5000
    answer = await revoke(world, {"user": "ann", "before": before_ms})
    assert (answer["revoked"], answer["before"]) == ("user", before_ms)
    assert [await status_of(world, token) for token in (old, other, issued(4))] == [401, 200, 200]
    await revoke(world, {"user": "ann"})
    assert await status_of(world, issued(1)) == 401
    assert await status_of(world, issued(-2)) == 200, "a new login"


async def test_one_token_ends_by_its_jti_or_by_itself_and_no_other_of_its_user(world: EdgeWorld) -> None:
    tokens = [issued(5) for _ in range(3)]
    jti = world.authenticator.verify(tokens[0], time.time()).jti
    assert (await revoke(world, {"jti": jti}))["revoked"] == "jti"
    answer = await revoke(world, {"token": tokens[1]})
    assert answer == {"revoked": "token", "until": world.authenticator.verify(tokens[1], time.time()).expires_s * 1000}
    assert [await status_of(world, token) for token in tokens] == [401, 401, 200]
    assert {entry.kind for entry in world.revocation_log.revocations} == {"jti", "token"}


@pytest.mark.parametrize("named", ["user", "jti", "token"])
async def test_open_connections_of_every_kind_end(world: EdgeWorld, named: str) -> None:
    token, later = issued(5), issued(5, "bob")
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        world.connect(token=token) as socket,
        world.connect(token=later) as unconcerned,
        httpx.AsyncClient(base_url=world.url(), headers=headers, timeout=20, trust_env=False, verify=False) as client,
        client.stream("GET", "/v1/sse") as events,
    ):
        polling = asyncio.ensure_future(client.get("/v1/poll?wait=20"))
        await until(lambda: len(world.gateway.connections) == 4)
        await frame_of(socket, "welcome")
        principal = world.authenticator.verify(token, time.time())
        await revoke(world, {named: {"user": "ann", "jti": principal.jti, "token": token}[named]})
        assert await closed_with(socket) == (4401, "the token was revoked")
        text = "".join([part async for part in events.aiter_text()])
        assert '"code":4401,"reason":"the token was revoked"' in text
        polled = await polling
        assert (polled.status_code, polled.headers["www-authenticate"]) == (401, 'Bearer realm="engine", error="invalid_token"')
        await until(lambda: [connection.user for connection in world.gateway.connections.values()] == ["bob"])
        assert world.gateway.metrics.closes[4401] == 3
        await frame_of(unconcerned, "welcome")


@pytest.mark.parametrize("path", ["event-groups/g/events?consumer=a&", "questions/q?", "growing/m?"])
async def test_a_waiting_request_ends_with_401_after_a_revocation(path: str) -> None:
    async with edge_world(event_poll_ms=10, growing_poll_ms=10) as world, world.http(scopes="connect publish") as app:
        assert (await app.post("/v1/notifications", json={"user": "ann", "type": "a", "id": "q", "ask": {"text": True}})).is_success
        begun = (await app.post("/v1/growing", json={"writer": "w", "message": {"user": "ann", "type": "a", "id": "m"}})).json()
        waiting = asyncio.ensure_future(world.once("ann", scopes="connect events").get(f"/v1/{path}wait=30"))
        await until(lambda: len(world.authenticator._verified) == 2)
        await revoke(world, {"user": "ann"})
        what = PresenceEvent("connect", 17, "bob", "c1", "phone", "edge-0", "websocket", 0)
        world.event_groups.events.append(GroupEvent(what, Position(("1-0", "0-0"))))
        assert (await app.post("/v1/answers/q?user=ann", json={"text": "yes"})).is_success
        ending = {"user": "ann", "generation": begun["generation"], "size": 0}
        assert (await app.post("/v1/growing/m/end", json=ending)).is_success
        answer = await waiting
        assert (answer.status_code, answer.json()["detail"]) == (401, "the token was revoked")


async def test_a_connection_that_renewed_its_token_stays_when_the_old_one_is_revoked_and_goes_with_its_user(world: EdgeWorld) -> None:
    old, new = issued(50), issued(5)
    async with world.connect(token=old) as socket, world.connect(token=new) as other:
        await frame_of(socket, "welcome")
        await frame_of(other, "welcome")
        await socket.send(f'{{"type":"auth","token":"{new}"}}')
        await socket.send('{"type":"ping","ts":1}')
        await frame_of(socket, "pong")
        await revoke(world, {"token": old})
        await socket.send(f'{{"type":"auth","token":"{old}"}}')
        assert (await frame_of(socket, "error"))["detail"] == "the token was revoked"
        await revoke(world, {"user": "ann"})
        assert (await closed_with(socket))[0] == 4401
        assert (await closed_with(other))[0] == 4401


async def test_a_renewed_token_ends_its_connection_when_it_is_revoked(world: EdgeWorld) -> None:
    old, new = issued(50), issued(5)
    async with world.connect(token=old) as socket:
        await frame_of(socket, "welcome")
        await socket.send(f'{{"type":"auth","token":"{new}"}}')
        await socket.send('{"type":"ping","ts":1}')
        await frame_of(socket, "pong")
        await revoke(world, {"token": new})
        assert (await closed_with(socket))[0] == 4401


async def test_a_revocation_looks_at_the_connections_of_its_name_only(world: EdgeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    sockets = [await world.connect(token=issued(5, user)) for user in ("ann", "bob", "carl", "ann")]
    for socket in sockets:
        await frame_of(socket, "welcome")
    looked: list[str] = []
    covers = RevokedTokens.covers

    def noted(self: RevokedTokens, principal: Principal) -> bool:
        looked.append(principal.user)
        return covers(self, principal)

    monkeypatch.setattr(RevokedTokens, "covers", noted)
    revocation = Revocation("user", "default", "ann", 1 << 50, 1 << 50)
    await world.gateway.close_revoked(world.gateway.revoked.add([revocation]))
    assert looked == ["ann", "ann"]
    for socket in sockets:
        await socket.close()


async def test_a_connection_whose_token_is_revoked_between_its_check_and_its_start_ends(world: EdgeWorld) -> None:
    token = issued(5)
    authenticate = world.authenticator.token_principal

    def then_revoked(text: str, now_s: float) -> Any:
        principal = authenticate(text, now_s)
        world.gateway.revoked.add([Revocation("user", "default", "ann", 1 << 50, 1 << 50)])
        return principal

    world.authenticator.token_principal = then_revoked  # type: ignore[method-assign]
    async with world.connect(token=token) as socket:
        assert (await closed_with(socket))[0] == 4401


async def test_many_connections_are_closed_without_keeping_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.gateway.gateway._CLOSED_MAX", 2)
    async with edge_world() as world:
        sockets = [await world.connect(token=issued(5, user)) for user in ("ann", "bob", "ann", "ann", "carl")]
        for socket in sockets:
            await frame_of(socket, "welcome")
        await revoke(world, {"user": "ann"})
        await until(lambda: sorted(connection.user for connection in world.gateway.connections.values()) == ["bob", "carl"])
        for socket in sockets:
            await socket.close()


# -- Who may, and what is refused. -------------------------------------------------------------------------------------
async def test_only_an_admin_of_the_tenant_may_revoke_and_only_there(world: EdgeWorld) -> None:
    await revoke(world, {"user": "ann"}, 403, scopes="connect publish")
    token = issued(5)
    assert "another tenant's" in (await revoke(world, {"token": token}, 403, tenant="acme"))["detail"]
    await revoke(world, {"user": "ann"}, tenant="acme")
    jti = world.authenticator.verify(token, time.time()).jti
    await revoke(world, {"jti": jti}, tenant="acme")
    assert await status_of(world, token) == 200


async def test_an_operator_revokes_nothing_in_place_of_what_another_tenant_has() -> None:
    async with edge_world() as world, world.http("root", scopes="admin operator") as client:
        refused = await client.post(PATH, params={"tenant": "acme"}, json={"user": "ann"})
        assert (refused.status_code, "`tenant`" in refused.json()["detail"]) == (403, True)
        assert await status_of(world, issued(5)) == 200
        assert (await client.post(PATH, params={"tenant": "default"}, json={"user": "ann"})).status_code == 200


@pytest.mark.parametrize(
    ("body", "path", "said"),
    [
        ({}, "$", "exactly one of token, jti and user"),
        ({"user": "a", "jti": "b"}, "$", "exactly one of token, jti and user"),
        ({"user": ""}, "$.user", "1 to 128 characters"),
        ({"user": 5}, "$.user", "Expected `str`"),
        ({"jti": "x" * 129}, "$.jti", "1 to 128 characters"),
        ({"jti": "x", "exp": -1}, "$.exp", "as in the token"),
        ({"jti": "x", "exp": 1 << 60}, "$.exp", "as in the token"),
        ({"user": "a", "exp": 5}, "$.exp", "only with jti"),
        ({"jti": "a", "before": 5}, "$.before", "only with user"),
        ({"user": "a", "before": -1}, "$.before", "at most 300 seconds ahead"),
        ({"user": "a", "before": int(time.time() * 1000) + 3_600_000}, "$.before", "at most 300 seconds ahead"),
        ({"user": "a", "before": "yesterday"}, "$.before", "RFC 3339"),
        ({"token": "nonsense"}, "$.token", "no token of this engine: the token is malformed"),
        ({"token": mint("another secret of more than 32 bytes", "a", ("connect",), 60, now_s=time.time())}, "$.token", "signature"),
        ({"usr": "a"}, "$.usr", "allowed are token, jti, user, before, exp"),
    ],
)
async def test_what_cannot_be_revoked_is_said_with_the_field(world: EdgeWorld, body: Any, path: str, said: str) -> None:
    problem = await revoke(world, body, 422)
    assert problem["errors"][0]["path"] == path
    assert said in problem["errors"][0]["detail"]
    assert world.revocation_log.revocations == []


async def test_a_token_that_is_not_valid_yet_can_be_revoked(world: EdgeWorld) -> None:
    now_s = int(time.time())
    token = jwt.encode({"sub": "ann", "iat": now_s, "nbf": now_s + 60, "exp": now_s + 600}, SECRET, "HS256")
    assert (await revoke(world, {"token": token}))["until"] == (now_s + 600) * 1000
    assert world.gateway.revoked.covers(world.authenticator.verify(token, now_s + 61))


async def test_a_time_may_be_given_as_text_and_an_expired_token_needs_no_revocation(world: EdgeWorld) -> None:
    answer = await revoke(world, {"user": "ann", "before": "2026-01-31T12:00:00Z"})
    assert answer["before"] == 1_769_860_800_000
    world.revocation_log.revocations.clear()
    expired = mint(SECRET, "ann", ("connect",), 5, now_s=time.time() - 60)
    assert (await revoke(world, {"token": expired}))["until"] < time.time() * 1000
    await revoke(world, {"jti": "x", "exp": int(time.time()) - 5})
    assert world.revocation_log.revocations == []


async def test_at_the_limit_it_is_refused_with_the_limit_and_nothing_is_revoked(world: EdgeWorld) -> None:
    world.revocation_log.full = True
    answer = await world.once("root").post(PATH, json={"user": "ann"})
    assert answer.status_code == 429
    assert "revocations_max" in answer.json()["detail"]
    assert int(answer.headers["retry-after"]) >= 60
    assert await status_of(world, issued(5)) == 200


# -- From storage. -----------------------------------------------------------------------------------------------------
async def test_what_another_edge_revoked_is_in_force_and_closes_connections() -> None:
    async with edge_world(revocations_poll_ms=20) as world:
        token = issued(5)
        async with world.connect(token=token) as socket:
            await frame_of(socket, "welcome")
            world.revocation_log.revocations.append(Revocation("user", "default", "ann", 1 << 50, int(time.time() * 1000)))
            assert (await closed_with(socket))[0] == 4401
        assert await status_of(world, token) == 401


async def test_without_storage_it_is_503_and_who_is_known_goes_on() -> None:
    async with edge_world(revocations_poll_ms=20, revocations_stale_ms=1200) as world:
        seen, revoked = issued(5, "seen"), issued(5, "gone")
        assert await status_of(world, seen) == 200
        await revoke(world, {"user": "gone"})
        root = world.token("root")
        world.revocation_log.away = True
        async with httpx.AsyncClient(base_url=world.url(), trust_env=False, verify=False) as client:
            headers = {"Authorization": f"Bearer {root}"}
            answer = await client.post(PATH, json={"user": "ann"}, headers=headers)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            await until(lambda: "revocations" in world.gateway.metrics.reasons())
            assert (await client.get("/readyz")).json()["degraded"] == ["revocations"]
            await until(lambda: world.gateway.revoked.unknown)
            assert [await status_of(world, token) for token in (seen, revoked, issued(5, "new"))] == [200, 503, 503]
            world.revocation_log.away = False
            await until(lambda: not world.gateway.revoked.unknown)
            assert [await status_of(world, token) for token in (seen, revoked, issued(5, "new"))] == [200, 401, 200]
            assert (await client.get("/readyz")).json()["degraded"] == []


async def test_revocations_that_storage_has_lost_stay_in_force_and_are_appended_again(caplog: pytest.LogCaptureFixture) -> None:
    async with edge_world(revocations_poll_ms=20) as world:
        await revoke(world, {"user": "ann"})
        kept = list(world.revocation_log.revocations)
        await until(lambda: world.revocations._head.endswith("-1"))
        world.revocation_log.lose()
        await until(lambda: world.revocation_log.revocations == kept)
        assert "storage has lost 1 revocations" in caplog.text
        assert await status_of(world, issued(5)) == 401


async def test_expired_revocations_leave_the_memory_of_an_edge() -> None:
    async with edge_world(revocations_poll_ms=20) as world:
        world.revocation_log.revocations.append(Revocation("jti", "default", "x", int(time.time() * 1000) + 2000))
        await until(lambda: len(world.gateway.revoked) == 1)
        await until(lambda: len(world.gateway.revoked) == 0)
