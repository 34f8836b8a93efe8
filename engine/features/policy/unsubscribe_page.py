"""The page behind an unsubscribe link: a sentence and at most one button, without scripts, in English or Chinese."""

from __future__ import annotations

from html import escape
from typing import Final, Literal

from starlette.responses import Response

Word = Literal["ask", "done", "undone", "refused", "invalid", "away"]

_WORDS: Final[dict[str, dict[Word, str]]] = {
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

_STYLE: Final = (
    "body{font:1.1rem/1.5 system-ui,sans-serif;max-width:32rem;margin:15vh auto;padding:0 1rem;color-scheme:light dark}"
    "button{font:inherit;padding:.4em 1.2em}"
)
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",  # the address is a secret
    "X-Content-Type-Options": "nosniff",
    "X-Robots-Tag": "noindex",
}


def unsubscribe_page(
    word: Word, accept_language: str, *, title: str = "", again: str = "", status: int = 200, retry_after: str = ""
) -> Response:
    """The page.

    Args:
        title: of the category.
        again: with `done`: the choice that its button goes back to.
        retry_after: seconds.
    """
    language = "zh" if accept_language.strip().lower().startswith("zh") else "en"
    text = escape(_WORDS[language][word].format(title=title))
    button = _BUTTONS[language].get(word, "")
    # A form without an action posts to the page's own address, which has the token.
    hidden = f'<input type="hidden" name="again" value="{escape(again)}">' if again else ""
    form = f'<form method="post">{hidden}<button>{button}</button></form>' if button else ""
    body = (
        f'<!doctype html><html lang="{language}"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{button or text}</title><style>{_STYLE}</style><main><p>{text}</p>{form}</main></html>"
    )
    headers = {**_HEADERS, "Content-Language": language, **({"Retry-After": retry_after} if retry_after else {})}
    return Response(body, status, headers, "text/html")
