"""Pushes to a browser: its service worker is real, its push service is in this process.

A headless Chromium has no push service to subscribe at, so `PushManager` gives the page the subscription of a browser that the test has,
and DevTools hand its pushes, decrypted, to the service worker. The requests of the client go to a real edge.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from playwright import async_api as playwright
from playwright.async_api import Page, Request, Route

from engine.config import Config
from engine.core.model.constants import NORMAL
from engine.features.actions.store import QueuedAction
from engine.features.reach.push_channel import PushChannel, public_key_of
from tests.support.chromium_browser import launched
from tests.support.client_page import START, events, start, wait
from tests.support.edge_world import EdgeWorld, edge_world
from tests.support.push_service import Browser, PushService, push_service
from tests.support.scripted_engine import ScriptedEngine, token
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

LOOPBACK: dict[str, Any] = {"push_hosts": ("127.0.0.1",), "webhook_networks": ("127.0.0.0/8",)}

SUBSCRIBE = """([subscription]) => {
  let current = null;
  PushManager.prototype.getSubscription = async () => current;
  PushManager.prototype.subscribe = async ({ userVisibleOnly, applicationServerKey }) => {
    if (!userVisibleOnly) throw new Error("Chromium wants userVisibleOnly");
    window.subscribedWith = applicationServerKey;
    return (current = { toJSON: () => ({ ...subscription, expirationTime: null }), unsubscribe: async () => { current = null; } });
  };
}"""
SHOWN = """async () => {
  const registrations = await navigator.serviceWorker.getRegistrations();
  const shown = await Promise.all(registrations.map((one) => one.getNotifications()));
  return shown.flat().map(({ title, body, tag, data }) => ({ title, body, tag, url: data.url }));
}"""
CLICK = """async (tag) => {
  const opened = [];
  const { openWindow } = self.Clients.prototype;
  self.Clients.prototype.openWindow = async (url) => void opened.push(url);
  const [notification] = await self.registration.getNotifications({ tag });
  const event = new NotificationEvent("notificationclick", { notification });
  const waits = [];
  event.waitUntil = (promise) => waits.push(promise);
  self.dispatchEvent(event);
  await Promise.all(waits).catch((error) => opened.push(`focus: ${error.name}`));
  self.Clients.prototype.openWindow = openWindow;
  return opened;
}"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def browser(chromium: str) -> AsyncIterator[playwright.Browser]:
    """The headless shell denies notifications."""
    async with launched(chromium) as running:
        yield running


class World(NamedTuple):
    page: Page
    scripted: ScriptedEngine
    edge: EdgeWorld
    service: PushService
    browser: Browser

    @property
    def subscription(self) -> dict[str, Any]:
        keys = self.browser.subscription.keys
        return {"endpoint": self.browser.subscription.endpoint, "keys": {"p256dh": keys.p256dh, "auth": keys.auth}}

    async def push(self, id: str = "m1", **message: Any) -> None:
        """A step of this message: the engine pushes, and the browser hands the push to the worker."""
        data = {"title": message.pop("title", "Disk full"), "body": "On db1"}
        body = json.dumps({"id": id, "type": "alert", "ts": 1_700_000_000_000, "data": data, **message}).encode()
        action = QueuedAction("1-0", "channel://push/127.0.0.1", "default", "u1", id, "k", 0, NORMAL, body)
        (kept,) = self.edge.addresses.kept["default:u1"].push
        await PushChannel(Config(**LOOPBACK), self.edge.link_key, lambda: 0).send(action, kept)
        payload = json.dumps(self.service.pushes(self.browser)[-1].payload)
        session = await self.page.context.new_cdp_session(self.page)
        registrations: list[Any] = []
        session.on("ServiceWorker.workerRegistrationUpdated", lambda found: registrations.extend(found["registrations"]))
        await session.send("ServiceWorker.enable")
        while not registrations:
            await self.page.wait_for_timeout(10)
        ids = {"origin": self.scripted.url, "registrationId": registrations[-1]["registrationId"], "data": payload}
        await session.send("ServiceWorker.deliverPushMessage", ids)
        await session.detach()

    async def shown(self, *tags: str) -> list[Any]:
        """What the browser shows, once it has these tags."""
        wanted = sorted(tags)
        found: list[Any] = await until(lambda: self.page.evaluate(SHOWN), holds=lambda some: sorted(one["tag"] for one in some) == wanted)
        return found


