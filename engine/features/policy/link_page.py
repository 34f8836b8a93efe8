"""The page behind a link in a mail: a sentence and at most one button, without scripts. Its address is a secret."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Final

from starlette.responses import Response

FORM_BYTES_MAX: Final = 4096
"""Of the page's own form, or of a mail program's; who sends it may have no valid link."""

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


def language_of(accept_language: str) -> str:
    """The language of the page, of those that there are: en or zh."""
    return "zh" if accept_language.strip().lower().startswith("zh") else "en"


def link_page(
    text: str, button: str, language: str, *, fields: Mapping[str, str] | None = None, status: int = 200, retry_after: str = ""
) -> Response:
    """The page.

    Args:
        text: the sentence.
        button: its word; "": there is none. It posts to the page's own address.
        fields: that the button posts.
        retry_after: seconds.
    """
    text = escape(text)
    # A form without an action posts to the page's own address, which has the token.
    hidden = "".join(f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">' for name, value in (fields or {}).items())
    form = f'<form method="post">{hidden}<button>{button}</button></form>' if button else ""
    body = (
        f'<!doctype html><html lang="{language}"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{button or text}</title><style>{_STYLE}</style><main><p>{text}</p>{form}</main></html>"
    )
    headers = {**_HEADERS, "Content-Language": language, **({"Retry-After": retry_after} if retry_after else {})}
    return Response(body, status, headers, "text/html")
