"""Chromium, and a page of its own for each test.

Playwright's asynchronous API on the test's event loop: the synchronous one keeps a loop running in the main thread, which
breaks every other asynchronous test of the session.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, Page, async_playwright

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


@asynccontextmanager
async def launched(chromium: str) -> AsyncIterator[Browser]:
    """A browser.

    Args:
        chromium: path of its program.
    """
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_OPTIONS)
        yield browser
        await browser.close()


@asynccontextmanager
async def fresh_page(browser: Browser, wait_ms: int) -> AsyncIterator[Page]:
    """A page in a fresh profile of somebody who wants no motion. An exception that no script catches fails the test.

    The animation of one message that arrives costs a tenth of a second of CPU, and leaves its text half transparent meanwhile.
    """
    context = await browser.new_context(reduced_motion="reduce")
    context.set_default_timeout(wait_ms)
    page = await context.new_page()
    thrown: list[str] = []
    page.on("pageerror", lambda error: thrown.append(str(error)))
    yield page
    await context.close()
    assert thrown == []
