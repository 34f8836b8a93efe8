"""The demo page: against the scripted engine for what a real one does not do on request, and end to end against a real one."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic, time
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, expect

from tests.support.axe import violations
from tests.support.page_console import complaints
from tests.support.scripted_engine import ScriptedEngine, token
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

OUTPUT = Path(__file__).parents[1] / "output"
PHONE = {"width": 375, "height": 812}


async def open_demo(page: Page, url: str, with_token: str) -> None:
    """Open the demo link and wait until the page is connected."""
    await page.goto(f"{url}/#token={with_token}")
    await expect(page.locator("#pill")).to_have_attribute("data-state", "open")


async def publish(page: Page, *, kind: str = "post.liked", title: str | None = None, delay: str = "", to: str | None = None) -> None:
    """Fill in the form and send it."""
    await page.get_by_label("Type").fill(kind)
    if title is not None:
        await page.get_by_label("Title").fill(title)
    if to is not None:
        await page.get_by_label("To", exact=True).fill(to)
    await page.get_by_label("Delay in seconds").fill(delay)
    await page.get_by_role("button", name="Publish").click()


async def keep(page: Page, name: str) -> None:
    """A screenshot of the whole page, for people to look at."""
    OUTPUT.mkdir(exist_ok=True)
    await page.evaluate("scrollTo(0, 0)")
    await page.screenshot(path=OUTPUT / f"demo-{name}.png", full_page=True)


async def overflow(page: Page) -> int:
    """Pixels by which the page is wider than its window."""
    wide: int = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return wide


# -- against the scripted engine ---------------------------------------------------------------------------------------
async def test_without_a_token_the_page_says_how_to_get_one_and_takes_a_pasted_one(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(scripted.url)
    await expect(page.locator("#token-command")).to_have_text("engine token demo --scope connect --scope publish --scope operator")
    await page.get_by_label("Token", exact=True).fill("nonsense")
    await page.get_by_role("button", name="Open the demo").click()
    await expect(page.get_by_role("alert")).to_contain_text("This is not a token")
    await page.get_by_label("Token", exact=True).fill(f"{scripted.url}/#token={token()}")  # the whole link will do
    await page.get_by_role("button", name="Open the demo").click()
    await expect(page.locator("#pill")).to_have_attribute("data-state", "open")


async def test_the_token_leaves_the_address_bar_and_survives_a_reload(page: Page, scripted: ScriptedEngine) -> None:
    await open_demo(page, scripted.url, token())
    assert page.url == f"{scripted.url}/"
    await page.reload()
    await expect(page.locator("#pill")).to_have_attribute("data-state", "open")


async def test_a_refused_token_leads_back_to_the_sign_in_screen(page: Page, scripted: ScriptedEngine) -> None:
    await open_demo(page, scripted.url, token())
    scripted.cut(4401, "the token has expired")
    await expect(page.locator("#sign-in-reason")).to_contain_text("expired")
    await page.reload()
    await expect(page.locator("#sign-in")).to_be_visible()


async def test_what_a_message_says_never_becomes_markup(page: Page, scripted: ScriptedEngine) -> None:
    await open_demo(page, scripted.url, token())
    nasty = '<img src=x onerror="document.title=1"><b>bold</b>'
    scripted.publish(type=nasty, actor={"name": nasty}, data={"title": nasty, "body": nasty})
    await expect(page.locator(".message .title")).to_contain_text(nasty)
    await expect(page.locator(".message .text")).to_have_text(nasty)
    assert await page.locator(".message img, .message b").count() == 0


async def test_a_message_with_a_url_is_a_link_and_never_a_script(page: Page, scripted: ScriptedEngine) -> None:
    await open_demo(page, scripted.url, token())
    scripted.publish(type="a", data={"title": "absolute"}, url="https://example.com/orders/17?a=1#b")
    scripted.publish(type="a", data={"title": "path"}, url="/orders/17")
    scripted.publish(type="a", data={"title": "script"}, url="javascript:document.title=1")
    scripted.publish(type="a", data={"title": "none"})
    links = page.locator(".message .title a")
    await expect(links).to_have_text(["path", "absolute"])
    assert [await link.get_attribute("href") for link in await links.all()] == [
        f"{scripted.url}/orders/17",
        "https://example.com/orders/17?a=1#b",
    ]
    assert [await link.get_attribute("rel") for link in await links.all()] == ["noopener noreferrer"] * 2
    await expect(page.locator(".message .title", has_text="script")).to_be_visible()


async def test_the_page_shows_images_of_other_hosts(page: Page, scripted: ScriptedEngine) -> None:
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="900" height="300"/>'
    await page.route("http://images.example/*", lambda route: route.fulfill(content_type="image/svg+xml", body=svg))
    await open_demo(page, scripted.url, token())
    scripted.publish("with a picture", image="http://images.example/a.svg")
    await expect(page.locator(".message img")).to_have_js_property("naturalWidth", 900)


async def test_data_of_any_shape_can_be_shown(page: Page, scripted: ScriptedEngine) -> None:
    await open_demo(page, scripted.url, token())
    for data in (None, 7, "plain", ["a", 1], {"deep": {"er": True}}, {"title": 3, "body": False}):
        scripted.publish(data=data)
    await expect(page.locator(".message")).to_have_count(6)
    await expect(page.locator(".message").nth(1)).to_contain_text('{"deep":{"er":true}}')


async def test_nothing_is_acknowledged_before_the_user_says_so_when_so_chosen(page: Page, scripted: ScriptedEngine) -> None:
    await open_demo(page, scripted.url, token())
    await page.get_by_text("when I say so").click()
    scripted.publish("first")
    scripted.publish("second")
    await expect(page.locator(".message")).to_have_count(2)
    scripted.again(2)
    await expect(page.locator(".message").first).to_contain_text("attempt 2")
    assert sorted(scripted.pending) == [1, 2]
    await page.get_by_role("button", name="Acknowledge: second").click()
    await scripted.until(lambda: sorted(scripted.pending) == [1])
    await page.get_by_role("button", name="Acknowledge all").click()
    await scripted.until(lambda: not scripted.pending)
    await expect(page.get_by_role("button", name="Acknowledge all")).to_be_disabled()
    await expect(page.locator("#fact-cursor")).to_have_text("7-2")


async def test_everything_that_waits_is_acknowledged_at_once(page: Page, scripted: ScriptedEngine) -> None:
    await open_demo(page, scripted.url, token())
    await page.get_by_text("when I say so").click()
    for at in range(51):  # one more than are shown otherwise
        scripted.publish(f"{at}")
    await expect(page.locator(".message")).to_have_count(51)
    await page.get_by_role("button", name="Acknowledge all").click()
    await scripted.until(lambda: not scripted.pending)


async def test_a_summary_takes_the_place_of_the_pending_message_it_replaces(page: Page, scripted: ScriptedEngine) -> None:
    await open_demo(page, scripted.url, token())
    await page.get_by_text("when I say so").click()
    scripted.publish("bob likes your post")
    scripted.publish("another")
    cards = page.locator(".message")
    await expect(cards).to_have_count(2)
    scripted.publish(text="3 people like your post", count=3, replaces="m1")
    await expect(cards.nth(1)).to_contain_text("3 in one")
    await expect(cards.nth(1).locator(".text")).to_have_text("3 people like your post")
    await expect(cards).to_have_count(2)
    await scripted.until(lambda: sorted(scripted.pending) == [2, 3])
    await page.get_by_role("button", name="Acknowledge all").click()
    await scripted.until(lambda: not scripted.pending)
    scripted.publish("once more", count=4, replaces="m3")
    await expect(cards).to_have_count(3)  # what was acknowledged stays


async def test_what_was_acknowledged_elsewhere_is_shown_as_that(page: Page, scripted: ScriptedEngine) -> None:
    await open_demo(page, scripted.url, token())
    await page.get_by_text("when I say so").click()
    scripted.publish("elsewhere")
    await expect(page.locator(".message")).to_contain_text("not acknowledged yet")
    scripted.say({"type": "revoke", "ids": ["m1"]})
    await expect(page.locator(".message")).to_contain_text("acknowledged in the inbox, or on another device")


async def test_the_bell_has_the_inbox_that_the_engine_keeps_in_the_colours_of_the_page(page: Page, scripted: ScriptedEngine) -> None:
    scripted.keeps_inbox = True
    scripted.publish("before the page")
    scripted.pending.clear()
    await open_demo(page, scripted.url, token())
    badge = page.locator("#bell .badge")
    await expect(badge).to_have_text("1")
    await expect(page).to_have_title("(1) Engine")
    accent = "getComputedStyle(document.documentElement).getPropertyValue('--accent').trim()"
    assert await page.evaluate("getComputedStyle(document.querySelector('#bell')).getPropertyValue('--own-accent').trim()") == (
        await page.evaluate(accent)
    )
    await page.get_by_role("button", name="Notifications, 1 unread").click()
    await page.get_by_role("button", name="Mark as read: before the page").click()
    await expect(badge).to_be_hidden()
    await expect(page).to_have_title("Engine")
    await expect(page.locator(".message")).to_have_count(0)


async def test_what_is_delayed_is_on_its_way_and_what_is_cut_comes_back(page: Page, scripted: ScriptedEngine) -> None:
    await open_demo(page, scripted.url, token())
    on_the_way = page.locator("#fact-on-the-way")
    await page.get_by_text("3 s", exact=True).click()
    began_s = monotonic()
    await publish(page, title="slowly")
    await expect(page.locator(".message")).to_have_count(1)
    assert monotonic() - began_s >= 3
    await expect(on_the_way).to_have_text("0")
    await publish(page, title="first")
    await expect(on_the_way).to_have_text("1")
    await page.locator("#delay-ms").get_by_text("not at all").click()
    scripted.publish("second")
    await expect(page.locator(".message .title")).to_have_text(["second", "first", "slowly"])
    await page.get_by_text("nothing", exact=True).click()
    await expect(page.locator("#pill")).to_have_attribute("data-state", "reconnecting")
    await publish(page, title="into the void")
    await expect(on_the_way).to_have_text("1")
    await page.get_by_text("everything", exact=True).click()
    await expect(page.locator(".message").first).to_contain_text("into the void")
    await expect(on_the_way).to_have_text("0")
    ended = scripted.ended
    await page.get_by_role("button", name="Cut the connection").click()
    await scripted.until(lambda: scripted.ended > ended)
    await expect(page.locator("#pill")).to_have_attribute("data-state", "open")
    await expect(page.locator(".message")).to_have_count(4)


@pytest.mark.parametrize(("hours", "age"), [(-1, "now"), (1, "1 hr. ago")])
async def test_a_wrong_clock_neither_delays_nor_hurries(page: Page, scripted: ScriptedEngine, hours: int, age: str) -> None:
    await page.clock.set_system_time(time() + hours * 3600)
    await open_demo(page, scripted.url, token())
    await publish(page, delay="600")
    await expect(page.locator(".result")).to_contain_text("due in 10 min.")
    scripted.publish("one")
    await expect(page.locator(".message time")).to_contain_text(age)


async def test_a_channel_put_into_the_digest_keeps_its_times(page: Page, scripted: ScriptedEngine) -> None:
    scripted.mail_digest = {"at": "18:30"}
    await open_demo(page, scripted.url, token())
    await page.get_by_label("News, by mail").select_option("digest")
    await scripted.until(lambda: scripted.patches)
    assert scripted.patches == [{"channels": {"news/email": "digest"}}]


async def test_counters_say_so_when_the_token_may_not_see_them(page: Page, scripted: ScriptedEngine) -> None:
    scripted.status_code = 403
    await open_demo(page, scripted.url, token())
    await expect(page.locator("#stats-note")).to_have_text("Live counters need a token with the scope operator.")
    await publish(page, title="still works")
    await expect(page.locator(".message .title")).to_contain_text("still works")


async def test_the_form_says_what_is_wrong_before_anything_is_sent(page: Page, scripted: ScriptedEngine) -> None:
    await open_demo(page, scripted.url, token())
    await publish(page, kind="")
    await expect(page.locator(".result")).to_contain_text("not sent")
    await expect(page.get_by_label("Type")).to_have_attribute("aria-invalid", "true")
    await expect(page.get_by_label("Type")).to_be_focused()
    assert scripted.head == 0


async def test_a_refusal_names_the_member_that_is_wrong(page: Page, scripted: ScriptedEngine) -> None:
    refusal = {"status": 422, "detail": "$[0].type: no spaces", "errors": [{"index": 0, "path": "$[0].type", "detail": "no spaces"}]}
    await page.route("**/v1/notifications", lambda route: route.fulfill(status=422, json=refusal))
    await open_demo(page, scripted.url, token())
    await publish(page, kind="two words")
    await expect(page.locator(".result")).to_have_text("refused (422)type: no spaces")


async def test_the_command_shown_is_safe_to_paste(page: Page, scripted: ScriptedEngine) -> None:
    await open_demo(page, scripted.url, token())
    await page.get_by_label("Title").fill("it's $HOME; `rm`")
    await page.get_by_label("Text").fill("")
    command = r"""engine publish demo post.liked --data '{"title":"it'\''s $HOME; `rm`"}'"""
    await expect(page.locator("#publish-command")).to_have_text(command)


