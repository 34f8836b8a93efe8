"""The elements on a page, with an engine that keeps inboxes and one that does not."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from tests.support.axe import violations
from tests.support.client_page import PLACE, place, wait
from tests.support.scripted_engine import ScriptedEngine, token

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_bell_counts_what_is_unread_and_opens_the_inbox_by_keyboard(page: Page, scripted: ScriptedEngine) -> None:
    await place(page, scripted)
    bell = page.get_by_role("button", name="Notifications, none unread")
    await expect(bell).to_be_visible()
    scripted.publish("first")
    scripted.publish("second")
    bell = page.get_by_role("button", name="Notifications, 2 unread")
    await expect(page.locator(".badge")).to_have_text("2")
    await expect(page.get_by_role("status")).to_have_text("New: second")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(bell).to_have_attribute("aria-expanded", "true")
    items = page.get_by_role("listitem")
    await expect(items).to_have_count(2)
    await expect(items.first).to_be_focused()
    await page.keyboard.press("ArrowDown")
    await expect(items.nth(1)).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator(".badge")).to_have_text("1")
    assert await page.evaluate("opened") == ["m1"]
    await expect(items.nth(1)).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(items).to_have_count(0)
    await expect(page.get_by_role("button", name="Notifications, 1 unread")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.get_by_role("heading", name="A page").click()
    await expect(page.get_by_role("dialog")).to_be_hidden()


async def test_reading_acknowledges_where_the_application_left_it_to_the_user(page: Page, scripted: ScriptedEngine) -> None:
    await place(page, scripted, ack="manual")
    for title in ("first", "second", "third"):
        scripted.publish(title)
    await expect(page.locator(".badge")).to_have_text("3")
    await page.get_by_role("button", name="Notifications").click()
    await page.get_by_role("button", name="Mark as read: second").click()
    await scripted.until(lambda: sorted(scripted.pending) == [1, 3])
    scripted.say({"type": "revoke", "ids": ["m3"]})
    await expect(page.locator(".badge")).to_have_text("1")
    await page.get_by_role("button", name="Mark all as read").click()
    await scripted.until(lambda: sorted(scripted.pending) in ([], [3]))
    await expect(page.locator(".badge")).to_be_hidden()


async def test_an_inbox_that_the_engine_keeps_is_shown_after_a_reload_and_marked_for_all_devices(
    page: Page, scripted: ScriptedEngine
) -> None:
    scripted.keeps_inbox = True
    for number in range(25):
        scripted.publish(f"message {number}")
    scripted.pending.clear()
    await place(page, scripted)
    await expect(page.locator(".badge")).to_have_text("25")
    await page.get_by_role("button", name="Notifications").click()
    items = page.get_by_role("listitem")
    await expect(items).to_have_count(20)
    await page.get_by_role("button", name="Show more").click()
    await expect(items).to_have_count(25)
    await page.get_by_role("button", name="Mark as read: message 24").click()
    await expect(page.locator(".badge")).to_have_text("24")
    assert scripted.inbox[0]["read"]
    await page.get_by_role("button", name="Archive: message 24").click()
    await expect(items).to_have_count(24)
    assert scripted.inbox[0]["archived"]
    scripted.mark("read", ids=["m24", "m23"])  # on another device
    await expect(page.locator(".badge")).to_have_text("22")
    await expect(page.get_by_role("button", name="Mark as read: message 23")).to_have_count(0)
    await page.get_by_role("button", name="Mark all as read").click()
    await expect(page.locator(".badge")).to_be_hidden()
    scripted.publish("new")
    await expect(items.first).to_contain_text("new")
    await expect(page.locator(".badge")).to_have_text("1")


async def test_an_inbox_that_did_not_answer_is_asked_again(page: Page, scripted: ScriptedEngine) -> None:
    scripted.keeps_inbox = True
    scripted.publish("kept")
    scripted.pending.clear()
    asked: list[str] = []

    async def away(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) > 3:
            await route.continue_()
        elif len(asked) == 2:
            await route.abort()
        else:
            await route.fulfill(status=503, json={"title": "Service Unavailable", "status": 503})

    await page.route("**/v1/inbox?*", away)
    await place(page, scripted)
    await page.get_by_role("button", name="Notifications, 1 unread").click()
    await expect(page.get_by_role("listitem")).to_contain_text("kept")
    assert len(scripted.connects) == 1


async def test_the_bell_counts_where_only_polling_gets_through(page: Page, scripted: ScriptedEngine) -> None:
    scripted.keeps_inbox = True
    for number in range(3):
        scripted.publish(f"message {number}")
    scripted.pending.clear()
    await place(page, scripted, transports=["poll"])
    await expect(page.locator(".badge")).to_have_text("3")
    scripted.publish("new")
    await expect(page.locator(".badge")).to_have_text("4")
    await page.evaluate("(place) => eval(place)('en')", PLACE)  # a bell that comes later
    await expect(page.locator(".badge")).to_have_text("4")


async def test_the_inbox_opens_while_a_growing_message_is_unknown(page: Page, scripted: ScriptedEngine) -> None:
    asked, failures = asyncio.Event(), []
    held: list[Route] = []

    async def hold(route: Route) -> None:
        held.append(route)
        asked.set()

    page.on("pageerror", lambda error: failures.append(str(error)))
    await page.route("**/v1/growing/g1*", hold)
    await place(page, scripted)
    scripted.publish("first")
    scripted.say({"type": "part", "id": "g1", "generation": 1, "offset": 5, "text": "late"})
    await asked.wait()
    await page.get_by_role("button", name="Notifications, 1 unread").click()
    await expect(page.get_by_role("dialog").get_by_role("heading", name="Notifications")).to_be_visible()
    await expect(page.get_by_role("listitem")).to_have_count(1)
    assert await page.evaluate("client.grows") == []
    about = {"id": "g1", "generation": 1, "state": "growing", "list": False, "message": {"id": "g1", "data": {"title": "Import"}}}
    await held[0].fulfill(json={**about, "size": 9, "offset": 0, "text": "read late"})
    await expect(page.locator("notification-inbox .growing")).to_contain_text("read late")
    assert failures == []


async def test_a_message_is_snoozed_until_a_time_that_its_user_chooses(page: Page, scripted: ScriptedEngine) -> None:
    scripted.keeps_inbox = True
    scripted.publish("report")
    scripted.publish("other")
    scripted.pending.clear()
    await place(page, scripted)
    await page.get_by_role("button", name="Notifications").click()
    await page.locator("summary", has_text="Snooze").last.click()
    in_an_hour = page.get_by_role("button", name="Snooze, In 1 hour: report")
    await expect(in_an_hour).to_be_visible()
    scripted.publish("third")  # it draws the list anew
    await expect(page.get_by_role("listitem")).to_have_count(3)
    await expect(in_an_hour).to_be_visible()
    now_ms = time.time() * 1000
    await in_an_hour.click()
    await expect(page.get_by_role("listitem")).to_have_count(2)
    await expect(page.locator(".badge")).to_have_text("2")
    ((ids, until_ms),) = scripted.snoozed
    assert ids == ["m1"]
    assert abs(until_ms - now_ms - 3_600_000) < 60_000
    scripted.publish("report", replaces="m1")  # it comes back
    await expect(page.get_by_role("listitem").first).to_contain_text("report")
    await expect(page.locator(".badge")).to_have_text("3")


async def test_the_times_to_snooze_until_are_ahead_and_in_the_morning(page: Page, scripted: ScriptedEngine) -> None:
    """Also on a Monday, and at the end of a year."""
    await page.goto(f"{scripted.url}/blank")
    for day in ("2026-12-28T08:00", "2026-12-31T23:30", "2027-01-03T12:00"):
        times = await page.evaluate(
            """async (day) => {
                const { timesAfter } = await import("/client/elements/snooze.js");
                const { hour, tomorrow, week } = timesAfter(new Date(day));
                const after = (time) => time - new Date(day);
                return [after(hour), tomorrow.getHours(), after(tomorrow), week.getDay(), week.getHours(), after(week)];
            }""",
            day,
        )
        assert (times[0], times[1], times[3], times[4]) == (3_600_000, 9, 1, 9)
        assert 0 < times[2] < 48 * 3_600_000
        assert 0 < times[5] <= 8 * 24 * 3_600_000


async def test_a_page_that_stays_open_forgets_the_oldest_messages(page: Page, scripted: ScriptedEngine) -> None:
    await place(page, scripted)
    for _ in range(1200):
        scripted.publish()
    await wait(page, "client.lastEventId === '7-1200'")
    kept = await page.evaluate(
        "import('/client/elements/inbox_model.js').then(({ modelOf }) => modelOf(client).entries.map((one) => one.message.seq))"
    )
    assert 250 <= len(kept) <= 500
    assert kept == list(range(1200, 1200 - len(kept), -1))


async def place_for_two(page: Page, scripted: ScriptedEngine) -> None:
    """A page with a bell, whose next token is another user's."""
    await page.goto(f"{scripted.url}/blank")
    await page.evaluate("(tokens) => { window.more = () => ({ getToken: async () => tokens.shift() }) }", [token("demo"), token("other")])
    await place(page, scripted, getToken=True)


