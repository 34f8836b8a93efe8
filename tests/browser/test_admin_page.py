"""The admin page: with answers that have everything going on, and with a real engine."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from tests.support.axe import violations
from tests.support.operator_answers import NASTY, OperatorAnswers, letters
from tests.support.page_console import complaints
from tests.support.scripted_engine import ScriptedEngine, token

pytestmark = pytest.mark.asyncio(loop_scope="session")

OUTPUT = Path(__file__).parents[1] / "output"
PHONE = {"width": 375, "height": 812}
DESKTOP = {"width": 1360, "height": 900}
VIEWS = {
    "overview": "#topology tbody tr",
    "users/default/ann": "#user-history li",
    "dead-letters": "#dead-letters tbody tr",
    "problems": "#quarantine tbody tr",
    "rules": "#rules-versions tbody tr",
    "tenants": "#topics tbody tr",
}
"""By their addresses: what is there once a view is complete."""


async def open_admin(page: Page, url: str, *, scope: str = "operator") -> None:
    await page.goto(f"{url}/admin#token={token('ops', scope=scope)}")


async def see(page: Page, view: str) -> None:
    """Go to a view, and wait until it is complete."""
    await page.evaluate("(view) => { location.hash = view; }", view)
    await expect(page.locator(VIEWS[view]).first).to_be_visible()


async def answer_late(page: Page, held: Route, **answer: Any) -> None:
    """Answer a request that was held; returns once the page has read the answer."""
    async with page.expect_response(held.request.url):
        await held.fulfill(**answer)
    await page.evaluate("fetch('/v1/status').then((answer) => answer.text())")  # the page has read the late one by then


async def keep(page: Page, name: str) -> None:
    """A screenshot of the whole page, for people to look at."""
    OUTPUT.mkdir(exist_ok=True)
    await page.evaluate("scrollTo(0, 0)")
    await page.screenshot(path=OUTPUT / f"admin-{name}.png", full_page=True)


async def test_a_token_of_another_scope_is_refused_with_the_command_that_makes_the_right_one(page: Page, scripted: ScriptedEngine) -> None:
    answers = OperatorAnswers()
    await answers.serve(page)
    await open_admin(page, scripted.url, scope="connect publish")
    await expect(page.locator("#sign-in-reason")).to_contain_text("neither the scope operator nor admin")
    await expect(page.locator("#token-command")).to_have_text("engine token admin --scope operator")
    assert answers.asked == []
    await page.get_by_label("Token", exact=True).fill(f"{scripted.url}/admin#token={token(scope='operator')}")  # the whole link will do
    await page.get_by_role("button", name="Open").click()
    await expect(page.locator("#pill")).to_contain_text("Ready, version 1.2.3")
    assert page.url == f"{scripted.url}/admin"
    assert not any("token" in address for address in answers.asked)
    await page.reload()
    await expect(page.locator("#pill")).to_contain_text("Ready")
    answers.failing["/v1/status"] = 401
    await expect(page.locator("#sign-in-reason")).to_contain_text("expired")


async def test_what_users_wrote_is_text_in_every_view_and_axe_finds_nothing_wrong(page: Page, scripted: ScriptedEngine) -> None:
    wrong = complaints(page)
    await OperatorAnswers().serve(page)
    await page.emulate_media(color_scheme="light")
    await page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
    await open_admin(page, scripted.url)
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        await page.set_viewport_size(DESKTOP if scheme == "light" else PHONE)  # type: ignore[arg-type]
        for view in VIEWS:
            await see(page, view)
            await keep(page, f"{view.partition('/')[0]}-{scheme}")
            assert await violations(page) == []
            assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (view, scheme)
    assert await page.locator("#views img, #views b").count() == 0
    await expect(page.locator("#view-tenants")).to_contain_text(NASTY)
    assert await page.title() == "Tenants · Engine admin"
    assert wrong == []


async def test_the_chart_of_the_last_hour_is_read_with_the_keyboard_and_as_a_table(page: Page, scripted: ScriptedEngine) -> None:
    answers = OperatorAnswers()
    await answers.serve(page)
    await open_admin(page, scripted.url)
    chart = page.locator(".chart").first
    await expect(chart.get_by_role("img")).to_have_attribute(
        "aria-label", re.compile(r"Published between 40.* and 52.* /s; Delivered between 50 /s")
    )
    slider = chart.get_by_role("slider", name="Messages: moment")
    await slider.focus()
    newest = await slider.get_attribute("aria-valuetext")
    await slider.press("ArrowLeft")
    await expect(chart.locator(".when")).not_to_have_text("now")
    assert await slider.get_attribute("aria-valuetext") != newest
    await chart.get_by_text("As a table").click()
    await expect(chart.locator("tbody tr")).to_have_count(12)
    await expect(chart.locator("tbody td").nth(1)).to_have_text("50 /s")
    gaps = await chart.locator("path.series").first.get_attribute("d")
    assert gaps is not None
    assert gaps.count("M") == 2, "no line across the time in which nobody counted"


async def test_chosen_dead_letters_are_redriven_and_dropped(page: Page, scripted: ScriptedEngine) -> None:
    answers = OperatorAnswers()
    await answers.serve(page)
    await open_admin(page, scripted.url)
    await see(page, "dead-letters")
    lines, note = page.locator("#dead-letters tbody tr"), page.locator("#view-dead-letters [role=status]")
    redrive = page.get_by_role("button", name="Redrive chosen")
    await expect(redrive).to_be_disabled()
    await lines.first.get_by_text("Show").click()
    await expect(lines.first.locator("pre")).to_contain_text("<b>bold</b>")
    await lines.first.get_by_role("checkbox").check()
    await redrive.click()
    await expect(note).to_have_text("Redriven: 1 accepted.")
    await expect(lines).to_have_count(2)
    await page.get_by_role("checkbox", name="Choose all").check()
    answers.failing["/v1/dead-letters/drop"] = 503
    await page.get_by_role("button", name="Drop chosen").click()
    await expect(note).to_have_text("Nothing was deleted.")  # the question was answered with no
    page.on("dialog", lambda dialog: dialog.accept())
    await page.get_by_role("checkbox", name="Choose all").check()
    await page.get_by_role("button", name="Drop chosen").click()
    await expect(note).to_contain_text("not now")
    answers.failing.clear()
    await page.get_by_role("button", name="Drop chosen").click()
    await expect(note).to_have_text("Dropped 2.")
    assert [body["letters"] for body in answers.bodies] == [["3-0"], ["2-0", "1-0"], ["2-0", "1-0"]]
    await expect(page.locator("#dead-letters")).to_have_text("None.")


async def test_many_dead_letters_are_dropped_in_pieces_of_the_tenant_shown(page: Page, scripted: ScriptedEngine) -> None:
    answers = OperatorAnswers()
    answers.letters = letters(120)
    await answers.serve(page)
    page.on("dialog", lambda dialog: dialog.accept())
    await open_admin(page, scripted.url)
    await see(page, "dead-letters")
    await page.get_by_role("checkbox", name="Choose all").check()
    await page.get_by_role("textbox", name="Tenant").fill("other")
    await page.get_by_role("button", name="Drop chosen").click()
    await expect(page.locator("#view-dead-letters [role=status]")).to_have_text("Dropped 120.")
    assert [len(body["letters"]) for body in answers.bodies] == [50, 50, 20]
    assert [asked for asked in answers.asked if "/drop" in asked] == 3 * ["POST /v1/dead-letters/drop?tenant=default"]
    assert "tenant=other" not in "".join(answers.asked)


async def test_a_version_of_the_rules_is_tried_staged_and_rolled_back(page: Page, scripted: ScriptedEngine) -> None:
    answers = OperatorAnswers()
    await answers.serve(page)
    await open_admin(page, scripted.url)
    await see(page, "rules")
    about, note = page.locator("#rules-about"), page.locator("#view-rules [role=status]").first
    await expect(about).to_contain_text("version 2")
    await expect(page.locator("#rules-edges")).to_contain_text("line 3")
    await page.get_by_role("button", name="Text of version 3").click()
    await expect(page.locator(".shown pre")).to_have_text(f"# {NASTY}")
    await page.get_by_role("button", name="Dry run of version 3").click()
    await expect(page.locator(".shown")).to_contain_text("Of 9 recorded events 8 would come out as under version 2.")
    await page.get_by_label("Share of the users for version 3").select_option("0.5")
    await page.get_by_role("button", name="Stage version 3").click()
    await expect(note).to_have_text("version 3 is in force for 50 %.")
    await expect(about).to_contain_text("version 3 for 50 %")
    answers.failing["/v1/rules/rollback"] = 412  # somebody else was faster
    await page.get_by_role("button", name="Roll back the newest step").click()
    await expect(note).to_contain_text("not now")
    answers.failing.clear()
    await page.get_by_role("button", name="Roll back the newest step").click()
    await expect(note).to_have_text("Rolled back: version 2 is in force.")
    await expect(about).to_contain_text("nothing")
    assert answers.bodies == [{"version": 3, "share": 0.5}, {}, {}]


# -- end to end --------------------------------------------------------------------------------------------------------
async def test_the_world_of_a_user_of_a_real_engine(page: Page, engine: Any) -> None:
    user, wrong = "admin-page/<b>", complaints(page)
    await engine.publish(
        {"user": user, "type": "post.liked", "id": "liked-1", "data": {"title": "first"}},
        {"user": user, "type": "reminder.due", "delay": 600},
    )
    await page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
    await page.goto(f"{engine.url}/admin#token={engine.token('ops', 'operator')}")
    for part in ("edge-0", "shard-0", "shard-1", "scheduler-0", "controller", "redis"):
        await expect(page.locator("#topology").get_by_role("rowheader", name=part, exact=True)).to_be_visible()
    await expect(page.locator(".chart").first.get_by_role("img")).to_have_attribute("aria-label", re.compile("Published between"))
    await page.get_by_role("link", name="Users").click()
    await page.locator("#view-users").get_by_label("User", exact=True).fill(user)
    await page.get_by_role("button", name="Look").click()
    await expect(page.locator("#user-messages")).to_contain_text("post.liked")
    await expect(page.locator("#user-timers")).to_contain_text("reminder.due")
    await expect(page.locator("#user-about")).to_contain_text("offline")
    await page.get_by_role("button", name="What became of liked-1").click()
    await expect(page.locator("#user-history").get_by_role("status")).to_contain_text("State: pending")
    await page.get_by_role("button", name="Explain").click()
    await expect(page.locator("#user-explain .answer")).to_contain_text("deliver")
    async with engine.connect(user) as socket:
        await engine.receive(socket, "messages")
        await page.get_by_role("button", name="Look").click()
        await expect(page.locator("#user-about")).to_contain_text("connected")
        await expect(page.locator("#user-connections tbody tr")).to_have_count(1)
        await page.get_by_role("link", name="Problems").click()
        await expect(page.locator("#slow-clients")).to_contain_text(user)
    await page.get_by_role("link", name="Rules").click()
    await expect(page.locator("#rules-about")).to_contain_text("the rules file")
    await expect(page.locator("#rules-list")).to_contain_text("confirm")
    await page.get_by_role("link", name="Tenants").click()
    await expect(page.locator("#tenant-list")).to_contain_text("default")
    await keep(page, "real-tenants")
    assert wrong == []


async def test_a_busy_user_is_shown_in_lists_of_ten_with_short_ids(page: Page, scripted: ScriptedEngine) -> None:
    wrong, answers = complaints(page), OperatorAnswers()
    answers.busy = True
    await answers.serve(page)
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.emulate_media(color_scheme="light")
    await page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
    await open_admin(page, scripted.url)
    await see(page, "users/default/ann")
    lines = page.locator("#user-timers tbody tr")
    await expect(lines).to_have_count(10)
    for shown in (20, 30, 40, 50):
        await page.locator("#user-timers").get_by_role("button", name="more of 50").click()
        await expect(lines).to_have_count(shown)
    await expect(page.locator("#user-timers").get_by_role("button", name="more of 50")).to_be_hidden()
    await see(page, "overview")
    await see(page, "users/default/ann")
    copied = page.locator("#user-connections tbody tr").first.get_by_role("button")
    await expect(copied).to_have_text("e0-0…0000000")
    await copied.click()
    await expect(copied).to_have_text("Copied")
    assert await page.evaluate("navigator.clipboard.readText()") == "e0-01a0bc5e-7d3f-7abc-9def-000000000000"
    await expect(copied).to_have_text("e0-0…0000000")
    await keep(page, "busy-user")
    assert await page.evaluate("document.documentElement.scrollHeight") < 2900
    assert await violations(page) == []
    assert wrong == []


async def test_what_needs_attention_leads_to_its_place(page: Page, scripted: ScriptedEngine) -> None:
    await OperatorAnswers().serve(page)
    await open_admin(page, scripted.url)
    alerts = page.locator("#attention li")
    for what, why, place in (
        ("quarantine", "2 stored records could not be read", "#problems"),
        ("dead letters", "3 messages and actions to redrive or drop", "#dead-letters"),
        ("clients", "1 client did not acknowledge any try", "#problems"),
        ("edge-1, rules", "line 3", "#rules"),
        ("shard-1", "does not answer", "#topology"),
    ):
        line = alerts.filter(has=page.get_by_role("link", name=what, exact=True))
        await expect(line).to_contain_text(why)
        await expect(line.get_by_role("link")).to_have_attribute("href", place)
    await alerts.get_by_role("link", name="clients").click()
    await expect(page.locator("#view-problems")).to_be_visible()


async def test_the_keyboard_stays_where_it_is_when_figures_change(page: Page, scripted: ScriptedEngine) -> None:
    await OperatorAnswers().serve(page)
    await open_admin(page, scripted.url)
    alert, region = page.locator("#attention").get_by_role("link", name="clients"), page.locator("#topology").get_by_role("group")
    for place in (alert, region):
        await place.focus()
        await page.wait_for_timeout(2500)  # longer than between two looks
        await expect(place).to_be_focused()


async def test_the_keyboard_stays_on_a_button_that_has_done_its_work(page: Page, scripted: ScriptedEngine) -> None:
    await OperatorAnswers().serve(page)
    await open_admin(page, scripted.url)
    await page.evaluate("location.hash = 'users'")
    await page.locator("#user-name").fill("ann")
    look = page.get_by_role("button", name="Look")
    await look.focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("#user-about")).to_be_visible()
    await expect(look).to_be_enabled()
    await expect(look).to_be_focused()


@pytest.mark.parametrize(
    ("view", "path", "field"),
    [("dead-letters", "dead-letters", "#dead-tenant"), ("rules", "tenant-rules", "#rules-tenant"), ("tenants", "topics", "#topic-tenant")],
)
async def test_a_late_answer_of_another_tenant_is_not_shown(page: Page, scripted: ScriptedEngine, view: str, path: str, field: str) -> None:
    await OperatorAnswers().serve(page)
    held: list[Route] = []

    def answer_of(tenant: str) -> dict[str, Any]:
        letter = {"letter": "1-0", "id": "d1", "at": 1, "user": f"user of {tenant}", "type": "t", "attempts": 1, "reason": ""}
        version = {"version": 1, "state": "stored", "at": 1, "by": f"user of {tenant}", "rules": 1, "bytes": 1}
        about = {"revision": tenant, "source": "none", "active": 0, "staged": None, "changes": [], "edges": [], "rules": []}
        topics = [{"topic": f"user of {tenant}", "subscribers": 1}]
        return {"tenant": tenant, "total": 1, "dead_letters": [letter], **about, "versions": [version], "topics": topics}

    async def answer(route: Route) -> None:
        if "tenant=slow" in route.request.url:
            held.append(route)
        else:
            await route.fulfill(json=answer_of("fast"))

    await page.route(f"**/v1/{path}?**", answer)
    await page.goto(f"{scripted.url}/admin#token={token('ops', scope='operator')}")
    await see(page, view)
    shown = page.locator(f"#view-{view}")
    for tenant in ("slow", "fast"):
        await page.locator(field).fill(tenant)
        await shown.get_by_role("button", name="Show", exact=True).click()
        if tenant == "slow":
            await scripted.until(lambda: bool(held))
    await expect(shown).to_contain_text("user of fast")
    await answer_late(page, held[0], json=answer_of("slow"))
    await expect(shown).to_contain_text("user of fast")
    await expect(shown).not_to_contain_text("user of slow")


async def test_a_late_text_of_another_tenants_rules_is_not_edited(page: Page, scripted: ScriptedEngine) -> None:
    await OperatorAnswers().serve(page)
    held: list[Route] = []

    async def answer(route: Route) -> None:
        if "/versions/" in route.request.url:
            held.append(route)
        else:
            about = {"revision": "r", "source": "none", "active": 0, "staged": None, "changes": [], "edges": [], "rules": []}
            version = {"version": 1, "state": "stored", "at": 1, "by": route.request.url, "rules": 1, "bytes": 1}
            await route.fulfill(json={**about, "versions": [version]})

    await page.route("**/v1/tenant-rules**", answer)
    await open_admin(page, scripted.url)
    await page.evaluate("location.hash = 'rules/slow'")
    await page.get_by_role("button", name="Edit of version 1").click()
    await scripted.until(lambda: bool(held))
    await page.evaluate("location.hash = 'rules/fast'")
    await expect(page.locator("#rules-versions")).to_contain_text("tenant=fast")
    await answer_late(page, held[0], body="# rules of slow")
    await expect(page.locator("#rules-text")).to_have_value("")


async def test_a_late_explanation_of_another_user_is_not_shown(page: Page, scripted: ScriptedEngine) -> None:
    await OperatorAnswers().serve(page)
    held: list[Route] = []

    async def hold(route: Route) -> None:
        held.append(route)

    await page.route("**/v1/explain?**", hold)
    await open_admin(page, scripted.url)
    await page.evaluate("location.hash = 'users/default/ann'")
    await page.get_by_role("button", name="Explain").click()
    await scripted.until(lambda: bool(held))
    await page.evaluate("location.hash = 'users/default/bob'")
    await expect(page.locator("#user-explain")).to_contain_text("For bob")
    await answer_late(page, held[0], json={"results": [{"decision": "deliver", "reasons": [{"code": "muted", "detail": "by ann"}]}]})
    await expect(page.locator("#user-explain")).not_to_contain_text("by ann")


async def test_letters_are_dropped_of_the_tenant_of_the_first_piece(page: Page, scripted: ScriptedEngine) -> None:
    answers = OperatorAnswers()
    answers.letters = letters(60)
    await answers.serve(page)
    held: list[Route] = []

    async def drop(route: Route) -> None:
        if held:
            await route.fallback()
        held.append(route)

    await page.route("**/v1/dead-letters/drop?**", drop)
    page.on("dialog", lambda dialog: dialog.accept())
    await open_admin(page, scripted.url)
    await see(page, "dead-letters")
    await page.get_by_role("checkbox", name="Choose all").check()
    await page.get_by_role("button", name="Drop chosen").click()
    await scripted.until(lambda: bool(held))
    async with page.expect_response("**/v1/dead-letters?tenant=other**"):
        await page.get_by_role("textbox", name="Tenant").fill("other")
        await page.locator("#view-dead-letters").get_by_role("button", name="Show", exact=True).click()
    await expect(page.locator("#dead-letters tbody a").first).to_have_attribute("href", re.compile("users/other/"))
    await held[0].fallback()
    await scripted.until(lambda: len(held) == 2)
    assert [one.request.url.partition("?")[2] for one in held] == ["tenant=default"] * 2


async def test_two_clicks_show_older_dead_letters_once(page: Page, scripted: ScriptedEngine) -> None:
    answers = OperatorAnswers()
    await answers.serve(page)

    async def pages(route: Route) -> None:
        later = "after=" in route.request.url
        if later:
            await asyncio.sleep(0.3)
        found = answers.letters[1:] if later else answers.letters[:1]
        await route.fulfill(json={"tenant": "default", "total": 3, "dead_letters": found, **({} if later else {"after": "3-0"})})

    await page.route("**/v1/dead-letters?**", pages)
    await open_admin(page, scripted.url)
    await see(page, "dead-letters")
    await page.get_by_role("button", name="Older ones").dblclick()
    await expect(page.get_by_role("button", name="Older ones")).to_be_hidden()
    await page.wait_for_timeout(500)
    await expect(page.locator("#dead-letters tbody tr")).to_have_count(3)


async def test_the_timeline_has_no_entries_of_another_user(page: Page, scripted: ScriptedEngine) -> None:
    await OperatorAnswers().serve(page)
    asked, chosen = asyncio.Event(), asyncio.Event()

    async def histories(route: Route) -> None:
        name = "ann" if "user=ann" in route.request.url else "bob"
        if name == "ann":
            asked.set()
            await chosen.wait()
        await route.fulfill(json={"history": [{"at": 1, "event": "sent", "reason": f"of {name}"}]})

    await page.route("**/v1/history?**", histories)
    await open_admin(page, scripted.url)
    await page.evaluate("location.hash = 'users/default/ann'")
    await asked.wait()
    await page.evaluate("location.hash = 'users/default/bob'")
    await expect(page.locator("#user-history li")).to_contain_text(["of bob"])
    async with page.expect_response("**/v1/history?**"):
        chosen.set()
    await page.evaluate("fetch('/blank').then((response) => response.text())")
    await expect(page.locator("#user-history li")).to_have_count(1)


async def test_a_copy_without_a_clipboard_is_said(page: Page, scripted: ScriptedEngine) -> None:
    await page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    answers = OperatorAnswers()
    answers.busy = True
    await answers.serve(page)
    await open_admin(page, scripted.url)
    await page.evaluate("location.hash = 'users/default/ann'")
    copy = page.locator("#user-messages tbody button.id").first
    await copy.click()
    await expect(copy).to_have_text("Not copied")


async def test_rates_are_counted_between_two_statuses(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/blank")
    shown = await page.evaluate(
        """async () => {
          const { LoadCards } = await import("/admin/load_cards.js");
          const cards = new LoadCards(), totals = { published: 5 };
          for (const _ of [1, 2]) cards.show({ totals }); // the view is opened again
          return cards.element.querySelectorAll(".figure")[1].textContent.charCodeAt(0);
        }"""
    )
    assert shown == 0x2013, "a dash: nothing is known yet"