async def test_every_control_has_a_name(page: Page, scripted: ScriptedEngine) -> None:
    await open_demo(page, scripted.url, token())
    await expect(page.locator("#push-note")).to_contain_text("does not permit")
    nameless = await page.evaluate(
        """[...document.querySelectorAll("button, input, select, textarea, a")].filter((one) =>
          !(one.labels?.length || one.ariaLabel || one.textContent.trim())).map((one) => one.outerHTML)"""
    )
    assert nameless == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_text_has_contrast_enough_to_be_read(page: Page, scripted: ScriptedEngine, scheme: Any) -> None:
    """WCAG 2.2, success criterion 1.4.3: 4.5:1, against the nearest opaque background."""
    await page.emulate_media(color_scheme=scheme)
    await open_demo(page, scripted.url, token())
    for priority in ("high", "low"):
        scripted.publish("a message", priority=priority, attempt=2, actor="ada")
    await publish(page, delay="50")
    await expect(page.locator(".message")).to_have_count(2)
    await expect(page.locator(".result")).to_have_count(1)
    poor = await page.evaluate(
        """() => {
          const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
          const paint = (colors) => {
            canvas.clearRect(0, 0, 1, 1);
            for (const color of colors) { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); }
            return [...canvas.getImageData(0, 0, 1, 1).data];
          };
          const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
          const poor = [];
          const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
          for (let node = walker.nextNode(); node; node = walker.nextNode()) {
            const own = node.parentElement;
            if (!node.data.trim() || !own.checkVisibility() || own.closest(".unseen, noscript, .skip")) continue;
            const behind = [];
            for (let up = own; up; up = up.parentElement) behind.unshift(getComputedStyle(up).backgroundColor);
            const back = light(paint(["white", ...behind]));
            const front = light(paint(["white", ...behind, getComputedStyle(own).color]));
            const ratio = (Math.max(back, front) + 0.05) / (Math.min(back, front) + 0.05);
            if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${own.tagName}.${own.className} ${node.data.trim()}`);
          }
          return poor;
        }"""
    )
    assert poor == []


