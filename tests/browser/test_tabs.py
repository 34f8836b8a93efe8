"""Several tabs of a user: one connection, and whoever has it may end at any time. And what outlives a page."""

from __future__ import annotations

import pytest
from playwright.async_api import BrowserContext, Page

from tests.support.client_page import connect, events, shown, start, wait
from tests.support.scripted_engine import ScriptedEngine, token

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def context(page: Page) -> BrowserContext:
    return page.context


async def tab(context: BrowserContext, scripted: ScriptedEngine, *, forgets: bool = False, **options: object) -> Page:
    """One more tab of the same browser, with a client that shares its connection; `forgets`: but not what is kept across page loads."""
    fresh = await context.new_page()
    await fresh.goto(f"{scripted.url}/blank")
    if forgets:
        await fresh.evaluate("window.more = () => ({ storage: sessionStorage })")
    await connect(fresh, scripted, **{"share": True, **options})
    return fresh


# -- one connection ----------------------------------------------------------------------------------------------------
async def test_tabs_of_a_user_share_one_connection_and_each_shows_each_message_once(
    context: BrowserContext, scripted: ScriptedEngine
) -> None:
    tabs = [await tab(context, scripted) for _ in range(3)]
    for _ in range(3):
        scripted.publish()
    for one in tabs:
        await wait(one, "events.filter(([type]) => type === 'message').length === 3")
    await scripted.until(lambda: not scripted.pending)
    assert [await shown(one) for one in tabs] == [[1, 2, 3]] * 3
    assert scripted.connects == [("websocket", None)]
    assert {await one.evaluate("[client.transport, client.connection].join()") for one in tabs} == {"websocket,c1"}
    assert [await events(one, "revoke") for one in tabs] == [[]] * 3, "nobody has handled it before the tab had"


async def test_when_the_tab_with_the_connection_is_closed_another_goes_on_with_nothing_lost_or_shown_twice(
    context: BrowserContext, scripted: ScriptedEngine
) -> None:
    first, second, third = [await tab(context, scripted) for _ in range(3)]
    scripted.publish()
    for one in (first, second, third):
        await wait(one, "events.filter(([type]) => type === 'message').length === 1")
    await scripted.until(lambda: not scripted.pending)
    await first.close()
    scripted.publish()
    await scripted.until(lambda: scripted.ended == 1)
    await scripted.publish_until_acknowledged()
    scripted.publish()
    for one in (second, third):
        await wait(one, "events.filter(([type]) => type === 'message').length === 4")
        assert await shown(one) == [1, 2, 3, 4]
    assert scripted.connects[0] == ("websocket", None)
    assert scripted.connects[1:] in ([("websocket", "7-1")], [("websocket", "7-2")]), "the second was told, or not any more"
    await second.close()
    scripted.publish()
    await wait(third, "events.filter(([type]) => type === 'message').length === 5")
    await scripted.until(lambda: not scripted.pending)


@pytest.mark.parametrize("connected", [True, False])
async def test_the_last_messages_of_the_tab_that_had_the_connection_are_shown_though_the_lock_was_faster(
    context: BrowserContext, scripted: ScriptedEngine, connected: bool
) -> None:
    scripted.welcome |= {"reconnect": {"delays_ms": [60_000], "jitter": 0}}
    only = await tab(context, scripted, share="late")
    scripted.publish()
    await wait(only, "events.filter(([type]) => type === 'message').length === 1")
    if not connected:
        scripted.cut()
        await wait(only, "client.state === 'reconnecting'")
    await only.evaluate("""() => {
        const message = { ...events.find(([type]) => type === "message")[1], id: "m2", seq: 2, event_id: "7-2" };
        const channel = new BroadcastChannel(`notify:${location.host}:late:`);
        channel.postMessage({ from: "before", to: "all", frame: { type: "messages", messages: [message] } });
        channel.close();
    }""")
    await wait(only, "events.filter(([type]) => type === 'message').length === 2")
    assert await shown(only) == [1, 2]


async def test_a_client_that_is_closed_hands_the_connection_over(context: BrowserContext, scripted: ScriptedEngine) -> None:
    first, second = [await tab(context, scripted) for _ in range(2)]
    await first.evaluate("client.close()")
    await wait(second, "client.connection === 'c2'")
    await first.evaluate("client.open()")
    await wait(first, "client.connection === 'c2'")
    assert len(scripted.connects) == 2


@pytest.mark.parametrize("refused", ["navigator.locks.request = async () => {", "window.BroadcastChannel = function () {"])
async def test_a_tab_connects_by_itself_where_the_browser_lets_none_share(page: Page, scripted: ScriptedEngine, refused: str) -> None:
    await page.add_init_script(refused + " throw new DOMException('denied', 'SecurityError'); }")
    await connect(page, scripted, share=True)
    scripted.publish()
    await wait(page, "events.some(([type]) => type === 'message')")
    await scripted.until(lambda: not scripted.pending)


