"""Rules that are stored outlive the processes that carry them out, and so does what they have begun."""

from __future__ import annotations

import httpx
import pytest

from tests.support.chaos.breakable_engine import ask, status_when, victim_of
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.engine]

RULES = '[[rule]]\nname = "{}"\nevent = "stored.rules"\nrecipients = ["user"]\ntype = "t"\n'
LATE_S = 110


def put(engine: RunningEngine, text: str, query: str = "") -> dict[str, object]:
    headers = {"Authorization": f"Bearer {engine.token('ann', 'operator')}", "If-Match": "*"}
    answer = httpx.put(f"{engine.url}/v1/rules{query}", content=text, headers=headers, timeout=30, trust_env=False)
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


async def matched(engine: RunningEngine, number: int) -> list[str]:
    event = {"type": "stored.rules", "user": "ann", "id": f"stored-{number}"}
    found: list[str] = (await ask(engine, "POST", "/v1/events", event))["matched"]
    return found


async def test_a_stored_version_is_in_force_again_after_its_edge_died_and_rolls_back_to_the_file(victim: RunningEngine) -> None:
    await status_when(victim, lambda status: status["ready"])
    assert "one" not in await matched(victim, 1)
    stored = put(victim, RULES.format("one"))
    assert await matched(victim, 2) == ["one"], "in force with the answer"
    staged = put(victim, RULES.format("two"), "?share=0.5")

    before = (await status_when(victim, lambda status: status["ready"]))["edges"][0]["restarts"]
    victim_of(victim).kill("edge")
    await status_when(victim, lambda status: status["ready"] and status["edges"][0]["restarts"] > before)
    assert (await matched(victim, 3))[0] == "one"

    async def edges() -> list[dict[str, object]]:
        found: list[dict[str, object]] = (await ask(victim, "GET", "/v1/rules", scope="operator"))["edges"]
        return found

    wanted = {"edge": "edge-0", "version": stored["version"], "staged": staged["version"], "share": 0.5, "refused": ""}
    await until(edges, LATE_S, holds=lambda found: found == [wanted])

    headers = {"Authorization": f"Bearer {victim.token('ann', 'operator')}", "If-Match": "*"}
    for body in ({}, {"version": 0}):
        back = httpx.post(f"{victim.url}/v1/rules/rollback", json=body, headers=headers, timeout=30, trust_env=False)
        assert back.status_code == 200, back.text
    assert back.json()["active"] == 0
    assert "one" not in await matched(victim, 4)


LIKES = """
[[rule]]
name = "like"
event = "post.liked"
recipients = ["user"]
type = "forum.like"
actor = "actor"
window = "6s"
collapse = "like/{target}"
summary = "{count} people like your post"
"""


async def test_likes_within_a_window_arrive_as_one_message_though_the_shard_dies_before_it_ends(victim: RunningEngine) -> None:
    await status_when(victim, lambda status: status["ready"])
    put(victim, LIKES)
    async with victim.connect("liked") as socket:
        await victim.receive(socket, "welcome")
        for actor in ("bob", "cem", "dan"):
            event = {"type": "post.liked", "user": "liked", "actor": actor, "target": "p1", "id": f"like-{actor}"}
            (result,) = (await ask(victim, "POST", "/v1/events", event))["results"]
            assert result["status"] == "merged"
        victim_of(victim).kill("shard")
        (message,) = (await victim.receive(socket, "messages", LATE_S))["messages"]
    assert (message["count"], message["text"], message["actors"]) == (3, "3 people like your post", ["bob", "cem", "dan"])
    headers = {"Authorization": f"Bearer {victim.token('ann', 'operator')}", "If-Match": "*"}
    back = httpx.post(f"{victim.url}/v1/rules/rollback", json={"version": 0}, headers=headers, timeout=30, trust_env=False)
    assert back.json()["active"] == 0
