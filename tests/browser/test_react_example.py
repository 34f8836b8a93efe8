"""The React example, built from its sources with the package, on a page with the scripted engine."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from playwright.async_api import Page, Route, expect

from tests.support.missing_programs import missing
from tests.support.scripted_engine import ScriptedEngine, token

pytestmark = pytest.mark.asyncio(loop_scope="session")

EXAMPLE = Path(__file__).parents[2] / "examples" / "react"


@pytest.fixture(scope="module")
def built() -> Path:
    """The example, as `npm run build` leaves it."""
    if shutil.which("npm") is None or not (EXAMPLE / "node_modules" / "react").exists():
        missing("no React: the React example was not tried (cd examples/react && npm ci)")
    done = subprocess.run(["npm", "run", "build", "--silent", "--offline"], cwd=EXAMPLE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return EXAMPLE


async def test_it_shows_what_arrives_and_the_bell_has_the_inbox(page: Page, scripted: ScriptedEngine, built: Path) -> None:
    async def answer(route: Route) -> None:
        path = route.request.url.partition("?")[0].partition("/react/")[2]
        await route.fulfill(path=built / path)

    await page.route("**/react/**", answer)
    scripted.keeps_inbox = True
    await page.goto(f"{scripted.url}/react/index.html?engine={scripted.url}#token={token()}")
    await expect(page.locator("header > p")).to_have_text("open: nothing yet")
    scripted.publish("Hello from the engine")
    await expect(page.locator("header > p")).to_have_text("open: Hello from the engine")
    await page.get_by_role("button", name="Notifications, 1 unread").click()
    await expect(page.locator("notification-bell").get_by_role("listitem")).to_contain_text("Hello from the engine")
    await scripted.until(lambda: not scripted.pending)
    assert len(scripted.connects) == 1, "rendering again does not connect again"


async def test_hooks_show_the_inbox_and_the_choices_and_change_them(page: Page, scripted: ScriptedEngine, built: Path) -> None:
    await page.route("**/react/**", lambda route: route.fulfill(path=built / route.request.url.partition("?")[0].partition("/react/")[2]))
    scripted.keeps_inbox = True
    scripted.publish("Kept before")
    await page.goto(f"{scripted.url}/react/index.html?engine={scripted.url}#token={token()}")
    await expect(page.locator("section > h1")).to_have_text("1 unread")
    scripted.publish("Just now")
    await expect(page.locator("section li")).to_contain_text(["Just now", "Kept before"])
    await page.locator("section li", has_text="Just now").get_by_role("button", name="Read").click()
    await expect(page.locator("section > h1")).to_have_text("1 unread")
    assert [one["id"] for one in scripted.inbox if one["read"]] == ["m2"]
    choice = page.get_by_label("News")
    await expect(choice).to_be_checked()
    await choice.click()
    await scripted.until(lambda: scripted.choices == {"news": "off"})
    await expect(choice).not_to_be_checked()


PROBE = """
import { createRoot } from "react-dom/client";
import { NotificationProvider, usePreferences, usePush } from "ray-notification-client/react";

function Probe() {
  const { preferences, change } = usePreferences();
  window.change = change;
  const { state } = usePush();
  return <output>{`${preferences?.available.news.choice ?? "unknown"}, ${state ?? "unknown"}`}</output>;
}

createRoot(document.body).render(<NotificationProvider getToken={async () => tokens.shift()}><Probe /></NotificationProvider>);
"""
LISTENER = """
import { createRoot } from "react-dom/client";
import { NotificationProvider, useNotifications } from "ray-notification-client/react";

class Socket {
  static OPEN = 1;
  readyState = 1;
  constructor() {
    const about = { connection: "c1", user: "demo", epoch: "7", seq: 1, resumed: "new", from: 1 };
    const message = { seq: 1, id: "m1", event_id: "7-1", type: "post.liked", priority: "normal", ts: 1, attempt: 1, data: {} };
    const frames = [{ type: "welcome", ...about }, { type: "messages", messages: [message] }];
    queueMicrotask(() => frames.forEach((frame) => this.onmessage({ data: JSON.stringify(frame) })));
  }
  send(frame) { window.sent.push(JSON.parse(frame)); }
  close() {}
}
window.WebSocket = Socket;
window.sent = [];
window.shown = [];