@pytest.mark.parametrize("size", [{"width": 1280, "height": 900}, PHONE], ids=["desktop", "phone"])
async def test_with_many_messages_nothing_follows_the_footer(page: Page, scripted: ScriptedEngine, size: Any) -> None:
    await page.set_viewport_size(size)
    await open_demo(page, scripted.url, token())
    for number in range(50):
        scripted.publish(f"message {number}", actor="ada")
    await expect(page.locator(".message")).to_have_count(50)
    await keep(page, f"full-{size['width']}")
    blank = await page.evaluate(
        "document.documentElement.scrollHeight - scrollY - document.querySelector('.foot').getBoundingClientRect().bottom"
    )
    assert blank < 60


async def test_an_arriving_notification_is_on_the_first_screen_of_a_phone(page: Page, scripted: ScriptedEngine) -> None:
    await page.set_viewport_size({"width": 390, "height": 844})
    await open_demo(page, scripted.url, token())
    scripted.publish("Mira liked your post")
    message = page.locator(".message")
    await expect(message).to_be_in_viewport(ratio=1)
    assert await page.evaluate("scrollY") == 0
    await keep(page, "phone-first-screen")


@pytest.mark.parametrize("size", [{"width": 1280, "height": 900}, PHONE], ids=["desktop", "phone"])
async def test_axe_finds_nothing_wrong(page: Page, scripted: ScriptedEngine, size: Any) -> None:
    await page.set_viewport_size(size)
    await page.goto(scripted.url)
    await expect(page.locator("#sign-in")).to_be_visible()
    assert await violations(page) == []
    await open_demo(page, scripted.url, token())
    await page.get_by_text("when I say so").click()
    scripted.publish("a message", priority="high", attempt=2, actor="ada")
    await publish(page, delay="50")
    await expect(page.locator(".message")).to_have_count(1)
    await expect(page.locator(".result")).to_have_count(1)
    assert await violations(page) == []