async def test_the_inbox_draws_its_list_once_for_a_burst(page: Page, scripted: ScriptedEngine) -> None:
    await place(page, scripted)
    scripted.publish("one")
    await page.get_by_role("button", name="Notifications, 1 unread").click()
    await expect(page.get_by_role("listitem")).to_have_count(1)
    burst = """async () => {
        const within = (node, name) => node.shadowRoot.querySelector(name);
        const inbox = within(document.querySelector("notification-bell"), "notification-inbox");
        const list = within(inbox, "[aria-labelledby]");
        const draw = list.replaceChildren.bind(list);
        let drawn = 0;
        list.replaceChildren = (...items) => (drawn++, draw(...items));
        const changed = new Promise((resolve) => new MutationObserver(resolve).observe(list, { childList: true }));
        const { modelOf } = await import("/client/elements/index.js");
        for (let at = 0; at < 9; at++) modelOf(client).dispatchEvent(new Event("change"));
        await changed;
        return drawn;
    }"""
    assert await page.evaluate(burst) == 1


async def test_preferences_are_those_of_the_user_who_signed_in_last(page: Page, scripted: ScriptedEngine) -> None:
    await place_for_two(page, scripted)
    await page.evaluate("document.body.append(Object.assign(document.createElement('notification-preferences'), { client }))")
    await expect(page.get_by_label("News, Here")).to_have_value("digest")
    scripted.choices["news"] = "off"
    scripted.cut(4401, "the token has expired")
    await expect(page.get_by_label("News, Here")).to_have_value("off")