@pytest_asyncio.fixture(loop_scope="session")
async def world(page: Page, scripted: ScriptedEngine) -> AsyncIterator[World]:
    async with edge_world(**LOOPBACK) as edge, push_service() as service, edge.http("u1") as client:

        async def forward(route: Route, request: Request) -> None:
            path = request.url.removeprefix(scripted.url)
            answer = await client.request(request.method, path, content=request.post_data or b"")
            await route.fulfill(status=answer.status_code, body=answer.text, content_type="application/json")

        await page.route("**/v1/channels/**", forward)
        await page.context.grant_permissions(["notifications"])
        world = World(page, scripted, edge, service, service.subscribe("a"))
        await page.add_init_script(f"({SUBSCRIBE})({json.dumps([world.subscription])})")
        yield world
        await page.unroute_all(behavior="wait")  # a page that has opened may still be asking


async def test_a_push_is_shown_once_and_a_click_opens_its_link(world: World) -> None:
    page = world.page
    await start(page, world.scripted)
    assert await page.evaluate("client.pushState()") == "off"
    await page.evaluate("client.enablePush()")
    assert await page.evaluate("async () => [await client.pushState(), subscribedWith]") == [
        "on",
        public_key_of(await world.edge.link_key()),
    ]
    assert world.edge.addresses.kept["default:u1"].push == (world.browser.subscription,)
    for _ in range(2):
        await world.push(url="/disks/1")
    (shown,) = await world.shown("m1")
    assert shown == {"title": "Disk full", "body": "On db1", "tag": "m1", "url": "/disks/1"}
    (worker,) = page.context.service_workers
    assert await worker.evaluate(CLICK, "m1") == [f"{world.scripted.url}/disks/1"]
    await world.shown()
    await world.push("m2", url="javascript:alert(1)")
    await world.shown("m2")
    assert not [one for one in await worker.evaluate(CLICK, "m2") if "javascript" in one]


async def test_a_message_that_is_dealt_with_is_shown_no_longer(world: World) -> None:
    page, scripted = world.page, world.scripted
    await start(page, scripted)
    await page.evaluate("client.enablePush()")
    for id in ("a", "b", "c", "d"):
        await world.push(id)
    await world.shown("a", "b", "c", "d")
    scripted.say({"type": "revoke", "ids": ["a"]})
    await world.shown("b", "c", "d")
    await page.evaluate("client.mark('read', { ids: ['b'] })")
    await world.shown("c", "d")
    await page.evaluate("client.ack({ id: 'c', seq: 9 })")
    await world.shown("d")
    await page.evaluate("client.mark('read', { all: true })")
    await world.shown()


@pytest.mark.parametrize("where", ["this client", "another client"])
async def test_a_disabled_push_stays_so_while_a_connection_renews_it(world: World, where: str) -> None:
    page, held = world.page, []

    async def hold(route: Route) -> None:
        if route.request.method == "PUT":
            held.append(route)
        else:
            await route.fallback()

    await start(page, world.scripted)
    await page.evaluate("client.enablePush()")
    await page.route("**/v1/channels/push", hold)
    await page.evaluate("client.reconnect()")
    await world.scripted.until(lambda: bool(held))
    if where == "another client":
        await page.evaluate("(options) => { window.first = client; return (" + START + ")(options); }", {"token": token()})
    await page.evaluate("() => { window.disabled = client.disablePush(); }")
    await until(lambda: page.evaluate("async () => !localStorage.length || (await navigator.locks.query()).pending.length > 0"))
    await page.unroute("**/v1/channels/push", hold)
    for put in held:
        await put.fallback()
    await page.evaluate("disabled")
    await world.scripted.until(lambda: world.edge.addresses.kept["default:u1"].push == ())
    assert await page.evaluate("client.pushState()") == "off"


