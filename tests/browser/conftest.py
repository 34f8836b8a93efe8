"""One Chromium for the folder, a page of its own for each test, and the scripted engine.

Left running, Chromium would take a tenth of a core from all the tests that come later. All run on the session's event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.support.chromium_browser import fresh_page, launched
from tests.support.scripted_engine import ScriptedEngine, serving

WAIT_MS = 30_000  # for whatever the page is to show: this machine may be doing anything else
expect.set_options(timeout=WAIT_MS)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def browser(headless_shell: str) -> AsyncIterator[Browser]:
    async with launched(headless_shell) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    async with fresh_page(browser, WAIT_MS) as fresh:
        yield fresh


@pytest_asyncio.fixture(loop_scope="session")
async def scripted() -> AsyncIterator[ScriptedEngine]:
    async with serving(ScriptedEngine()) as engine:
        yield engine
