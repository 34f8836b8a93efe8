"""docs/TUTORIAL.md: its applications as a user runs them, with the session's engine, and its samples as they are in the applications."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from engine.store.embedded_redis import dying_with_parent
from tests.support.free_port import free_port
from tests.support.page_console import complaints
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "tutorial"
TUTORIAL = (ROOT / "docs" / "TUTORIAL.md").read_text()
OUTPUT = ROOT / "tests" / "output"
START_S = 60


def command(name: str, port: int) -> list[str]:
    if name == "fastapi":
        return [sys.executable, "-m", "uvicorn", "--app-dir", os.fspath(EXAMPLE), "fastapi_app:app", "--port", str(port)]
    return [sys.executable, os.fspath(EXAMPLE / "django_app.py"), "runserver", str(port), "--noreload"]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest_asyncio.fixture(params=["fastapi", "django"], loop_scope="session")
async def application(request: pytest.FixtureRequest, engine: RunningEngine, tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    """Name and URL of one of the applications, which runs."""
    port = free_port()
    secret = (engine.data_dir / "jwt-secret").read_text().strip()
    env = os.environ | {"ENGINE_URL": engine.url, "ENGINE_JWT_SECRET": secret, "PYTHONPATH": os.fspath(ROOT)}
    output = tmp_path / "output.txt"
    with output.open("wb") as file:
        program = subprocess.Popen(dying_with_parent(command(request.param, port)), stdout=file, stderr=file, env=env, cwd=tmp_path)
    try:
        await until(lambda: listens(port) or program.poll() is not None, START_S, look_s=0.05)
        assert program.poll() is None, output.read_text()
        yield request.param, f"http://127.0.0.1:{port}"
    finally:
        program.terminate()
        await asyncio.to_thread(program.wait, START_S)
    assert "Traceback" not in output.read_text(), output.read_text()


async def signed_in(browser: Browser, url: str, user: str) -> tuple[Page, list[str]]:
    """The page of a user whose bell is connected, and the complaints in its console."""
    page = await (await browser.new_context()).new_page()
    found = complaints(page)
    await page.goto(f"{url}/sign-in?user={user}")
    await expect(page.locator("strong")).to_have_text(user)
    return page, found


async def test_a_comment_rings_the_bells_of_its_owner_and_of_those_mentioned(application: tuple[str, str], browser: Browser) -> None:
    name, url = application
    alice, bob, carol = (f"{user}-{name}" for user in ("alice", "bob", "carol"))
    pages = {user: await signed_in(browser, url, user) for user in (alice, bob, carol)}
    (alices, _), (bobs, _), (carols, _) = pages.values()
    for _ in range(2):
        await alices.get_by_label("Whose photo").fill(bob)
        await alices.get_by_label("Comment").fill(f"Look, @{carol}!")
        await alices.get_by_role("button", name="Send").click()
        await expect(alices.get_by_label("Comment")).to_have_value("")
    await bobs.get_by_role("button", name="Notifications, 2 unread").click()
    await expect(bobs.locator("notification-inbox").get_by_role("listitem").first).to_contain_text(f"{alice} commented on your photo")
    await carols.get_by_role("button", name="Notifications, 2 unread").click()
    await expect(carols.locator("notification-inbox").get_by_role("listitem").first).to_contain_text(f"{alice} mentioned you")
    await bobs.keyboard.press("Escape")
    await bobs.get_by_role("button", name="What did I miss?").click()
    await expect(bobs.locator("body > ul > li")).to_have_text("2 comments on “Night train”")
    OUTPUT.mkdir(exist_ok=True)
    await bobs.get_by_role("button", name="Notifications, 2 unread").click()
    await bobs.screenshot(path=OUTPUT / f"tutorial-{name}.png")
    for page, found in pages.values():
        assert found == []
        await page.context.close()


def samples(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TUTORIAL, re.MULTILINE | re.DOTALL)


async def test_the_samples_are_those_of_the_applications() -> None:
    files = [path.read_text() for path in sorted(EXAMPLE.iterdir()) if path.is_file()]
    shown = [sample for language in ("python", "html", "js") for sample in samples(language)]
    assert len(shown) >= 9
    assert [sample for sample in shown if not any(sample in text for text in files)] == []
    _, rules = samples("toml")
    tested = tomllib.loads((ROOT / "tests" / "data" / "acting_rules.toml").read_text())["rule"]
    assert tomllib.loads(rules)["rule"][0] in tested


async def test_each_application_has_fewer_than_sixty_lines() -> None:
    assert {path.name: len(path.read_text().splitlines()) < 60 for path in EXAMPLE.glob("*.py")} == {
        "fastapi_app.py": True,
        "django_app.py": True,
    }
