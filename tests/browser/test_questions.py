"""Questions in the inbox and on the demo page: answered by click and by keyboard, and what a later answer is told."""

from __future__ import annotations

import time
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.support.axe import violations
from tests.support.client_page import place
from tests.support.scripted_engine import ScriptedEngine, token

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHOICES = [{"id": "yes", "label": "Approve", "style": "primary"}, {"id": "no", "label": "Deny", "style": "danger"}]
OUTCOME = {"answer": "no", "label": "Deny", "by": "ann", "at": 1}


def ask(scripted: ScriptedEngine, title: str = "Deploy?", *, in_s: float = 600, **members: Any) -> None:
    question = {"answers": CHOICES, "deadline": int((time.time() + in_s) * 1000), **members}
    scripted.publish(title, ask=question)


async def test_a_question_is_answered_by_keyboard_and_shows_the_outcome(page: Page, scripted: ScriptedEngine) -> None:
    scripted.keeps_inbox = True
    await place(page, scripted)
    ask(scripted)
    await page.get_by_role("button", name="Notifications").click()
    group = page.get_by_role("group", name="Deploy?")
    await expect(group.get_by_role("button")).to_have_text(["Approve", "Deny"])
    assert await violations(page) == []
    deny = page.get_by_role("button", name="Deny: Deploy?")
    await deny.focus()
    scripted.publish("another")  # it draws the list anew
    await expect(page.get_by_role("listitem")).to_have_count(2)
    await expect(deny).to_be_focused()
    await page.keyboard.press("Enter")
    await scripted.until(lambda: scripted.answers)
    assert scripted.answers == [("m1", {"answer": "no", "text": "", "topic": ""})]
    assert [frame["message"] for frame in scripted.frames if frame["type"] == "answer"] == ["m1"], "by the open WebSocket"
    scripted.mark("archive", ids=["m1"])
    scripted.publish("Deploy?", replaces="m1", answer=OUTCOME)
    await expect(page.get_by_text("Deny (ann)")).to_be_visible()
    await expect(deny).to_have_count(0)
    await expect(page.get_by_role("listitem")).to_have_count(2)


async def test_words_that_are_being_typed_survive_another_message(page: Page, scripted: ScriptedEngine) -> None:
    await place(page, scripted)
    ask(scripted, answers=[], text=True)
    await page.get_by_role("button", name="Notifications").click()
    words = page.get_by_label("In your words: Deploy?")
    await words.fill("not a Friday")
    for key in ["Home", *["ArrowRight"] * len("not ")]:
        await page.keyboard.press(key)
    scripted.publish("another")
    await expect(page.get_by_role("listitem")).to_have_count(2)
    await expect(words).to_be_focused()
    await page.keyboard.type("on ")
    await page.keyboard.press("Enter")
    await scripted.until(lambda: scripted.answers)
    assert scripted.answers == [("m1", {"answer": None, "text": "not on a Friday", "topic": ""})]


async def test_words_of_an_input_method_survive_another_message(page: Page, scripted: ScriptedEngine) -> None:
    await place(page, scripted)
    ask(scripted, answers=[], text=True)
    await page.get_by_role("button", name="Notifications").click()
    words = page.get_by_label("In your words: Deploy?")
    await words.focus()
    keyboard = await page.context.new_cdp_session(page)
    await keyboard.send("Input.imeSetComposition", {"text": "ni", "selectionStart": 2, "selectionEnd": 2})
    await words.dispatch_event("keydown", {"key": "Enter", "isComposing": True, "bubbles": True})  # it chooses, and sends nothing
    scripted.publish("another")
    await expect(page.locator(".badge")).to_have_text("2")
    await keyboard.send("Input.insertText", {"text": "\u4f60"})
    await expect(page.get_by_role("listitem")).to_have_count(2)
    await expect(words).to_have_value("\u4f60")
    await expect(words).to_be_focused()
    assert scripted.answers == []
    await page.keyboard.press("Enter")
    await scripted.until(lambda: scripted.answers)