async def test_a_choice_that_waits_is_not_made_for_another_user(page: Page, scripted: ScriptedEngine) -> None:
    asked, answered, methods = asyncio.Event(), asyncio.Event(), list[str]()

    async def hold(route: Route) -> None:
        methods.append(route.request.method)
        if methods == ["PATCH"]:
            asked.set()
            await answered.wait()
        await route.continue_()

    await place_for_two(page, scripted)
    await page.evaluate("document.body.append(Object.assign(document.createElement('notification-preferences'), { client }))")
    await page.route("**/v1/preferences", hold)
    await page.get_by_label("News, Here").select_option("on")
    await asked.wait()
    await page.get_by_label("News, Here").select_option("off")
    scripted.cut(4401, "the token has expired")
    await wait(page, "client.reconnects === 1")
    answered.set()
    await scripted.until(lambda: "GET" in methods)
    assert scripted.patches == [{"categories": {"news": "on"}}]


async def test_the_time_of_a_digest_is_typed_by_keyboard(page: Page, scripted: ScriptedEngine) -> None:
    scripted.mail_digest = {"at": "08:00"}
    await place(page, scripted)
    await page.evaluate("document.body.append(Object.assign(document.createElement('notification-preferences'), { client }))")
    await page.get_by_label("What you missed, at").focus()
    for key in "0930A":
        await page.keyboard.press(key)
        await page.evaluate("client.preferences()")  # an answer to the key before would have arrived by now
    await page.get_by_label("What you missed, at").blur()
    await scripted.until(lambda: scripted.patches)
    assert [patch["mail_digest"] for patch in scripted.patches] == [{"at": "09:30"}]