function Listener() {
  const { state } = useNotifications(({ id }) => window.shown.push(id));
  return <output>{state}</output>;
}

const options = { token: tokens[0], storage: sessionStorage, share: false };
createRoot(document.body).render(<NotificationProvider options={options}><Listener /></NotificationProvider>);
"""
SUBSCRIBED = """() => {
  Object.defineProperty(Notification, "permission", { get: () => "granted" });
  localStorage.setItem(`notify-push:${location.host}/`, JSON.stringify({ user: `notify:${location.host}:default:demo`, worker: "/w.js" }));
}"""


def bundled(script: Path, source: str) -> Path:
    """A page of the hooks alone, as a script."""
    esbuild = [EXAMPLE / "node_modules" / ".bin" / "esbuild", "--bundle", "--preserve-symlinks", "--format=iife", "--jsx=automatic"]
    done = subprocess.run(
        [*esbuild, "--loader=jsx", f"--outfile={script}"], cwd=EXAMPLE, input=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return script


@pytest.fixture(scope="module")
def probe(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundled(tmp_path_factory.mktemp("probe") / "probe.js", PROBE)


async def test_a_hook_gets_a_message_that_arrives_at_once(page: Page, scripted: ScriptedEngine, built: Path, tmp_path: Path) -> None:
    await page.goto(f"{scripted.url}/blank")
    await page.evaluate("(tokens) => { window.tokens = tokens; }", [token()])
    await page.add_script_tag(path=bundled(tmp_path / "listener.js", LISTENER))
    await expect(page.locator("output")).to_have_text("open")
    await page.wait_for_function("sent.some(({ type }) => type === 'ack')")
    assert await page.evaluate("shown") == ["m1"]


async def test_the_choice_that_was_made_last_is_shown_last(page: Page, scripted: ScriptedEngine, probe: Path) -> None:
    held: list[Route] = []

    async def hold(route: Route) -> None:
        if route.request.method == "PATCH" and not held:
            held.append(route)
        else:
            await route.continue_()

    await page.goto(f"{scripted.url}/blank")
    await page.evaluate("(tokens) => { window.tokens = tokens; }", [token()])
    await page.add_script_tag(path=probe)
    await expect(page.locator("output")).to_have_text(re.compile("^digest, "))
    await page.route("**/v1/preferences", hold)
    await page.evaluate("window.chosen = ['off', 'on'].map((news) => change({ categories: { news } })); 0")
    await scripted.until(lambda: bool(held))
    await page.evaluate("fetch('/v1/preferences').then((answer) => answer.text())")
    await held[0].continue_()
    await page.evaluate("Promise.all(chosen)")
    await expect(page.locator("output")).to_have_text(re.compile("^on, "))
    assert scripted.choices == {"news": "on"}


async def test_hooks_show_nothing_of_an_earlier_user(page: Page, scripted: ScriptedEngine, probe: Path) -> None:
    await page.goto(f"{scripted.url}/blank")
    await page.evaluate(SUBSCRIBED)
    await page.evaluate("(tokens) => { window.tokens = tokens; }", [token("demo"), token("other")])
    await page.route("**/v1/channels/push", lambda route: route.abort())
    await page.add_script_tag(path=probe)
    await expect(page.locator("output")).to_have_text("digest, on")
    held: list[Route] = []

    async def hold(route: Route) -> None:
        held.append(route)

    await page.route("**/v1/preferences", hold)
    scripted.cut(4401, "the token has expired")
    await expect(page.locator("output")).to_have_text("unknown, off")
    await scripted.until(lambda: bool(held))
    scripted.choices["news"] = "off"
    await held[-1].continue_()
    await expect(page.locator("output")).to_have_text("off, off")
