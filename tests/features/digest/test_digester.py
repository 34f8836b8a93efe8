"""The model of the digest: asked with a budget of time, by an edge that lives without it; and a whole engine whose model is killed."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Sequence
from typing import Any

import httpx
import psutil
import pytest

from engine.config import Config, check
from engine.errors import ConfigError
from engine.features.digest import text_groups
from engine.features.digest.digester import Digester, DigestModel
from tests.support.running_engine import RunningEngine

WINDOWS = [["a text", "another"]]


class Handle:
    """A Ray actor's or a Serve deployment's handle, as far as it is used: `handle.group.remote(...)` is awaited."""

    def __init__(self, answer: Any = None, wait_s: float = 0.0) -> None:
        self.group = self
        self.answer, self.wait_s = answer, wait_s
        self.asked: list[tuple[Any, ...]] = []

    async def remote(self, *arguments: Any) -> Any:
        self.asked.append(arguments)
        await asyncio.sleep(self.wait_s)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def model_of(*handles: Handle, **config: Any) -> DigestModel:
    left = list(handles)
    return DigestModel(Config(**config), lambda: left.pop(0))


async def test_a_model_that_answers_in_time_is_taken_at_its_word() -> None:
    handle = Handle([[0, 1]])
    model = model_of(handle)
    assert await model.group(WINDOWS) == [[0, 1]]
    ((windows, until_s),) = handle.asked
    assert (windows, model.reason) == (WINDOWS, "")
    assert until_s > time.time() - 60


async def test_the_turn_goes_round_the_actors() -> None:
    handles = Handle([[0, 1]]), Handle([[0, 1]])
    model = model_of(*handles, digest_model_actors=2)
    for _ in range(5):
        await model.group(WINDOWS)
    assert sorted(len(handle.asked) for handle in handles) == [2, 3]


async def test_a_deployment_of_ray_serve_is_asked_for_the_groups_alone() -> None:
    handle = Handle([(0, 0)])
    assert await model_of(handle, digest_model="serve://texts").group(WINDOWS) == [[0, 0]]
    assert handle.asked == [(WINDOWS,)]


@pytest.mark.parametrize(
    ("handle", "budget_ms", "reason"),
    [
        (Handle([[0, 1]], wait_s=30), 1000, "no answer within 1000 ms"),
        (Handle(RuntimeError("it died\nmore")), 30_000, "RuntimeError: it died"),
        (Handle([["x", "y"]]), 30_000, "ValueError"),
        (Handle(7), 30_000, "TypeError"),
    ],
)
async def test_without_an_answer_there_is_a_reason_and_the_next_is_asked(handle: Handle, budget_ms: int, reason: str) -> None:
    model = model_of(handle, digest_model_ms=budget_ms)
    assert await model.group(WINDOWS) is None
    assert reason in model.reason
    handle.answer, handle.wait_s = [[0, 0]], 0
    assert await model.group(WINDOWS) == [[0, 0]]
    assert model.reason == ""


async def test_a_model_that_is_not_installed_is_not_asked_again_for_a_while() -> None:
    handle = Handle(text_groups.MISSING)
    model = model_of(handle)
    assert await model.group(WINDOWS) is None
    assert await model.group(WINDOWS) is None
    assert len(handle.asked) == 1
    assert "pip install" in model.reason


async def test_so_many_questions_are_under_way_and_the_others_are_answered_at_once() -> None:
    model = model_of(Handle([[0, 1]], wait_s=30), digest_model_calls_max=2, digest_model_ms=5000)
    waiting = [asyncio.ensure_future(model.group(WINDOWS)) for _ in range(2)]
    await asyncio.sleep(0)
    async with asyncio.timeout(15):  # half of what the others take
        assert await model.group(WINDOWS) is None
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_the_actor_drops_what_is_asked_too_late_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Groups:
        def group(self, windows: Sequence[Sequence[str]]) -> list[list[int]]:
            return [[0] * len(window) for window in windows]

    monkeypatch.setattr("engine.features.digest.digester.TextGroups", Groups)
    assert await Digester().group(WINDOWS, time.time() + 60) == [[0, 0]]
    assert await Digester().group(WINDOWS, time.time() - 1) == "asked too late"

    def missing() -> None:
        raise text_groups.ModelMissing(text_groups.MISSING)

    monkeypatch.setattr("engine.features.digest.digester.TextGroups", missing)
    assert await Digester().group(WINDOWS) == text_groups.MISSING


@pytest.mark.parametrize("model", ["texts", "serve://", "serve://a/b", "ray://a/b.c"])
def test_another_model_is_named_as_an_application_of_ray_serve(model: str) -> None:
    with pytest.raises(ConfigError, match=r"digest_model: .* serve://APP"):
        check(Config(digest_model=model))


def digesters(engine: RunningEngine) -> list[psutil.Process]:
    found = []
    for process in engine.descendants():
        try:
            if "Digester" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.skipif(importlib.util.find_spec("wordllama") is None, reason="needs the extra `digest`")
async def test_a_digest_comes_in_time_by_rules_when_the_model_is_killed_and_by_the_model_again_later(engine: RunningEngine) -> None:
    """The model belongs to digests alone, so nobody else who shares the engine misses it."""
    user = "returning"
    texts = ["The lift is broken", "The parcel arrives today", "Our lift is still broken, use the stairs"]
    likes = [
        {"user": user, "type": "post.liked", "actor": who, "target": {"kind": "post", "id": 1, "title": "Roses"}} for who in ("a", "b")
    ]
    await engine.publish(*likes, *({"user": user, "type": "notice", "data": {"text": text}} for text in texts))
    headers = {"Authorization": f"Bearer {engine.token(user)}"}

    async with httpx.AsyncClient(base_url=engine.url, headers=headers, timeout=20, trust_env=False) as client:

        async def digest() -> dict[str, Any]:
            begun = time.monotonic()
            answer = await client.get("/v1/digest")
            assert answer.status_code == 200, answer.text
            assert time.monotonic() - begun < 10
            found: dict[str, Any] = answer.json()
            assert "2 people liked “Roses”" in [line["text"] for line in found["lines"]]
            assert sorted(one["seq"] for line in found["lines"] for one in line["messages"]) == [1, 2, 3, 4, 5]
            return found

        async def modelled() -> dict[str, Any]:
            async with asyncio.timeout(90):
                while not (found := await digest())["model"]:
                    await asyncio.sleep(0.2)
            return found

        assert len((await modelled())["lines"]) == 3
        killed = digesters(engine)
        assert killed
        for process in killed:
            process.kill()
        by_rules = await digest()
        assert (by_rules["model"], len(by_rules["lines"])) == (False, 4)
        assert len((await modelled())["lines"]) == 3

    async with engine.connect(user) as socket:
        backlog = await engine.receive(socket, "messages")
    assert [one["seq"] for one in backlog["messages"]] == [1, 2, 3, 4, 5], "a digest acknowledges nothing"
