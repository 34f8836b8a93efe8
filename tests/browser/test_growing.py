"""Messages that grow in Chromium, from a real edge: over each transport, across reloads, and drawn with their progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, expect

from engine.client.publisher import Publisher
from tests.support.client_page import events, start, wait
from tests.support.edge_world import EdgeWorld, edge_world

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXT = "".join(f"tökén-{number} 😀 " for number in range(600))


@pytest_asyncio.fixture(loop_scope="session")
async def world() -> AsyncIterator[EdgeWorld]:
    async with edge_world() as world:
        yield world


def publisher_of(world: EdgeWorld) -> Publisher:
    return Publisher(world.url(), world.token("app", "publish"))


async def open_page(page: Page, world: EdgeWorld, transport: str) -> None:
    await page.goto(world.url("/favicon.svg"))
    await page.goto(world.url("/"))
    await start(page, None, token=world.token("u1"), transports=[transport])
    await page.evaluate('client.addEventListener("part", ({ detail }) => events.push(["part", detail]))')
    await wait(page, "client.state === 'open'")
    await page.evaluate("client.growing()")


@pytest.mark.parametrize("transport", ["websocket", "sse", "poll"])
async def test_a_page_that_is_reloaded_has_the_same_text(page: Page, world: EdgeWorld, transport: str) -> None:
    await open_page(page, world, transport)
    seen = 0
    async with publisher_of(world) as publisher, publisher.stream(user="u1", type="llm.answer", id="m1") as message:
        for place in range(0, len(TEXT), 7):
            await message.append(TEXT[place : place + 7])
            await asyncio.sleep(0)
            if place in (700, 2100, 4200):
                await wait(page, f"events.some(([type, one]) => type === 'part' && one.text.length > {seen})")
                assert all(TEXT.startswith(part["text"]) for part in await events(page, "part"))
                await open_page(page, world, transport)
                await wait(page, "client.grows.length === 1")
                seen = await page.evaluate("client.grows[0].text.length")
    await wait(page, "events.some(([type]) => type === 'message')")
    parts = await events(page, "part")
    assert all(TEXT.startswith(part["text"]) for part in parts)
    assert parts[-1]["ended"]
    (arrived,) = await events(page, "message")
    assert (arrived["id"], arrived["data"]["text"] == TEXT) == ("m1", True)


async def test_parts_that_were_lost_are_read_and_join(page: Page, world: EdgeWorld) -> None:
    await open_page(page, world, "websocket")
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
        assert (await Axe().run(page)).violations_count == 0
        await page.reload()
        await expect(page.locator("#growing")).to_contain_text("reading ")
        await message.append("files")
        await expect(page.locator("#growing")).to_contain_text("reading files")
    await expect(page.locator("#growing li")).to_have_count(0)
    await expect(page.locator("#messages")).to_contain_text("reading files")