async def test_a_push_that_was_read_on_another_device_is_withdrawn(world: World) -> None:
    page, scripted = world.page, world.scripted
    scripted.keeps_inbox = True
    await start(page, scripted, counts=True)
    await page.evaluate("client.enablePush()")
    scripted.publish("first")
    scripted.publish("second")
    await wait(page, "events.filter(([type]) => type === 'message').length === 2")
    await scripted.until(lambda: not scripted.pending)
    for id in ("m1", "m2"):
        await world.push(id)
    await world.shown("m1", "m2")
    scripted.mark("read", ids=["m2"])
    await world.shown("m1")


@pytest.mark.parametrize("mark", ["read", "archive"])
async def test_pushes_up_to_a_message_that_is_marked_are_withdrawn(world: World, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page, scripted = world.page, world.scripted
    scripted.keeps_inbox = True
    monkeypatch.setattr(scripted, "say_counts", lambda: None)  # the client has not asked for them
    await start(page, scripted)
    await page.evaluate("client.enablePush()")
    for _ in range(3):
        scripted.publish()
    await wait(page, "events.filter(([type]) => type === 'message').length === 3")
    await scripted.until(lambda: not scripted.pending)
    for id in ("m1", "m2", "m3"):
        await world.push(id)
    await world.shown("m1", "m2", "m3")
    await page.evaluate(f"client.mark('{mark}', {{ upto: 2 }})")
    async with asyncio.timeout(10):  # the browser itself closes them all after 20 s
        await world.shown("m3")


async def test_pushes_of_messages_that_were_put_away_are_withdrawn(world: World) -> None:
    page, scripted = world.page, world.scripted
    scripted.keeps_inbox = True
    await start(page, scripted, counts=True)
    await page.evaluate("client.enablePush()")
    for _ in range(4):
        scripted.publish()
    await wait(page, "events.filter(([type]) => type === 'message').length === 4")
    await scripted.until(lambda: not scripted.pending)
    for id in ("m1", "m2", "m3", "m4"):
        await world.push(id)
    await world.shown("m1", "m2", "m3", "m4")
    scripted.mark("archive", ids=["m2"])  # on another device
    await world.shown("m1", "m3", "m4")
    await page.evaluate("client.close()")
    scripted.mark("archive", ids=["m3"])
    await start(page, scripted)  # no counts
    await world.shown("m1", "m4")
    await page.evaluate("client.snooze(['m4'], Date.now() + 3600000)")
    await world.shown("m1")


async def test_a_page_that_opens_closes_what_was_acknowledged_elsewhere_meanwhile(world: World) -> None:
    page, scripted = world.page, world.scripted
    await start(page, scripted)
    await page.evaluate("client.enablePush()")
    scripted.keeps_inbox = True
    scripted.publish("first")
    scripted.inbox[0]["acknowledged"] = True
    await wait(page, "events.some(([type]) => type === 'message')")
    await scripted.until(lambda: not scripted.pending)
    await page.evaluate("client.close()")
    await world.push("m1")
    await world.push("other")
    await world.shown("m1", "other")
    await page.evaluate("client.open()")
    await world.shown("other")


async def test_a_browser_subscribes_anew_when_its_subscription_is_gone_or_is_for_another_key(world: World) -> None:
    page = world.page
    await start(page, world.scripted)
    await page.evaluate("client.enablePush()")
    world.edge.addresses.kept.clear()
    await page.evaluate("""() => {
      const place = Object.keys(localStorage).find((name) => name.startsWith("notify-push:"));
      localStorage.setItem(place, JSON.stringify({ ...JSON.parse(localStorage.getItem(place)), id: "0".repeat(32), key: "another" }));
    }""")
    await page.reload()
    await start(page, world.scripted)
    await wait(page, "window.subscribedWith")
    await until(lambda: page.evaluate("async () => (await client.pushState()) === 'on'"))
    await world.scripted.until(lambda: bool(world.edge.addresses.kept))
    assert world.edge.addresses.kept["default:u1"].push == (world.browser.subscription,)


async def test_a_browser_that_the_engine_lost_is_registered_again(world: World) -> None:
    page = world.page
    await start(page, world.scripted)
    await page.evaluate("client.enablePush()")
    world.edge.addresses.kept.clear()
    await page.evaluate("client.reconnect()")
    await world.scripted.until(lambda: bool(world.edge.addresses.kept))
    assert world.edge.addresses.kept["default:u1"].push == (world.browser.subscription,)


async def test_a_browser_without_room_for_its_record_is_not_subscribed(world: World) -> None:
    page = world.page
    await start(page, world.scripted)
    await page.evaluate("() => { Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }; }")
    refused = await page.evaluate("client.enablePush().catch(({ name }) => name)")
    assert refused == "QuotaExceededError"
    assert await page.evaluate("PushManager.prototype.getSubscription()") is None


async def test_another_user_of_the_browser_gets_none_of_the_first_ones_pushes(world: World) -> None:
    page = world.page
    await start(page, world.scripted)
    await page.evaluate("client.enablePush()")
    await world.push()
    await world.shown("m1")
    await page.evaluate("client.close()")
    await start(page, world.scripted, token=token("somebody-else"))
    await world.shown()
    await page.wait_for_function("localStorage.length === 0")
    assert await page.evaluate("client.pushState()") == "off"


async def test_another_user_by_cookie_gets_none_of_the_first_ones_pushes(world: World) -> None:
    page, users = world.page, ["ann"]

    async def preferences(route: Route) -> None:
        await route.fulfill(json={"user": users[-1]})

    await page.route("**/v1/preferences", preferences)
    await start(page, world.scripted, token="")
    await page.evaluate("client.enablePush()")
    assert await page.evaluate("client.pushState()") == "on"
    await world.push()
    await world.shown("m1")
    await page.evaluate("client.reconnect()")
    await wait(page, "client.reconnects === 1")
    await world.shown("m1")
    users.append("bob")
    await page.evaluate("client.reconnect()")
    await world.shown()
    await page.wait_for_function("localStorage.length === 0")
    assert await page.evaluate("client.pushState()") == "off"


async def test_a_browser_that_ends_pushes_is_forgotten_by_the_engine(world: World) -> None:
    page = world.page
    await start(page, world.scripted)
    await page.evaluate("client.enablePush()")
    await page.evaluate("client.disablePush()")
    assert await page.evaluate("client.pushState()") == "off"
    assert world.edge.addresses.kept["default:u1"].push == ()


async def test_a_worker_that_is_not_installed_is_told(world: World) -> None:
    page = world.page
    await start(page, world.scripted)
    await page.evaluate("""() => {
      navigator.serviceWorker.register = async () => {
        const installing = Object.assign(new EventTarget(), { state: "installing" });
        setTimeout(() => { installing.state = "redundant"; installing.dispatchEvent(new Event("statechange")); });
        return { installing, pushManager: { getSubscription: async () => null } };
      };
      client.enablePush().catch(({ name, status }) => (window.refused = `${name} ${status}`));
    }""")
    await wait(page, "window.refused === 'Refused 0'")


async def test_without_permission_nothing_is_subscribed_and_the_reason_is_told(world: World) -> None:
    page = world.page
    await page.context.clear_permissions()
    await start(page, world.scripted)
    await page.evaluate("Notification.requestPermission = async () => 'denied'")
    refused = await page.evaluate("client.enablePush().catch(({ name, status, message }) => [name, status, message])")
    assert refused == ["Refused", 0, "the user has not permitted notifications"]
    assert world.edge.addresses.kept == {}
    assert await events(page, "error") == []