@pytest.mark.parametrize("keeps_inbox", [False, True])
async def test_another_user_sees_nothing_of_the_first_one(page: Page, scripted: ScriptedEngine, keeps_inbox: bool) -> None:
    scripted.keeps_inbox = keeps_inbox
    await place_for_two(page, scripted)
    scripted.publish("for the first")
    scripted.say({"type": "part", "id": "g1", "generation": 1, "offset": 0, "text": "grows", "message": {"type": "a.b", "data": {}}})
    await page.get_by_role("button", name="Notifications").click()
    await expect(page.get_by_role("listitem")).to_have_count(2)
    scripted.inbox.clear()
    scripted.cut(4401, "the token has expired")
    await wait(page, "client.reconnects === 1")
    await expect(page.get_by_role("listitem")).to_have_count(0)
    await expect(page.locator(".badge")).to_be_hidden()
    assert await page.evaluate("client.grows") == []


async def test_a_mark_that_fails_says_so(page: Page, scripted: ScriptedEngine) -> None:
    scripted.keeps_inbox = True
    scripted.publish("one")
    await place(page, scripted)
    await page.route("**/v1/inbox/read", lambda route: route.abort())
    await page.get_by_role("button", name="Notifications").click()
    await page.get_by_role("button", name="Mark as read: one").click()
    await expect(page.get_by_role("alert")).to_have_text("That did not work. Try again.")
    await expect(page.get_by_role("button", name="Mark as read: one")).to_be_visible()


async def hold_answers(page: Page, pattern: str, times: int | None = None) -> tuple[asyncio.Event, asyncio.Event]:
    """From now on answers to such requests wait, so many or all; the events that one was made, and that they may be given."""
    made, given = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        answer = await route.fetch()
        made.set()
        await given.wait()
        await route.fulfill(response=answer)

    await page.route(pattern, hold, times=times)
    return made, given


async def held_look(page: Page, scripted: ScriptedEngine, times: int | None = None) -> asyncio.Event:
    """Look at an inbox of 25 messages again; so many answers, or all, were made and wait for the event that is returned."""
    scripted.keeps_inbox = True
    for number in range(25):
        scripted.publish(f"number {number}")
    await place(page, scripted)
    await page.get_by_role("button", name="Notifications").click()
    await expect(page.get_by_role("button", name="Show more")).to_be_visible()
    asked, answered = await hold_answers(page, "**/v1/inbox?**", times)
    await page.evaluate("client.reconnect()")
    await asked.wait()
    await wait(page, "client.state === 'open'")
    return answered


async def test_a_look_from_the_beginning_keeps_the_pages_behind_it(page: Page, scripted: ScriptedEngine) -> None:
    scripted.keeps_inbox = True
    for number in range(45):
        scripted.publish(f"number {number}")
    await place(page, scripted)
    await page.get_by_role("button", name="Notifications").click()
    items, more = page.get_by_role("listitem"), page.get_by_role("button", name="Show more")

    async def looked_again(newest: int) -> None:
        scripted.mark("read", ids=[f"m{newest + 1}"])  # the next look shows it
        await page.evaluate("client.reconnect()")
        await expect(page.get_by_role("button", name=f"Mark as read: number {newest}")).to_have_count(0)

    await more.click()
    await expect(items).to_have_count(40)
    await looked_again(44)
    await more.click()
    await expect(items).to_have_count(45)
    await looked_again(43)
    await expect(more).to_have_count(0)


