"""What operators and admins do is recorded, with who did it, and nothing else is."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from typing import Any

import httpx
import jwt
import pytest
from redis.asyncio import Redis

from engine.config import Config
from engine.features.audit.audit_log import Act, AuditLog
from engine.features.audit.keys import AUDIT_KEY
from tests.support.edge_world import SECRET, edge_world
from tests.support.running_engine import RunningEngine

RULES = '[[rule]]\nname = "a"\nevent = "e"\nrecipients = ["user"]\ntype = "t"\n'


async def test_every_act_is_recorded_with_who_did_what() -> None:
    async with edge_world() as world, world.http() as client:
        claims = {"sub": "root", "scope": "operator admin", "tenant": "default", "jti": "j7", "exp": time.time() + 60}
        client.headers["Authorization"] = f"Bearer {jwt.encode(claims, SECRET, 'HS256')}"
        await client.put("/v1/rules", content=RULES, headers={"If-Match": "*"})
        await client.post("/v1/scale", json={"shards": 3})
        await client.post("/v1/tokens/revoke", json={"user": "ann"})
        await client.get("/v1/users/ann%2Fx/export")
        await client.delete("/v1/users/ann%2Fx")
        shown = (await client.get("/v1/audit")).json()["acts"]
    assert [(act["act"], act["on"]) for act in reversed(shown)] == [
        ("store_rules", "/v1/rules"),
        ("scale", "/v1/scale"),
        ("revoke_tokens", "/v1/tokens/revoke"),
        ("export_user", "/v1/users/ann%2Fx/export"),
        ("erase_user", "/v1/users/ann%2Fx"),
    ]
    assert {(act["tenant"], act["by"], act["jti"]) for act in shown} == {("default", "root", "j7")}
    rules, scale, revocation, export = (act["details"] for act in reversed(shown) if "details" in act)
    assert (rules["version"], scale, revocation["user"]) == (1, {"shards": 3, "force": False}, "ann")
    assert export == {"tenant": "default"}


async def test_an_admin_who_revokes_the_own_token_is_answered_and_recorded() -> None:
    async with edge_world() as world, world.http(scopes="admin") as client:
        own = client.headers["Authorization"].removeprefix("Bearer ")
        answer = await client.post("/v1/tokens/revoke", json={"token": own})
        assert (answer.status_code, [act.act for act in world.acts.acts]) == (200, ["revoke_tokens"])
        assert (await client.post("/v1/tokens/revoke", json={"user": "ann"})).status_code == 401


async def test_a_refused_act_and_a_look_are_not_recorded() -> None:
    async with edge_world() as world, world.http(scopes="operator admin") as client:
        assert (await client.post("/v1/scale", json={"shards": 9})).status_code == 409
        assert (await client.get("/v1/rules")).status_code == 200
        assert (await client.get("/v1/audit")).json() == {"acts": []}


async def test_a_revoked_token_is_not_in_the_log() -> None:
    async with edge_world() as world, world.http(scopes="admin") as client:
        leaked = world.token("ann")
        assert (await client.post("/v1/tokens/revoke", json={"token": leaked})).status_code == 200
        (act,) = world.acts.acts
        assert leaked not in str(act)


async def test_an_act_succeeds_while_the_log_is_away(caplog: pytest.LogCaptureFixture) -> None:
    async with edge_world() as world, world.http("root", scopes="operator admin") as client:
        world.acts.away = True
        assert (await client.post("/v1/rebalance")).status_code == 202
        assert (await client.get("/v1/audit")).status_code == 503
    assert "not in the audit log: root of tenant default: rebalance /v1/rebalance" in caplog.text


async def test_a_damaged_act_hides_no_others(redis_client: Redis) -> None:
    log = AuditLog(redis_client, Config())
    await log.append(Act("acme", "root", "", "scale", "/v1/scale"))
    await redis_client.xadd(AUDIT_KEY, {"tenant": "acme", "by": "root", "act": b"\xff", "on": "/v1/scale", "details": "[1"})
    damaged, act = await log.page("", 10)
    assert (act.act, damaged.details) == ("scale", {"damaged": True})
    assert len([one async for one in log.about("acme:root")]) == 2


async def test_the_log_is_read_by_pages_and_bounded(redis_client: Redis) -> None:
    log = AuditLog(redis_client, Config(audit_entries_max=100))
    for number in range(500):
        await log.append(Act("t", "ann", "", "scale", "/v1/scale", {"shards": number}))
    assert 100 <= await redis_client.xlen(AUDIT_KEY) < 300
    first = await log.page("", 2)
    second = await log.page(first[-1].entry, 2)
    assert [act.details["shards"] for act in (*first, *second)] == [499, 498, 497, 496]
    await log.append(Act("t", "ann", "", "scale", "/v1/scale", {"long": "x" * 5000}))
    assert (await log.page("", 1))[0].details == {}
    assert await log.page("0-0", 5) == []
    later = await log.after(second[-1].entry, 2)
    assert [act.details["shards"] for act in later] == [497, 498]
    assert await log.after(second[-1].entry, 2, later[-1].entry) == later[:1]
    assert await log.after("0-0", 2, "0-0") == []


async def test_the_acts_of_and_about_a_user_are_found_in_the_whole_log(redis_client: Redis) -> None:
    log = AuditLog(redis_client, Config())
    for act in (
        Act("acme", "root", "", "erase_user", "/v1/users/ann%2Fx", {}),
        Act("ops", "root", "", "export_user", "/v1/users/ann%2Fx/export", {"tenant": "acme"}),
        Act("acme", "root", "", "revoke_tokens", "/v1/tokens/revoke", {"user": "ann/x"}),
        Act("acme", "ann/x", "", "scale", "/v1/scale", {}),
        Act("other", "root", "", "erase_user", "/v1/users/ann%2Fx", {}),
        Act("acme", "root", "", "erase_user", "/v1/users/ann", {}),
    ):
        await log.append(act)
    assert [act.act async for act in log.about("acme:ann/x")] == ["erase_user", "export_user", "revoke_tokens", "scale"]


@pytest.mark.engine
async def test_the_command_prints_the_acts_of_a_running_engine(engine: RunningEngine) -> None:
    def command(*arguments: str) -> str:
        given = ["--url", engine.url, "--token", engine.token("root", "operator admin")]
        return subprocess.run([sys.executable, "-m", "engine", *arguments, *given], capture_output=True, text=True, check=True).stdout

    command("erase", "nobody-of-the-audit")
    line = command("audit").splitlines()[-1]
    assert line.endswith("erase_user           /v1/users/nobody-of-the-audit")
    assert " default/root " in line


@pytest.mark.engine
async def test_the_command_follows_the_acts_of_a_running_engine(engine: RunningEngine) -> None:
    token = engine.token("root", "operator admin")
    given = ["--url", engine.url, "--token", token]

    async def next_act() -> dict[str, Any]:
        assert following.stdout is not None
        act: dict[str, Any] = json.loads(await asyncio.wait_for(following.stdout.readline(), 60))
        return act

    async with httpx.AsyncClient(base_url=engine.url, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as client:
        (await client.delete("/v1/users/zeroth-followed")).raise_for_status()
        following = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "engine", "audit", "--follow", "--json", "--limit", "1", *given, stdout=asyncio.subprocess.PIPE
        )
        try:
            await next_act()  # it follows from here
            for name in ("first", "second"):
                (await client.delete(f"/v1/users/{name}-followed")).raise_for_status()
            while (act := await next_act())["on"] != "/v1/users/first-followed":
                pass  # the other tests of this engine act too
            assert act["act"] == "erase_user"
            assert (await next_act())["on"] == "/v1/users/second-followed"
        finally:
            following.kill()
            await following.wait()
