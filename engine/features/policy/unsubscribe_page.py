"""The words of the page behind an unsubscribe link, in English or Chinese."""

from __future__ import annotations

from typing import Final, Literal

from starlette.responses import Response

from engine.features.policy.link_page import language_of, link_page

UnsubscribeWord = Literal["ask", "done", "undone", "refused", "invalid", "away"]

_WORDS: Final[dict[str, dict[UnsubscribeWord, str]]] = {
    "en": {
        "ask": "Do you want no more notifications of “{title}”?",
        "done": "You get no more notifications of “{title}”.",
        "undone": "You get notifications of “{title}” again.",
        "refused": "Notifications of “{title}” cannot be turned off.",
        "invalid": "This link is not complete, or too old.",
        "away": "This did not work now. Please try again in a moment.",
    },
    "zh": {
        "ask": "不再接收“{title}”的通知？",
        "done": "您将不再收到“{title}”的通知。",
        "undone": "您将重新收到“{title}”的通知。",
        "refused": "“{title}”的通知无法关闭。",
        "invalid": "此链接不完整或已过期。",
        "away": "暂时无法完成，请稍后再试。",
    },
}
_BUTTONS: Final = {
    "en": {"ask": "Unsubscribe", "done": "Undo", "undone": "Unsubscribe"},
    "zh": {"ask": "退订", "done": "撤销", "undone": "退订"},
}


def unsubscribe_page(
    word: UnsubscribeWord, accept_language: str, *, title: str = "", again: str = "", status: int = 200, retry_after: str = ""
) -> Response:
    """The page.

    Args:
        title: of the category.
        again: with `done`: the choice that its button goes back to.
        retry_after: seconds.
    """
    language = language_of(accept_language)
    text, button = _WORDS[language][word].format(title=title), _BUTTONS[language].get(word, "")
    return link_page(text, button, language, fields={"again": again} if again else None, status=status, retry_after=retry_after)