async def test_a_page_that_was_asked_for_before_a_mark_takes_nothing_back(page: Page, scripted: ScriptedEngine) -> None:
    answered = await held_look(page, scripted, times=1)
    await page.get_by_role("button", name="Mark as read: number 24").click()
    await page.get_by_role("button", name="Archive: number 23").click()
    await expect(page.get_by_text("number 23")).to_have_count(0)
    async with page.expect_response("**/v1/inbox?**"):  # asked for again: the first one was too old
        answered.set()
        await page.wait_for_event("response", lambda response: "/v1/inbox?" in response.url)
    await expect(page.get_by_text("number 23")).to_have_count(0)
    await expect(page.get_by_role("button", name="Mark as read: number 24")).to_have_count(0)


async def test_a_message_that_arrives_during_a_look_stays_in_the_list(page: Page, scripted: ScriptedEngine) -> None:
    answered = await held_look(page, scripted)
    scripted.publish("meanwhile")
    await expect(page.get_by_role("listitem").first).to_contain_text("meanwhile")
    async with page.expect_response("**/v1/inbox?**"):
        answered.set()
    await page.evaluate("fetch('/blank').then((response) => response.text())")
    await expect(page.get_by_role("listitem").first).to_contain_text("meanwhile")


async def test_the_oldest_message_leaves_when_another_device_archives_it(page: Page, scripted: ScriptedEngine) -> None:
    scripted.keeps_inbox = True
    for title in ("first", "second"):
        scripted.publish(title)
    await place(page, scripted)
    await page.get_by_role("button", name="Notifications").click()
    await expect(page.get_by_role("listitem")).to_have_count(2)
    scripted.mark("archive", ids=["m1"])
    await expect(page.get_by_role("listitem")).to_have_count(1)


async def test_a_bell_over_polling_counts_what_arrives(page: Page, scripted: ScriptedEngine) -> None:
    scripted.keeps_inbox = True
    await place(page, scripted, transports=["poll"])
    await page.get_by_role("button", name="Notifications, none unread").click()
    scripted.publish("one")
    await expect(page.get_by_role("button", name="Notifications, 1 unread")).to_be_visible()


async def test_counts_for_an_earlier_user_are_not_shown(page: Page, scripted: ScriptedEngine) -> None:
    scripted.keeps_inbox = True
    scripted.publish("one")
    scripted.publish("two")
    await place_for_two(page, scripted)
    marked, changed = await hold_answers(page, "**/v1/inbox/read")
    await page.get_by_role("button", name="Notifications").click()
    await page.get_by_role("button", name="Mark as read: one").click()
    await marked.wait()
    scripted.inbox.clear()
    scripted.revision = 0
    scripted.cut(4401, "the token has expired")
    await wait(page, "client.reconnects === 1")
    await expect(page.locator(".badge")).to_be_hidden()
    async with page.expect_response("**/v1/inbox/read"):
        changed.set()
    await page.evaluate("fetch('/blank').then((response) => response.text())")
    await expect(page.locator(".badge")).to_be_hidden()


@pytest.mark.parametrize("data", [{"title": {"toString": 1}}, {"body": [{"toString": None}]}])
async def test_an_object_in_place_of_a_text_hides_no_other_message(page: Page, scripted: ScriptedEngine, data: Any) -> None:
    await place(page, scripted)
    scripted.publish("one")
    scripted.publish(data=data)
    await page.get_by_role("button", name="Notifications, 2 unread").click()
    await expect(page.get_by_role("listitem")).to_have_count(2)
    await expect(page.get_by_role("listitem").first).to_contain_text("toString")


@pytest.mark.parametrize("button", ["Mark all as read", "Archive: one"])
async def test_the_keyboard_stays_in_the_bell_when_its_button_goes(page: Page, scripted: ScriptedEngine, button: str) -> None:
    scripted.keeps_inbox = True
    scripted.publish("one")
    await place(page, scripted)
    await page.get_by_role("button", name="Notifications").click()
    await expect(page.get_by_role("listitem")).to_be_visible()  # else the keyboard goes to the title
    await page.get_by_role("button", name=button).focus()
    await page.keyboard.press("Enter")
    await expect(page.locator(".badge")).to_be_hidden()
    focused = page.get_by_role("listitem") if button == "Mark all as read" else page.get_by_role("heading", name="Notifications")
    await expect(focused).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_be_hidden()


