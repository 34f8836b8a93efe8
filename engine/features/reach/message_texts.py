"""What a channel tells of a message: its title, its text and its link."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class MessageTexts(NamedTuple):
    """As the publisher gave them, "" for what is missing. `type`: in place of a title."""

    type: str
    title: str
    body: str
    url: str


def texts_of(message: Mapping[str, Any]) -> MessageTexts:
    """Those of a message: `title` and `body` of its data, as the bell shows them."""
    data = message.get("data")
    texts = data if isinstance(data, dict) else {}
    return MessageTexts(*map(text, (message.get("type"), texts.get("title"), texts.get("body"), message.get("url"))))


def text(value: Any) -> str:
    """The value, if it is a text; else ""."""
    return value if isinstance(value, str) else ""
