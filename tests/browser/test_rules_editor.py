"""The admin page writes, tries and stores rules: the operator's, and a tenant's own. The requests for rules go to a real edge."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Page, Request, Route, expect

from tests.support.axe import violations
from tests.support.edge_world import edge_world
from tests.support.operator_answers import OperatorAnswers
from tests.support.page_console import complaints
from tests.support.scripted_engine import ScriptedEngine, token

OUTPUT = Path(__file__).parents[1] / "output"
pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_usual_rule_of_a_tenant_is_written_by_a_form_tried_and_stored(page: Page, scripted: ScriptedEngine) -> None:
    wrong = complaints(page)
    await OperatorAnswers().serve(page)
    async with edge_world(tenant_rules_max=5) as edge, edge.http("ops", scopes="operator") as operator:

        async def forward(route: Route, request: Request) -> None:
            headers = {name: value for name, value in request.headers.items() if name in ("if-match", "content-type")}
            path = request.url.removeprefix(scripted.url)
            answer = await operator.request(request.method, path, content=request.post_data or b"", headers=headers)
            await route.fulfill(status=answer.status_code, body=answer.text, content_type=answer.headers["content-type"])

        for path in ("rules", "tenant-rules"):
            await page.route(f"**/v1/{path}**", forward)
        async with edge.http("app", tenant="acme", scopes="publish") as publisher:
            await publisher.post("/v1/events", json={"type": "order.paid", "user": "ann", "data": {"number": 7}})
        await page.goto(f"{scripted.url}/admin#token={token('ops', scope='operator')}")
        await page.get_by_role("link", name="Rules", exact=True).click()
        await page.get_by_label("Tenant, for its own rules").fill("acme")
        await page.get_by_role("button", name="Show", exact=True).click()
        await expect(page).to_have_url(f"{scripted.url}/admin#rules/acme")
        editor = page.locator("#rules-editor")
        await editor.get_by_label("Name of the rule").fill("order-paid")
        await editor.get_by_label("Event").fill("order.paid")
        await editor.get_by_label("Title").fill('Order "{data.number}"')
        await editor.get_by_role("button", name="Add to the text").click()
        await editor.get_by_role("button", name="Store").click()
        note = editor.get_by_role("status")
        await expect(note).to_contain_text("a category is needed")
        assert edge.tenant_store("acme").stored.stamp == "", "nothing is stored"
        text = editor.get_by_label("Rules in TOML")
        await text.fill(f'{await text.input_value()}category = "touch"\n')
        await editor.get_by_role("button", name="Dry run of the text").click()
        await expect(page.locator(".shown")).to_contain_text("Of 1 recorded events 0 would come out as under no rules.")
        await editor.get_by_role("button", name="Store").click()
        await expect(note).to_have_text("Stored as version 1.")
        await expect(page.locator("#rules-list")).to_contain_text("own/order-paid")
        OUTPUT.mkdir(exist_ok=True)
        await page.screenshot(path=OUTPUT / "admin-tenant-rules.png", full_page=True)
        assert await violations(page) == []
        await page.evaluate("location.hash = 'rules'")
        await expect(page.locator("#rules-list")).to_contain_text("No rule is in force.")
        await expect(text).to_have_value("")
    assert [one for one in wrong if "422" not in one] == []


async def test_a_tenants_admin_sees_and_edits_the_rules_of_its_tenant_only(page: Page) -> None:
    wrong, asked = complaints(page), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    async with edge_world(tenant_rules_max=5, tenant_cap_max=20) as edge:
        await edge.once("app", tenant="acme", scopes="publish").post("/v1/events", json={"type": "order.paid", "user": "ann"})
        await page.goto(f"{edge.url()}/admin#token={edge.token('boss', scopes='admin', tenant='acme')}")
        await expect(page.locator("#pill")).to_have_text("Tenant acme")
        await expect(page.locator("#nav a")).to_have_text(["Rules"])
        await expect(page.get_by_label("Tenant, for its own rules")).to_be_hidden()
        editor = page.locator("#rules-editor")
        await editor.get_by_label("Rules in TOML").fill('[category.orders]\ncap = 5\nper = "1d"\n')
        for label, value in (("Name of the rule", "order-paid"), ("Event", "order.paid"), ("Title", "Paid"), ("Category", "orders")):
            await editor.get_by_label(label).fill(value)
        await editor.get_by_role("button", name="Add to the text").click()
        await editor.get_by_role("button", name="Dry run of the text").click()
        await expect(page.locator(".shown")).to_contain_text("Of 1 recorded events 0 would come out as under no rules.")
        await editor.get_by_role("button", name="Store").click()
        await expect(editor.get_by_role("status")).to_have_text("Stored as version 1.")
        await page.evaluate("location.hash = 'rules/other'")
        await expect(page.locator("#rules-list")).to_contain_text("own/order-paid")
        OUTPUT.mkdir(exist_ok=True)
        await page.screenshot(path=OUTPUT / "admin-of-a-tenant.png", full_page=True)
        assert await violations(page) == []
        assert list(edge.tenant_stores) == ["acme"]
    assert {urlsplit(url).path for url in asked if "/v1/" in url} == {"/v1/tenant-rules", "/v1/tenant-rules/dry-run"}
    assert wrong == []


async def test_a_text_of_rules_outlives_the_token(page: Page, scripted: ScriptedEngine) -> None:
    answers = OperatorAnswers()
    await answers.serve(page)
    await page.goto(f"{scripted.url}/admin#token={token('ops', scope='operator')}")
    await page.evaluate("location.hash = 'rules'")
    text = page.get_by_label("Rules in TOML")
    await text.fill("# hours of work")
    answers.failing["/v1/status"] = 401
    await expect(page.locator("#pill")).to_contain_text("No status")
    await page.wait_for_timeout(2500)  # longer than between two looks
    await expect(text).to_have_value("# hours of work")
    await text.fill("")
    await expect(page.locator("#sign-in-reason")).to_contain_text("expired")