async def test_growing_messages_leave_an_inbox_with_its_client(page: Page, scripted: ScriptedEngine) -> None:
    await place(page, scripted)
    await page.get_by_role("button", name="Notifications").click()
    scripted.say({"type": "part", "id": "g1", "generation": 1, "offset": 0, "text": "grows", "message": {"type": "a.b", "data": {}}})
    await expect(page.get_by_role("listitem")).to_have_count(1)
    await page.evaluate("document.querySelector('notification-bell').client = null")
    await expect(page.get_by_role("listitem")).to_have_count(0)


async def test_the_elements_speak_chinese_where_the_page_does(page: Page, scripted: ScriptedEngine) -> None:
    await place(page, scripted, "zh-CN")
    scripted.publish("订单已发货")
    await page.get_by_role("button", name=re.compile("通知.1 条未读")).click()
    await expect(page.get_by_role("heading", name="通知")).to_be_visible()
    await expect(page.get_by_role("button", name="标为已读: 订单已发货")).to_be_visible()
    await expect(page.locator("time")).to_have_text("现在")


async def test_a_delayed_message_is_shown_with_the_time_at_which_it_was_due(page: Page, scripted: ScriptedEngine) -> None:
    await place(page, scripted)
    now_ms = int(time.time() * 1000)
    scripted.publish("published an hour ago", ts=now_ms - 3_600_000, due=now_ms)
    await page.get_by_role("button", name="Notifications").click()
    await expect(page.locator("time")).to_have_text("now")


async def test_what_a_message_says_becomes_neither_markup_nor_script(page: Page, scripted: ScriptedEngine) -> None:
    await place(page, scripted)
    nasty = '<img src=x onerror="document.title=1"><b>bold</b>'
    script = "javascript:document.title=1"
    scripted.publish(nasty, type=nasty, url=script, image=script, data={"title": nasty, "body": nasty})
    for data in (None, 7, "plain", ["a"], {"deep": {"er": True}}):
        scripted.publish(data=data)
    await page.get_by_role("button", name="Notifications").click()
    await expect(page.get_by_role("listitem")).to_have_count(6)
    await expect(page.locator("li .text").last).to_have_text(nasty)
    assert await page.locator("li img, li b, li a").count() == 0
    scripted.publish("linked", url="/orders/17")
    await expect(page.get_by_role("link", name="linked")).to_have_attribute("href", f"{scripted.url}/orders/17")
    await page.get_by_role("link", name="linked").click()
    assert await page.evaluate("opened") == ["m7"], "the application was asked, and goes there itself"
    assert len(page.context.pages) == 1


async def test_an_image_is_a_small_decoration_that_tells_its_host_no_page(page: Page, scripted: ScriptedEngine) -> None:
    asked: list[dict[str, str]] = []

    async def image(route: Route) -> None:
        asked.append(await route.request.all_headers())
        await route.fulfill(content_type="image/svg+xml", body='<svg xmlns="http://www.w3.org/2000/svg" width="900" height="300"/>')

    await page.route("http://images.example/*", image)
    await place(page, scripted)
    scripted.publish("plain")
    scripted.publish("with a picture", image="http://images.example/a.svg")
    await page.get_by_role("button", name="Notifications").click()
    picture = page.locator("li img")
    await expect(picture).to_have_attribute("alt", "")
    await expect(picture).to_have_attribute("loading", "lazy")
    await expect(picture).to_have_js_property("naturalWidth", 900)
    assert await picture.evaluate("({ width, height }) => [width, height]") == [44, 44]
    assert [name for name in asked[0] if name in ("referer", "cookie")] == []
    await expect(page.get_by_role("img")).to_have_count(0)


