"""The demo page with an engine that catches mails: a user leaves, and gets one for what nobody has seen."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect
from redis.asyncio import Redis

from engine.cli.demo import with_demo
from engine.config import Config
from engine.core.model.action import ChannelTarget
from engine.features.actions.store import QueuedAction
from tests.support.edge_world import EdgeWorld, edge_world
from tests.support.redis_server import RedisServer
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

SETTINGS = ("smtp_url", "mail_from", "public_url", "rules_path")
DEMO = with_demo(Config(), 8000)


@pytest_asyncio.fixture(loop_scope="session")
async def world(redis_server: RedisServer) -> AsyncIterator[EdgeWorld]:
    storage = Redis.from_url(redis_server.url)
    await storage.flushall()
    async with edge_world(storage=storage, **{name: getattr(DEMO, name) for name in SETTINGS}) as world:
        yield world
    await storage.aclose()


async def step_is_due(world: EdgeWorld) -> None:
    """The scheduler, the shard and the actions are those of other tests."""
    await until(lambda: bool(world.scheduler.timers))
    (timer,) = world.scheduler.timers.values()
    assert timer.action is not None
    assert timer.due_ms - timer.created_ms == 60_000
    body = b"{%b}" % timer.envelope.body
    action = QueuedAction("1-0", timer.action.target, "default", "demo", timer.envelope.id, timer.action.key, timer.due_ms, 1, body)
    await world.gateway.channel_callers["email"](ChannelTarget("email"), action)


async def test_a_user_who_leaves_gets_a_mail_and_comes_back(page: Page, world: EdgeWorld) -> None:
    await page.goto(f"{world.url()}/#token={world.token('demo', scopes='connect publish operator')}")
    await page.get_by_role("button", name="Leave for a minute, get a mail").click()
    await expect(page.get_by_role("button", name="Come back")).to_be_visible()
    await expect(page.locator("#leave")).to_be_disabled()
    await step_is_due(world)
    await expect(page.locator("#mail-list")).to_contain_text("Your report is ready to you@example.org")
    await expect(page.locator("#mail-note")).to_contain_text("The mail came")
    await expect(page.locator(".message .title")).to_have_text("Your report is ready")


async def test_early_return_says_that_no_mail_comes(page: Page, world: EdgeWorld) -> None:
    await page.goto(f"{world.url()}/#token={world.token('demo', scopes='connect publish operator')}")
    await page.get_by_role("button", name="Leave for a minute, get a mail").click()
    await page.get_by_role("button", name="Come back").click()
    await expect(page.locator("#mail-note")).to_contain_text("no mail comes")
    await expect(page.locator("#mail-list li")).to_have_count(0)


async def test_the_page_has_preferences_by_channel(page: Page, world: EdgeWorld) -> None:
    await page.goto(f"{world.url()}/#token={world.token('demo', scopes='connect publish operator')}")
    by_mail = page.get_by_label("Reports, by mail")
    await expect(by_mail).to_have_value("on")
    await by_mail.select_option("digest")
    await expect(by_mail).to_have_value("digest")
    kept = (await world.once("demo").get("/v1/preferences")).json()
    assert (kept["channels"], kept["mail_digest"]["at"]) == ({"demo/email": "digest"}, "08:00")


async def test_the_mail_card_is_hidden_from_users_who_are_no_operators(page: Page, world: EdgeWorld) -> None:
    await page.goto(f"{world.url()}/#token={world.token('demo', scopes='connect')}")
    await expect(page.locator("#pill")).to_have_attribute("data-state", "open")
    await expect(page.locator("#mails")).to_be_hidden()