# -- end to end --------------------------------------------------------------------------------------------------------
USERS = iter(f"demo-page-{number}" for number in range(1000))


@pytest.fixture
def demo_token(engine: Any) -> str:
    """Of a user nobody else uses: the engine is shared by the whole session."""
    made: str = engine.token(next(USERS), "connect publish operator")
    return made


@pytest_asyncio.fixture(loop_scope="session")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    fresh = await browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    fresh.set_default_timeout(15_000)
    yield fresh
    await fresh.close()


async def number(page: Page, selector: str) -> float:
    digits = re.sub(r"[^0-9.]", "", await page.locator(selector).inner_text())
    return float(digits or 0)


async def test_what_is_published_in_the_form_arrives_and_the_counters_move(context: BrowserContext, engine: Any, demo_token: str) -> None:
    page = await context.new_page()
    wrong = complaints(page)
    await open_demo(page, engine.url, demo_token)
    await expect(page.locator("#stat-published")).to_have_text(re.compile(r"\d"))
    published, acknowledged = await number(page, "#stat-published"), await number(page, "#stat-acknowledged")
    await publish(page, title="Hello from the form")
    await expect(page.locator(".result")).to_contain_text("accepted")
    await expect(page.locator(".message")).to_contain_text("Hello from the form")
    await expect(page.locator(".message")).to_contain_text("acknowledged")
    await expect(page.locator("#bell .badge")).to_have_text("1")
    await page.get_by_role("button", name="Notifications, 1 unread").click()
    await keep(page, "bell")
    await page.get_by_role("button", name="Mark as read: Hello from the form").click()
    await expect(page.locator("#bell .badge")).to_be_hidden()
    await page.keyboard.press("Escape")
    counted = "([p, a]) => Number(document.querySelector('#stat-published').textContent.replace(/,/g, '')) >= p && "
    counted += "Number(document.querySelector('#stat-acknowledged').textContent.replace(/,/g, '')) >= a"
    await page.wait_for_function(counted, arg=[published + 1, acknowledged + 1])
    await expect(page.locator("#stat-p95")).to_have_text(re.compile(r"\d.* ms"))
    await expect(page.locator("#sub-p95")).to_have_text(re.compile(r"send to ACK \d.* ms"))
    assert await number(page, "#stat-connections") >= 1
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        await keep(page, scheme)
    assert wrong == []