async def test_what_one_tab_acknowledges_is_settled_in_the_others(context: BrowserContext, scripted: ScriptedEngine) -> None:
    first, second, third = [await tab(context, scripted, ack="manual") for _ in range(3)]
    scripted.publish()
    scripted.publish()
    for one in (first, second, third):
        await wait(one, "events.filter(([type]) => type === 'message').length === 2")
    await second.evaluate("client.ack(events.findLast(([type]) => type === 'message')[1])")
    await scripted.until(lambda: sorted(scripted.pending) == [1])
    await wait(third, "events.some(([type]) => type === 'revoke')")
    assert await events(third, "revoke") == [{"ids": ["m2"]}]
    assert await events(second, "revoke") == []
    assert await events(first, "revoke") == [{"ids": ["m2"]}]  # the tab that leads shows them too
    await first.evaluate("client.ack(2)")
    await scripted.until(lambda: not scripted.pending)
    for one in (first, second, third):
        await wait(one, "client.lastEventId === '7-2'")


async def test_an_acknowledgement_that_the_closed_tab_had_not_passed_on_is_made_by_the_next(
    context: BrowserContext, scripted: ScriptedEngine
) -> None:
    first, second, third = [await tab(context, scripted, ack="manual") for _ in range(3)]
    scripted.publish()
    await wait(third, "events.some(([type]) => type === 'message')")
    await first.evaluate("BroadcastChannel.prototype.postMessage = () => {}; WebSocket.prototype.send = () => {}")
    await third.evaluate("client.ack(1)")
    await first.close()
    await wait(second, "client.connection === 'c2'")
    await scripted.until(lambda: not scripted.pending)


async def test_a_later_tab_is_shown_what_is_open_and_nothing_that_was_settled(context: BrowserContext, scripted: ScriptedEngine) -> None:
    first = await tab(context, scripted, ack="manual")
    for _ in range(3):
        scripted.publish()
    await wait(first, "events.filter(([type]) => type === 'message').length === 3")
    await first.evaluate("client.ack(events.find(([type, detail]) => type === 'message' && detail.seq === 2)[1])")
    await scripted.until(lambda: sorted(scripted.pending) == [1, 3])
    later = await tab(context, scripted, forgets=True, ack="manual")
    await wait(later, "events.filter(([type]) => type === 'message').length === 2")
    scripted.say({"type": "messages", "messages": [scripted.publish() | {"seq": 2, "id": "m2", "event_id": "7-2"}]})  # its ack was lost
    await wait(later, "events.some(([type, detail]) => detail.seq === 4)")
    await wait(first, "events.some(([type, detail]) => type === 'duplicate' && detail.id === 'm2')")
    scripted.publish()
    await wait(later, "events.some(([type, detail]) => detail.seq === 5)")
    assert await shown(later) == [1, 3, 4, 5]


async def test_a_refusal_in_any_tab_reaches_the_engine_and_is_confirmed_in_all(context: BrowserContext, scripted: ScriptedEngine) -> None:
    first, second = [await tab(context, scripted, ack="manual") for _ in range(2)]
    scripted.publish()
    await wait(second, "events.some(([type]) => type === 'message')")
    await second.evaluate("client.nack(['m1'], 'no such post')")
    for one in (first, second):
        await wait(one, "client.lastEventId === '7-1'")
    assert [frame for frame in scripted.frames if frame["type"] == "nack"] == [{"type": "nack", "ids": ["m1"], "reason": "no such post"}]


async def test_all_tabs_are_told_the_digest(context: BrowserContext, scripted: ScriptedEngine) -> None:
    first, second = [await tab(context, scripted, digest=True) for _ in range(2)]
    scripted.say({"type": "digest", "lines": []})
    for one in (first, second):
        await wait(one, "events.filter(([type]) => type === 'digest').length === 1")


async def test_all_tabs_tell_how_the_connection_is(context: BrowserContext, scripted: ScriptedEngine) -> None:
    scripted.welcome |= {"reconnect": {"delays_ms": [60_000], "jitter": 0}}
    first, second = [await tab(context, scripted) for _ in range(2)]
    scripted.cut(1012, "restart")
    await wait(second, "client.state === 'reconnecting'")
    assert (await events(second, "state"))[-1] | {"reason": "restart", "transport": None} == (await events(second, "state"))[-1]
    scripted.epoch = "8"
    await first.evaluate("dispatchEvent(new Event('online'))")
    await wait(second, "client.state === 'open' && client.reconnects === 1")
    await wait(second, "events.some(([type]) => type === 'gap')")


async def test_a_tab_that_is_frozen_loses_the_connection_to_one_that_is_not(context: BrowserContext, scripted: ScriptedEngine) -> None:
    first, second = [await tab(context, scripted) for _ in range(2)]
    devtools = await context.new_cdp_session(first)
    await devtools.send("Debugger.enable")
    await devtools.send("Debugger.pause")  # at its next statement
    await second.evaluate("dispatchEvent(new Event('online'))")  # asks whether anybody is there
    await wait(second, "client.connection === 'c2'")
    scripted.publish()
    await wait(second, "events.some(([type]) => type === 'message')")
    await devtools.send("Debugger.resume")
    await wait(first, "client.connection === 'c2'")  # it follows now
    scripted.publish()
    for one in (first, second):
        await wait(one, "events.some(([type, detail]) => type === 'message' && detail.seq === 2)")
    assert await shown(second) == [1, 2]
    await scripted.until(lambda: len(scripted.queues) == 1 and not scripted.pending)


