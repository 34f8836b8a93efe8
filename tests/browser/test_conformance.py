"""The browser client keeps the promises of a client: the conformance kit with a page in Chromium as the client under test."""

from __future__ import annotations

import random

import pytest
from playwright.async_api import Page

from tests.conformance.client_promises import ClientPromise, promises_of, trial_of
from tests.conformance.connections import TRANSPORTS
from tests.support.client_page import shown, start

pytestmark = pytest.mark.asyncio(loop_scope="session")


class PageClient:
    transports = TRANSPORTS

    def __init__(self, page: Page) -> None:
        self.page = page

    async def start(self, url: str, token: str, *, manual: bool = False) -> None:
        await self.page.goto(f"{url}/blank")
        options = {"token": token, "ack": "manual" if manual else "auto", "websocketAttempts": 1, "upgradeAfterMs": 300}
        await start(self.page, None, **options)

    async def shown(self) -> list[int]:
        return await shown(self.page)

    async def ack(self, message_id: str) -> None:
        await self.page.evaluate(
            "(id) => client.ack(events.find(([type, { id: one }]) => type === 'message' && one === id)[1])", message_id
        )

    async def nack(self, message_id: str, reason: str) -> None:
        await self.page.evaluate("([id, reason]) => client.nack([id], reason)", [message_id, reason])

    async def stop(self) -> None:
        await self.page.evaluate("client.close()")


@pytest.mark.parametrize("promise", promises_of(PageClient), ids=lambda promise: promise.__name__)
async def test_the_browser_client_keeps_its_promise(page: Page, promise: ClientPromise) -> None:
    async with trial_of(PageClient(page), promise) as trial:
        await promise(trial, random.Random(promise.__name__))
