"""Questions while parts are killed: two browsers have one winner, and a question outlives every process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect
from standardwebhooks import Webhook

from engine import Publisher
from tests.support.chaos.breakable_engine import LATE_S, ask, status_when, victim_of
from tests.support.chaos.judged_run import JudgedRun
from tests.support.chromium_browser import launched
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until
from tests.support.webhook_target import SECRET, webhook_server

pytestmark = [pytest.mark.slow, pytest.mark.engine]

ASK: Any = {"answers": [{"id": "yes", "label": "Approve"}, {"id": "no", "label": "Deny"}], "deadline": "30m"}
CLICK = "button => button.click()"
"""Without waiting for the page to be still: the outcome would come before."""


async def opened(browser: Browser, engine: RunningEngine) -> Page:
    """The demo page of the user, in a profile of its own."""
    context = await browser.new_context(reduced_motion="reduce")
    context.set_default_timeout(LATE_S * 1000)
    page = await context.new_page()
    await page.goto(f"{engine.url}/#token={engine.token('decider', 'connect publish')}")
    await expect(page.locator("#pill")).to_have_attribute("data-state", "open", timeout=LATE_S * 1000)
    return page


async def test_one_of_two_browsers_wins_while_the_shard_is_killed(victim: RunningEngine, headless_shell: str) -> None:
    await status_when(victim, lambda status: status["ready"])
    async with (
        launched(headless_shell) as browser,
        webhook_server() as server,
        Publisher(victim.url, victim.token("job", "publish"), retry_for_s=LATE_S) as publisher,
    ):
        pages = [await opened(browser, victim) for _ in range(2)]
        question: Any = {"user": "decider", "type": "deploy.ask", "id": "deploy-1", "data": {"title": "Deploy?"}}
        question["ask"] = {**ASK, "do": server.url()}
        asking = asyncio.create_task(publisher.ask(**question))
        buttons = [
            page.locator("#messages").get_by_role("button", name=f"{label}: Deploy?")
            for page, label in zip(pages, ("Approve", "Deny"), strict=True)
        ]
        for button in buttons:
            await expect(button).to_be_visible(timeout=LATE_S * 1000)
        victims = victim_of(victim)
        await asyncio.gather(asyncio.to_thread(victims.kill, "shard"), *(button.evaluate(CLICK) for button in buttons))
        answer = await asyncio.wait_for(asking, LATE_S)
        assert answer.by == "decider"
        for page in pages:
            outcome = page.locator("#messages .outcome")
            await expect(outcome).to_have_text(f"{answer.label} (decider)", timeout=LATE_S * 1000)
        late = pages[0 if answer.answer == "no" else 1]
        await expect(late.get_by_text(f"Not answered: it was answered by decider: {answer.label}")).to_be_attached()
        assert await publisher.ask(**question) == answer
        async with JudgedRun(victim) as run:
            assert {(await run.reply("decider", "deploy-1", choice))["answer"] for choice in ("yes", "no")} == {answer.answer}
        await until(lambda: bool(server.received), LATE_S)
        told = [Webhook(SECRET).verify(one.body, one.headers) for one in server.received]
        assert {(one["key"], one["user"], one["message"]["answer"]["answer"]) for one in told} == {
            (server.received[0].headers["webhook-id"], "decider", answer.answer)
        }
    listed = (await ask(victim, "GET", "/v1/inbox?user=decider"))["messages"]
    assert [message["id"] for message in listed] == ["answer:deploy-1"]


async def test_a_question_outlives_the_death_of_every_process(victim: RunningEngine) -> None:
    await status_when(victim, lambda status: status["ready"])
    async with Publisher(victim.url, victim.token("job", "publish"), retry_for_s=LATE_S) as publisher:
        asking = asyncio.create_task(publisher.ask(user="decider-2", type="deploy.ask", id="deploy-2", ask=ASK))
        assert (await ask(victim, "GET", "/v1/questions/deploy-2?user=decider-2"))["state"] == "open"
        for role in ("redis", "scheduler", "shard", "edge", "controller"):
            victim_of(victim).kill(role)
        async with JudgedRun(victim) as run:
            replies = await asyncio.gather(*(run.reply("decider-2", "deploy-2", choice) for choice in ("no", "yes")))
        answer = await asyncio.wait_for(asking, LATE_S)
    assert [reply["answer"] for reply in replies] == [answer.answer] * 2
    assert answer.by == "decider-2"
