"""Answers that are typed in a terminal, by number and in words."""

from __future__ import annotations

import asyncio
import os
import pty
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from engine import Publisher
from engine.cli.listen import listen
from engine.cli.typed_answers import CHOICES_MAX, Typed, TypedAnswers
from tests.support.edge_world import EdgeWorld, edge_world

YES_NO: Any = {"answers": [{"id": "yes", "label": "Approve"}, {"id": "no", "label": "Deny"}]}


@pytest.fixture
async def world(redis_client: Redis) -> AsyncIterator[EdgeWorld]:
    async with edge_world(storage=redis_client, question_poll_ms=20) as world:
        yield world


def test_numbers_count_on_over_questions() -> None:
    answers = TypedAnswers()
    assert answers.ask("q1", YES_NO) == "[1] Approve   [2] Deny"
    assert answers.ask("q2", {**YES_NO, "text": True}) == "[3] Approve   [4] Deny   or type your answer"
    assert answers.read("2\n") == Typed("q1", "no", "")
    assert answers.read(" 3 ") == Typed("q2", "yes", "")
    assert answers.read("not now") == Typed("q2", None, "not now")
    assert answers.read("\n") is None


def test_words_answer_nothing_while_no_question_takes_any() -> None:
    answers = TypedAnswers()
    answers.ask("q1", YES_NO)
    assert answers.read("why") is None
    for number in range(CHOICES_MAX):
        answers.ask(f"q{number + 2}", {"answers": YES_NO["answers"][:1]})
    assert answers.read("1") is None, "it is forgotten"


async def test_a_number_typed_while_listening_is_the_answer(
    world: EdgeWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as terminal, os.fdopen(ours, "w") as keyboard:
        monkeypatch.setattr(sys, "stdin", terminal)
        listening = asyncio.create_task(listen(world.url(), world.token("u1", "connect"), json=False, count=2, last_event_id=None))
        async with Publisher(world.url(), world.token("app", "publish")) as publisher:
            asking = asyncio.create_task(publisher.ask(user="u1", type="deploy.ask", id="q1", ask=YES_NO))
            shown = ""
            async with asyncio.timeout(30):
                while "[2] Deny" not in shown:
                    await asyncio.sleep(0.02)
                    shown += capsys.readouterr().out
            keyboard.write("2\n")
            keyboard.flush()
            answer = await asyncio.wait_for(asking, 30)
        assert (answer.answer, answer.device) == ("no", "engine-listen")
        await asyncio.wait_for(listening, 30)
    assert '"label":"Deny"' in shown + capsys.readouterr().out.replace("\n", "")
