"""Accessibility of a page in the browser, as axe sees it."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.async_api import Page

RUN = """async () => {
  const { violations } = await axe.run({ resultTypes: ["violations"] });
  return violations.map(({ id, nodes }) => [id, nodes.map(({ html, failureSummary }) => [html, failureSummary])]);
}"""


async def violations(page: Page) -> list[Any]:
    """Rules that the page breaks, each with its elements and what is wrong with them.

    The script stays in the page: a second check finds it compiled.
    """
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE_SCRIPT)
    found: list[Any] = await page.evaluate(RUN)
    return found