async def test_a_delayed_notification_can_be_cancelled_and_another_arrives_late(
    context: BrowserContext, engine: Any, demo_token: str
) -> None:
    page = await context.new_page()
    await open_demo(page, engine.url, demo_token)
    await publish(page, title="never", delay="600")
    line = page.locator(".result").filter(has_text="scheduled")
    await expect(line).to_contain_text("due in 10 min.")
    await line.get_by_role("button", name="Cancel").click()
    await expect(line).to_contain_text("cancelled")
    await publish(page, title="a moment later", delay="0.5")
    await expect(page.locator(".message .title")).to_contain_text("a moment later")
    await expect(page.locator(".message")).to_have_count(1)


async def test_who_was_away_gets_a_digest_and_everything_missed_in_order(context: BrowserContext, engine: Any, demo_token: str) -> None:
    page = await context.new_page()
    await open_demo(page, engine.url, demo_token)
    await page.get_by_role("button", name="Send me three notifications").click()
    await expect(page.locator(".message")).to_have_count(3)
    await page.get_by_role("button", name="Leave for five seconds").click()
    await expect(page.locator("#pill")).to_have_attribute("data-state", "reconnecting")
    await page.get_by_text("no WebSocket").click()
    await expect(page.locator("#digest-count")).to_have_text("8 notifications, 4 lines")
    await expect(page.locator("#digest")).to_be_in_viewport(ratio=1)
    await expect(page.locator("#digest-lines li").first).to_contain_text("high")
    await expect(page.locator("#digest-lines")).to_contain_text("3 people liked “Ten rules for charts”")
    await expect(page.locator("#pill")).to_have_attribute("data-state", "open")
    await expect(page.locator("#fact-transport")).to_have_text("Server-sent events")  # and holds on return
    await expect(page.locator(".message")).to_have_count(11)
    await expect(page.locator(".message", has_text="caught up")).to_have_count(8)
    await expect(page.locator("#log")).to_contain_text("caught up with 8 missed")
    away = re.search(r"Away for ([\d.]+) s", await page.locator("#log").inner_text())
    assert away is not None
    assert float(away[1]) > 4.5, "what was chosen while away did not bring the user back"
    await expect(page.locator("#fact-on-the-way")).to_have_text("0")
    await keep(page, "digest")
    order = await page.locator(".message").evaluate_all("(items) => items.map((item) => Number(/#(\\d+)/.exec(item.textContent)[1]))")
    assert order == sorted(order, reverse=True)
    await expect(page.locator("#log")).to_contain_text("Resumed from the cursor by Server-sent events: ok")
    await page.get_by_role("button", name="Close").click()
    await expect(page.locator("#digest")).to_be_hidden()


