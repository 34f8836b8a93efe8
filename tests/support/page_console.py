"""What a page of the browser wrote to its console."""

from __future__ import annotations

from playwright.async_api import ConsoleMessage, Page


def complaints(page: Page) -> list[str]:
    """A list that fills with every warning and error of the page's console."""
    found: list[str] = []

    def look(message: ConsoleMessage) -> None:
        if message.type in ("warning", "error"):
            found.append(f"{message.type}: {message.text}")

    page.on("console", look)
    page.on("pageerror", lambda error: found.append(f"uncaught: {error}"))
    return found
