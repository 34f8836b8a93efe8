"""Messages that grow in Chromium, from a real edge: over each transport, across reloads, and drawn with their progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from engine.client.publisher import Publisher
from engine.client.sync import SyncPublisher
from engine.ray import RunMessages
from tests.support.axe import violations
from tests.support.client_page import events, wait, watch_growing
from tests.support.edge_world import EdgeWorld, edge_world

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXT = "".join(f"tökén-{number} 😀 " for number in range(600))


@pytest_asyncio.fixture(loop_scope="session")
async def world() -> AsyncIterator[EdgeWorld]:
    async with edge_world() as world:
        yield world


def publisher_of(world: EdgeWorld) -> Publisher:
    return Publisher(world.url(), world.token("app", "publish"))


@pytest.mark.parametrize("transport", ["websocket", "sse", "poll"])
async def test_a_page_that_is_reloaded_has_the_same_text(page: Page, world: EdgeWorld, transport: str) -> None:
    await watch_growing(page, world.url(""), transport, token=world.token("u1"))
    seen = 0
    async with publisher_of(world) as publisher, publisher.stream(user="u1", type="llm.answer", id="m1") as message:
        for place in range(0, len(TEXT), 7):
            await message.append(TEXT[place : place + 7])
            await asyncio.sleep(0)
            if place in (700, 2100, 4200):
                await wait(page, f"events.some(([type, one]) => type === 'part' && one.text.length > {seen})")
                assert all(TEXT.startswith(part["text"]) for part in await events(page, "part"))
                await watch_growing(page, world.url(""), transport, token=world.token("u1"))
                await wait(page, "client.grows.length === 1")
                seen = await page.evaluate("client.grows[0].text.length")
    await wait(page, "events.some(([type]) => type === 'message')")
    parts = await events(page, "part")
    assert all(TEXT.startswith(part["text"]) for part in parts)
    assert parts[-1]["ended"]
    (arrived,) = await events(page, "message")
    assert (arrived["id"], arrived["data"]["text"] == TEXT) == ("m1", True)


async def test_parts_that_were_lost_are_read_and_join(page: Page, world: EdgeWorld) -> None:
    await watch_growing(page, world.url(""), "websocket", token=world.token("u1"))
    async with publisher_of(world) as publisher, publisher.stream(user="u1", type="llm.answer", id="m1") as message:
        await message.append("one ")
        await wait(page, "client.grows[0]?.text === 'one '")
        world.shard.connected = False  # parts for this device are lost
        await message.append("two ")
        while message._stored < 8:
            await asyncio.sleep(0.02)
        world.shard.reset()
        await message.append("three")
        await wait(page, "client.grows[0]?.text === 'one two three'")


async def test_the_bell_and_the_page_draw_text_and_progress(page: Page, world: EdgeWorld) -> None:
    await page.goto(f"{world.url('/')}#token={world.token('u1')}")
    await expect(page.locator("#pill")).to_have_attribute("data-state", "open")
    data = {"title": "Import"}
    async with publisher_of(world) as publisher, publisher.stream(user="u1", type="job.import", id="m1", data=data) as message:
        await message.append("reading ")
        await message.progress(0.25, text="1 of 4 files", step="load")
        await page.get_by_role("button", name="Notifications, none unread").click()
        for place in (page.locator("notification-inbox"), page.locator("#growing")):
            await expect(place.get_by_role("progressbar", name="Import")).to_have_attribute("value", "0.25")
            await expect(place.locator(".growing li, li")).to_contain_text("reading ")
            await expect(place).to_contain_text("load: 1 of 4 files")
        assert await violations(page) == []
        await page.reload()
        await expect(page.locator("#growing")).to_contain_text("reading ")
        await message.append("files")
        await expect(page.locator("#growing")).to_contain_text("reading files")
    await expect(page.locator("#growing li")).to_have_count(0)
    await expect(page.locator("#messages")).to_contain_text("reading files")


async def test_a_page_that_sees_a_list_begin_draws_no_json(page: Page, world: EdgeWorld) -> None:
    await page.goto(f"{world.url('/')}#token={world.token('u1')}")
    await expect(page.locator("#pill")).to_have_attribute("data-state", "open")
    data = {"title": "Import"}
    async with publisher_of(world) as publisher, publisher.stream(user="u1", type="t", id="m1", list=True, data=data) as message:
        await message.append({"file": "a.csv"})
        await message.progress(0.4, step="load")
        await expect(page.locator("#growing li")).to_contain_text("load")
        await expect(page.locator("#growing li")).not_to_contain_text("a.csv")


async def test_the_page_draws_a_run_of_ray_and_its_end(page: Page, world: EdgeWorld) -> None:
    await page.goto(f"{world.url('/')}#token={world.token('u1')}")
    await expect(page.locator("#pill")).to_have_attribute("data-state", "open")
    made = lambda: SyncPublisher(world.url(), world.token("app", "publish"))  # noqa: E731
    async with RunMessages("render", "A film", ["u1"], after_s=0, every_s=0.05, publisher=made) as run:
        run.progress(0.25, text="frame 1 of 4")
        bar = page.locator("#growing").get_by_role("progressbar", name="A film")
        await expect(bar).to_have_attribute("value", "0.25")
        run.progress(0.5, text="frame 2 of 4")
        await expect(bar).to_have_attribute("value", "0.5")
    await expect(page.locator("#growing li")).to_have_count(0)
    await expect(page.locator("#messages")).to_contain_text("render.done")
    await page.get_by_role("button", name="Notifications, 1 unread").click()
    await expect(page.locator("notification-inbox")).to_contain_text("done after ")
