"""One Chromium for the folder, a page of its own for each test, and the scripted engine.

Left running, Chromium would take a tenth of a core from all the tests that come later.

Playwright's asynchronous API on the session's event loop: the synchronous one keeps a loop running in the main thread, which
breaks every other asynchronous test of the session.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from tests.support.scripted_engine import ScriptedEngine, serving

WAIT_MS = 30_000  # for whatever the page is to show: this machine may be doing anything else
expect.set_options(timeout=WAIT_MS)

CHROMIUM_OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_OPTIONS)
        yield running
        await running.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A page in a fresh profile. Whatever a script throws and nobody catches fails the test."""
    context = await browser.new_context()
    context.set_default_timeout(WAIT_MS)
    fresh = await context.new_page()
    thrown: list[str] = []
    fresh.on("pageerror", lambda error: thrown.append(str(error)))
    yield fresh
    await context.close()
    assert thrown == []


@pytest_asyncio.fixture(loop_scope="session")
async def scripted() -> AsyncIterator[ScriptedEngine]:
    async with serving(ScriptedEngine()) as engine:
        yield engine