async def test_a_tab_gets_no_welcome_of_the_user_before(context: BrowserContext, scripted: ScriptedEngine) -> None:
    scripted.welcome |= {"reconnect": {"delays_ms": [60_000], "jitter": 0}}
    first = await context.new_page()
    await first.goto(f"{scripted.url}/blank")
    tokens = [token("demo"), token("other")]
    await first.evaluate("(tokens) => { window.more = () => ({ getToken: async () => tokens.shift() }) }", tokens)
    await connect(first, scripted, getToken=True, share=True)
    scripted.refuse = dict.fromkeys(("websocket", "sse", "poll"), 503)
    scripted.cut(4401, "the token has expired")
    await scripted.until(lambda: scripted.tokens[-1] == token("other"))
    second = await context.new_page()
    await second.goto(f"{scripted.url}/blank")
    await start(second, scripted, token=token("other"), share=True)
    await wait(second, "client.state === 'reconnecting'")
    await second.evaluate("client.reconnect()")  # it joins once more, and has heard all of the first answer by the second
    await wait(second, "events.filter(([type, { state }]) => type === 'state' && state === 'reconnecting').length > 2")
    assert await events(second, "welcome") == []


async def test_other_users_and_other_devices_have_connections_of_their_own(context: BrowserContext, scripted: ScriptedEngine) -> None:
    for options in ({}, {"device": "phone"}, {"token": token("eve")}, {"share": False}, {"token": "opaque"}):
        await tab(context, scripted, **options)
    assert len(scripted.connects) == 5
    await tab(context, scripted, token="opaque", share="eve")
    await tab(context, scripted, token="opaque", share="eve")
    assert len(scripted.connects) == 6


# -- what outlives a page ----------------------------------------------------------------------------------------------
async def test_cursor_and_settled_ids_outlive_the_page(context: BrowserContext, scripted: ScriptedEngine) -> None:
    first = await tab(context, scripted, share=False, ack="manual")
    for _ in range(3):
        scripted.publish()
    await wait(first, "events.filter(([type]) => type === 'message').length === 3")
    await first.evaluate("client.ack(1); client.ack(events.findLast(([type]) => type === 'message')[1])")
    await scripted.until(lambda: sorted(scripted.pending) == [2])
    await first.close()
    scripted.pending[3] = scripted.pending[2] | {"seq": 3, "id": "m3", "event_id": "7-3"}  # the engine has lost the acknowledgement
    second = await tab(context, scripted, share=False, ack="manual")
    await scripted.until(lambda: sorted(scripted.pending) == [2])
    assert await shown(second) == [2]
    assert scripted.connects[-1] == ("websocket", "7-1")


async def test_where_the_database_is_refused_the_page_remembers(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/blank")
    await page.evaluate("() => { IDBFactory.prototype.open = () => { throw new DOMException('denied', 'SecurityError') } }")
    await connect(page, scripted)
    await scripted.publish_until_acknowledged()
    assert await events(page, "error") == []


# -- hidden pages ------------------------------------------------------------------------------------------------------
HIDE = """(state) => {
  Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


async def test_a_hidden_page_disconnects_when_so_chosen_and_misses_nothing(page: Page, scripted: ScriptedEngine) -> None:
    await connect(page, scripted, pauseHiddenMs=50)
    await page.evaluate(HIDE, "hidden")
    await wait(page, "client.state === 'paused'")
    await scripted.until(lambda: not scripted.queues)
    scripted.publish()
    await page.evaluate(HIDE, "visible")
    await scripted.until(lambda: not scripted.pending)
    assert await shown(page) == [1]


async def test_a_hidden_tab_leaves_the_connection_to_one_that_is_seen(context: BrowserContext, scripted: ScriptedEngine) -> None:
    first, second = [await tab(context, scripted, pauseHiddenMs=50) for _ in range(2)]
    await first.evaluate(HIDE, "hidden")
    await wait(second, "client.connection === 'c2'")
    await first.evaluate(HIDE, "visible")
    await wait(first, "client.connection === 'c2'")
    await first.evaluate(HIDE, "hidden")
    await second.evaluate(HIDE, "hidden")
    await scripted.until(lambda: not scripted.queues)


COUNT_PONGS = """
  window.pongs = 0;
  window.WebSocket = class extends WebSocket {
    constructor(...given) {
      super(...given);
      this.addEventListener("message", (event) => { window.pongs += JSON.parse(event.data).type === "pong"; });
    }
  };
"""


async def test_a_page_whose_timers_come_late_does_not_take_the_server_for_silent(page: Page, scripted: ScriptedEngine) -> None:
    await page.add_init_script(COUNT_PONGS)
    await page.reload()
    await page.clock.install()
    await connect(page, scripted)
    for times in range(1, 4):
        await page.clock.fast_forward(61_000)  # a hidden page: one timer a minute
        await wait(page, f"pongs >= {times}")
    assert [one["state"] for one in await events(page, "state")] == ["connecting", "open"]