async def test_what_the_user_does_not_want_is_not_delivered_and_the_page_says_why(
    context: BrowserContext, engine: Any, demo_token: str
) -> None:
    page = await context.new_page()
    wrong = complaints(page)
    await open_demo(page, engine.url, demo_token)
    await page.get_by_label("post.liked").select_option("off")
    await publish(page, kind="post.liked", title="unwanted")
    await expect(page.locator(".result").first).to_contain_text("suppressed")
    await page.reload()
    await expect(page.get_by_label("post.liked")).to_have_value("off")
    await page.get_by_label("post.liked").select_option("on")
    await page.get_by_role("button", name="Set quiet hours").click()
    await expect(page.locator("#quiet-now")).to_contain_text("Quiet from 22:00 to 07:30")
    await page.get_by_label("Quiet from").fill("07:30")
    await page.get_by_role("button", name="Set quiet hours").click()
    await expect(page.locator("#preferences-note")).to_contain_text("Not possible")
    await page.get_by_role("button", name="None", exact=True).click()
    await expect(page.locator("#quiet-now")).to_have_text("No quiet hours.")
    await publish(page, kind="post.liked", title="wanted again")
    await expect(page.locator(".message")).to_contain_text("wanted again")
    await keep(page, "preferences")
    assert [one for one in wrong if "422" not in one] == []


CHANGE_ALL = """() => {
  const ask = window.fetch;
  let now = 0;
  [window.most, window.answered] = [0, 0];
  window.fetch = (path, how) => {
    if (how?.method !== "PATCH") return ask(path, how);
    window.most = Math.max(window.most, ++now);
    return ask(path, how).finally(() => { now--; window.answered++; });
  };
  document.querySelectorAll("#choices select:enabled").forEach((one) => one.dispatchEvent(new Event("change", { bubbles: true })));
}"""


async def test_quick_choices_are_sent_one_after_the_other(context: BrowserContext, engine: Any, demo_token: str) -> None:
    page = await context.new_page()
    await open_demo(page, engine.url, demo_token)
    await expect(page.get_by_label("post.liked")).to_be_visible()
    choices = await page.locator("#choices select:enabled").count()
    await page.evaluate(CHANGE_ALL)
    await until(lambda: page.evaluate("window.answered"), holds=lambda answered: answered == choices)
    assert (await page.evaluate("window.most"), choices > 1) == (1, True)


@pytest.mark.parametrize(("choice", "name"), [("no WebSocket", "Server-sent events"), ("no stream", "Long polling")])
async def test_the_same_cursor_goes_on_over_what_the_network_lets_through(
    context: BrowserContext, engine: Any, demo_token: str, choice: str, name: str
) -> None:
    page = await context.new_page()
    await open_demo(page, engine.url, demo_token)
    await publish(page, title="over WebSocket")
    await expect(page.locator(".message")).to_have_count(1)
    await page.get_by_text(choice).click()
    await expect(page.locator("#fact-transport")).to_have_text(name)
    await publish(page, title=f"with {choice}")
    await expect(page.locator(".message").first).to_contain_text(f"with {choice}")
    await page.get_by_text("everything", exact=True).click()
    await expect(page.locator("#fact-transport")).to_have_text("WebSocket")
    await publish(page, title="and back")
    await expect(page.locator(".message").first).to_contain_text("and back")
    await expect(page.locator(".message")).to_have_count(3)