async def test_an_image_that_cannot_be_loaded_leaves_no_trace_and_is_tried_once(page: Page, scripted: ScriptedEngine) -> None:
    asked: list[str] = []

    async def missing(route: Route) -> None:
        asked.append(route.request.url)
        await route.fulfill(status=404)

    await page.route("**/missing.png", missing)
    await place(page, scripted)
    scripted.publish("broken", image="/missing.png")
    await page.get_by_role("button", name="Notifications").click()
    await scripted.until(lambda: asked)
    await expect(page.locator("li img")).to_have_count(0)
    scripted.publish("next")
    await expect(page.get_by_role("listitem")).to_have_count(2)
    assert asked == [f"{scripted.url}/missing.png"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_wrong_with_the_elements(page: Page, scripted: ScriptedEngine, scheme: Any) -> None:
    await page.emulate_media(color_scheme=scheme)
    scripted.keeps_inbox = True
    await place(page, scripted)
    await page.add_style_tag(content=":root { color-scheme: light dark; background: Canvas; color: CanvasText }")
    assert await violations(page) == []
    for title in ("read", "unread"):
        scripted.publish(title, data={"title": title, "body": "a text"}, url="/somewhere", image="/favicon.svg")
    await page.get_by_role("button", name="Notifications, 2 unread").click()
    await page.get_by_role("button", name="Mark as read: read").click()
    await expect(page.locator(".badge")).to_have_text("1")
    assert await violations(page) == []


async def test_a_page_themes_the_elements_and_who_wants_no_motion_gets_none(page: Page, scripted: ScriptedEngine) -> None:
    await page.emulate_media(reduced_motion="no-preference")
    await place(page, scripted)
    await page.add_style_tag(content="notification-bell { --notify-accent: rgb(1, 2, 3); --notify-surface: rgb(4, 5, 6) }")
    scripted.publish("one")
    await page.get_by_role("button", name="Notifications").click()
    style = "(name) => getComputedStyle(document.querySelector('notification-bell').shadowRoot.querySelector(name))"
    assert await page.evaluate(f"({style})('.badge').backgroundColor") == "rgb(1, 2, 3)"
    assert await page.evaluate(f"({style})('.panel').backgroundColor") == "rgb(4, 5, 6)"
    assert await page.evaluate(f"({style})('.panel').animationName") == "open"
    await page.emulate_media(reduced_motion="reduce")
    assert await page.evaluate(f"({style})('.panel').animationName") == "none"


@pytest.mark.parametrize(("system", "page_scheme"), [("dark", "light"), ("light", "dark"), ("dark", "normal")])
async def test_colours_follow_the_page_and_not_the_system(page: Page, scripted: ScriptedEngine, system: Any, page_scheme: str) -> None:
    await page.emulate_media(color_scheme=system)
    await place(page, scripted)
    await page.add_style_tag(content=f":root {{ color-scheme: {page_scheme}; background: Canvas; color: CanvasText }}")
    scripted.publish("one")
    await page.get_by_role("button", name="Notifications").click()
    style = "(name) => getComputedStyle(document.querySelector('notification-bell').shadowRoot.querySelector(name))"
    dark = page_scheme == "dark"
    assert await page.evaluate(f"({style})('.panel').backgroundColor") == ("rgb(20, 24, 31)" if dark else "rgb(255, 255, 255)")
    text = await page.evaluate("getComputedStyle(document.body).color")
    assert await page.evaluate(f"({style})('.bell svg').stroke") == text == ("rgb(255, 255, 255)" if dark else "rgb(0, 0, 0)")


async def test_arrow_keys_move_from_an_open_bell_into_its_list(page: Page, scripted: ScriptedEngine) -> None:
    await place(page, scripted)
    for title in ("first", "second", "third"):
        scripted.publish(title)
    bell = page.get_by_role("button", name="Notifications, 3 unread")
    await bell.click()
    items = page.get_by_role("listitem")
    await expect(items).to_have_count(3)
    await bell.focus()
    await page.keyboard.press("ArrowDown")
    await expect(items.first).to_be_focused()
    await page.keyboard.press("ArrowDown")
    await expect(items.nth(1)).to_be_focused()
    await page.keyboard.press("ArrowUp")
    await expect(items.first).to_be_focused()


async def test_a_bell_and_an_inbox_on_one_page_make_no_landmark_twice(page: Page, scripted: ScriptedEngine) -> None:
    await place(page, scripted)
    await page.evaluate(
        """() => {
          document.querySelector("main").append(document.createElement("notification-inbox"));
          document.querySelector("notification-inbox").client = client;
        }"""
    )
    scripted.publish("one")
    await page.get_by_role("button", name="Notifications, 1 unread").click()
    await expect(page.get_by_role("listitem")).to_have_count(2)
    assert await violations(page) == []
    assert await page.get_by_role("banner").count() == 0


@pytest.mark.parametrize("lang", ["en", "zh"])
async def test_preferences_are_chosen_by_category_and_channel_with_quiet_hours(page: Page, scripted: ScriptedEngine, lang: str) -> None:
    await place(page, scripted)
    await page.evaluate(
        """(lang) => {
          document.querySelector("main").append(Object.assign(document.createElement("notification-preferences"), { client, lang }));
        }""",
        lang,
    )
    in_app, by_mail, digest, at, thursday, category, set_ = {
        "en": ("News, Here", "News, E-mail", "What you missed, E-mail", "What you missed, at", "Thursday", "For", "Set"),
        "zh": ("News, 站内", "News, 邮件", "错过的通知, 邮件", "错过的通知, 时间", "星期四", "适用于", "设置"),
    }[lang]
    await expect(page.get_by_label(in_app)).to_have_value("digest")
    assert await page.get_by_label(in_app).locator("option").evaluate_all("all => all.map(({ value }) => value)") == ["on", "digest", "off"]
    await page.get_by_label(in_app).focus()
    await page.get_by_label(in_app).select_option("off")
    await expect(page.get_by_label(in_app)).to_have_value("off")
    await expect(page.get_by_label(in_app)).to_be_focused()
    await page.get_by_label(by_mail).select_option("off")
    await page.get_by_label(category, exact=True).select_option("news")
    await page.get_by_role("button", name=set_, exact=True).click()
    await expect(page.get_by_label(at)).to_be_disabled()
    await page.get_by_label(digest).select_option(label=thursday)
    await page.get_by_label(at).fill("18:30")
    await page.get_by_label(at).blur()
    await scripted.until(lambda: len(scripted.patches) == 5)
    await page.get_by_label(digest).select_option("daily")
    await scripted.until(lambda: len(scripted.patches) == 6)
    await page.get_by_label(digest).select_option("never")
    await scripted.until(lambda: len(scripted.patches) == 7)
    await expect(page.get_by_label(at)).to_be_disabled()
    await page.get_by_label(by_mail).select_option("digest")
    await scripted.until(lambda: len(scripted.patches) == 8)
    zones = {patch.pop("zone") for patch in scripted.patches[2:]}
    assert zones == {await page.evaluate("Intl.DateTimeFormat().resolvedOptions().timeZone")}
    assert scripted.patches == [
        {"categories": {"news": "off"}},
        {"channels": {"news/email": "off"}},
        {"quiet_categories": {"news": [{"from": "22:00", "to": "07:00"}]}},
        {"mail_digest": {"at": "08:00", "days": ["thu"]}},
        {"mail_digest": {"at": "18:30", "days": ["thu"]}},
        {"mail_digest": {"at": "18:30"}},
        {"mail_digest": None},
        {"channels": {"news/email": "digest"}, "mail_digest": {"at": "08:00"}},
    ]
    await page.add_style_tag(content=":root { color-scheme: light dark; background: Canvas; color: CanvasText }")
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert await violations(page) == []
    await page.set_viewport_size({"width": 360, "height": 700})
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