async def test_escape_in_the_field_of_a_question_closes_the_bell(page: Page, scripted: ScriptedEngine) -> None:
    await place(page, scripted)
    ask(scripted, answers=[], text=True)
    bell = page.get_by_role("button", name="Notifications")
    await bell.click()
    await page.get_by_label("In your words: Deploy?").focus()
    await page.keyboard.press("Escape")
    await expect(bell).to_have_attribute("aria-expanded", "false")


async def test_an_answer_whose_websocket_is_cut_goes_by_a_request(page: Page, scripted: ScriptedEngine) -> None:
    scripted.takes_frames = False
    await place(page, scripted)
    ask(scripted)
    await page.get_by_role("button", name="Notifications").click()
    await page.get_by_role("button", name="Approve: Deploy?").click()
    await scripted.until(lambda: [frame for frame in scripted.frames if frame["type"] == "answer"])
    assert scripted.answers == []
    scripted.cut()
    await scripted.until(lambda: scripted.answers)
    assert scripted.answers == [("m1", {"answer": "yes", "text": "", "topic": ""})]


async def test_an_answer_that_comes_too_late_says_who_was_first(page: Page, scripted: ScriptedEngine) -> None:
    scripted.answered_by = "ann"
    await place(page, scripted)
    ask(scripted)
    await page.get_by_role("button", name="Notifications").click()
    await page.get_by_role("button", name="Approve: Deploy?").click()
    await expect(page.get_by_role("alert")).to_have_text("Too late: it was answered by ann: Deny")


async def test_a_question_that_is_withdrawn_loses_its_buttons_and_says_so(page: Page, scripted: ScriptedEngine) -> None:
    await place(page, scripted)
    ask(scripted)
    await page.get_by_role("button", name="Notifications").click()
    await expect(page.get_by_role("button", name="Deny: Deploy?")).to_be_visible()
    scripted.publish("Deploy?", replaces="m1", answer={"answer": None, "by": None, "at": 1, "reason": "withdrawn"})
    await expect(page.get_by_text("Withdrawn", exact=True)).to_be_visible()
    await expect(page.get_by_role("group", name="Deploy?")).to_have_count(0)


async def test_a_question_is_open_though_the_clock_of_the_page_is_ahead(page: Page, scripted: ScriptedEngine) -> None:
    await place(page, scripted)
    ask(scripted, in_s=-60)
    await page.get_by_role("button", name="Notifications").click()
    await page.get_by_role("button", name="Approve: Deploy?").click()
    await scripted.until(lambda: scripted.answers)


async def test_a_repeat_leaves_the_keyboard_in_the_field_of_the_demo_page(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/#token={token()}")
    await expect(page.locator("#pill")).to_have_attribute("data-state", "open")
    await page.get_by_text("when I say so").click()
    ask(scripted, text=True)
    words = page.locator("#messages").get_by_label("In your words: Deploy?")
    await words.fill("not on")
    scripted.again(1)
    await expect(page.get_by_text("attempt 2", exact=True)).to_be_visible()
    await page.keyboard.type(" a Friday")
    await expect(words).to_have_value("not on a Friday")
    assert scripted.answers == []


async def test_the_demo_page_answers_and_shows_the_outcome_in_place(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/#token={token()}")
    await expect(page.locator("#pill")).to_have_attribute("data-state", "open")
    ask(scripted)
    await page.locator("#messages").get_by_role("button", name="Approve: Deploy?").click()
    await scripted.until(lambda: scripted.answers)
    assert scripted.answers[0][1]["answer"] == "yes"
    scripted.publish("Deploy?", replaces="m1", answer={**OUTCOME, "label": "Approve", "by": None})
    await expect(page.locator("#messages li")).to_have_count(1)
    await expect(page.locator("#messages")).to_contain_text("Approve (the default)")
    await expect(page.locator("#deliveries")).to_be_focused()
