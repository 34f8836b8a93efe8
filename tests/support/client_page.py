"""A page with the browser client on it, as `window.client`, which records its events."""

from __future__ import annotations

import json
from typing import Any

from playwright.async_api import Page

from tests.support.scripted_engine import ScriptedEngine, token

START = """async (options) => {
  const { NotifyClient } = await import("/client.js");
  const client = new NotifyClient({ ...options, ...(window.more?.() ?? {}) });
  window.client = client;
  window.events = [];
  for (const type of ["message", "duplicate", "state", "welcome", "revoke", "gap", "digest", "user", "error"])
    client.addEventListener(type, (event) => { events.push([type, event.detail]); window.hold?.(type, event); });
}"""


async def start(page: Page, engine: ScriptedEngine | None, **options: Any) -> None:
    """Open a blank page with a client on it, `window.client`, which records its events. Without an engine: the page is open."""
    if engine and page.url == "about:blank":
        await page.goto(f"{engine.url}/blank")
    if "getToken" not in options:
        options.setdefault("token", token())
    await page.evaluate(START, options)


async def connect(page: Page, engine: ScriptedEngine | None, **options: Any) -> None:
    """As `start`, and wait until the client is connected."""
    await start(page, engine, **options)
    await wait(page, "client.state === 'open'")


async def watch_growing(page: Page, url: str, transport: str, **options: Any) -> None:
    """Load the page of an engine anew, with a client on it that also records the parts of messages that grow."""
    await page.goto(f"{url}/favicon.svg")
    await page.goto(f"{url}/")
    await start(page, None, transports=[transport], **options)
    await page.evaluate('client.addEventListener("part", ({ detail }) => events.push(["part", detail]))')
    await wait(page, "client.state === 'open'")
    await page.evaluate("client.growing()")


async def events(page: Page, kind: str) -> list[Any]:
    found: list[Any] = await page.evaluate("(kind) => events.filter(([type]) => type === kind).map(([, detail]) => detail)", kind)
    return found


async def shown(page: Page) -> list[int]:
    """Sequence numbers the application was shown, in order."""
    return [message["seq"] for message in await events(page, "message")]


async def wait(page: Page, condition: str) -> None:
    """Wait until a JavaScript expression about `client` and `events` is true."""
    try:
        await page.wait_for_function(f"() => {condition}")
    except Exception as error:
        raise AssertionError(f"{condition}: {json.dumps(await page.evaluate('() => events'))}") from error


PLACE = """async (lang) => {
  await import("/client/elements/index.js");
  document.documentElement.lang = lang;
  document.body.innerHTML = "<main><h1>A page</h1><p><notification-bell></notification-bell></p></main>";
  const bell = document.querySelector("notification-bell");
  bell.client = client;
  window.opened = [];
  document.addEventListener("notification-open", (event) => { opened.push(event.detail.id); event.preventDefault(); });
}"""


async def place(page: Page, scripted: ScriptedEngine, lang: str = "en", **options: Any) -> None:
    """A page with a bell."""
    await start(page, scripted, counts=True, **options)
    await page.evaluate(PLACE, lang)
    await wait(page, "client.state === 'open'")