async def test_transports_change_at_once_however_often_the_network_does(context: BrowserContext, engine: Any, demo_token: str) -> None:
    page = await context.new_page()
    await open_demo(page, engine.url, demo_token)
    transport, log = page.locator("#fact-transport"), page.locator("#log")
    for choice, name in (("no WebSocket", "Server-sent events"), ("no stream", "Long polling"), ("everything", "Long polling")):
        await page.get_by_text(choice, exact=True).click()
        await expect(transport).to_have_text(name, timeout=3_000)  # a backoff would be 5 s by now
    await page.get_by_text("nothing", exact=True).click()
    await expect(log).to_contain_text("Connection lost: cut by this page")
    await page.get_by_text("everything", exact=True).click()
    await expect(page.locator("#pill")).to_have_attribute("data-state", "open", timeout=3_000)
    await expect(log).to_contain_text("Not connected: page or network is back; next attempt at once")
    await expect(log).not_to_contain_text("Connection lost: page or network is back")


async def test_a_second_device_receives_the_same(context: BrowserContext, engine: Any, demo_token: str) -> None:
    page = await context.new_page()
    await open_demo(page, engine.url, demo_token)
    async with context.expect_page() as opening:
        await page.get_by_role("button", name="Open me on a second device").click()
    second = await opening.value
    await expect(second.locator("#pill")).to_have_attribute("data-state", "open")
    assert await second.locator("#fact-device").inner_text() != await page.locator("#fact-device").inner_text()
    await publish(page, title="for both")
    await expect(page.locator(".message .title")).to_contain_text("for both")
    await expect(second.locator(".message .title")).to_contain_text("for both")


async def test_the_page_fits_a_phone(context: BrowserContext, engine: Any, demo_token: str) -> None:
    page = await context.new_page()
    wrong = complaints(page)
    await page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    await page.goto(engine.url)
    assert await overflow(page) == 0
    await open_demo(page, engine.url, demo_token)
    await publish(page, title="An unbreakable" + "word" * 40)
    await publish(page, kind="message.direct", title="Ada sent you a message")
    await expect(page.locator(".message")).to_have_count(2)
    await keep(page, "phone")
    assert await overflow(page) == 0
    assert wrong == []


async def test_the_inbox_of_a_real_engine_is_shown_by_the_bell_and_outlives_the_page(page: Page, engine: Any) -> None:
    user, tenant = next(USERS), "bell"  # where no other test has broadcast anything
    place = """async (token) => {
      const { NotifyClient } = await import("/client.js");
      await import("/client/elements/index.js");
      document.body.innerHTML = "<main><notification-bell></notification-bell></main>";
      document.querySelector("notification-bell").client = new NotifyClient({ token, counts: true });
    }"""
    await engine.publish({"user": user, "type": "post.liked", "data": {"title": "first"}}, tenant=tenant)
    await page.goto(engine.url)
    await page.evaluate(place, engine.token(user, tenant=tenant))  # the counts precede the message, which must not be counted twice
    await engine.publish({"user": user, "type": "post.liked", "data": {"title": "second"}}, tenant=tenant)
    await expect(page.locator(".badge")).to_have_text("2")
    await page.get_by_role("button", name="Notifications, 2 unread").click()
    await page.get_by_role("button", name="Mark as read: first").click()
    await expect(page.locator(".badge")).to_have_text("1")
    await page.goto(f"{engine.url}/openapi.json")  # another page: nothing is left of this one
    await page.goto(engine.url)
    await page.evaluate(place, engine.token(user, tenant=tenant))
    await page.get_by_role("button", name="Notifications, 1 unread").click()
    await expect(page.get_by_role("listitem")).to_have_count(2)
    await page.get_by_role("button", name="Archive: second").click()
    await expect(page.get_by_role("listitem")).to_have_count(1)
    await expect(page.get_by_role("button", name="Notifications, none unread")).to_be_visible()
