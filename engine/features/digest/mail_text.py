"""The mail of a digest, plain text and HTML, and the page behind its link, in English or Chinese."""

from __future__ import annotations

from collections.abc import Mapping
from email.message import Message
from html import escape
from typing import Any, Final, Literal

from starlette.responses import Response

from engine.features.actions.store import QueuedAction
from engine.features.policy.link_page import language_of, link_page
from engine.features.reach.mails import message_digest, new_mail
from engine.http.problems import RETRY_AFTER_S

DigestWord = Literal["ask", "done", "invalid", "away"]

_STATUS: Final[dict[DigestWord, int]] = {"ask": 200, "done": 200, "invalid": 404, "away": 503}
_SUBJECT: Final = {"en": "While you were away: {count} unread", "zh": "您离开期间：{count} 条未读"}
_END: Final = {"en": "No more digests", "zh": "不再接收摘要"}
_WORDS: Final[dict[str, dict[DigestWord, str]]] = {
    "en": {
        "ask": "Do you want no more digests by mail?",
        "done": "You get no more digests by mail.",
        "invalid": "This link is not complete, or too old.",
        "away": "This did not work now. Please try again in a moment.",
    },
    "zh": {
        "ask": "不再通过邮件接收摘要？",
        "done": "您将不再通过邮件接收摘要。",
        "invalid": "此链接不完整或已过期。",
        "away": "暂时无法完成，请稍后再试。",
    },
}


def digest_mail(action: QueuedAction, address: str, sender: str, digest: Mapping[str, Any], locale: str, link: str) -> Message:
    """The mail.

    Args:
        action: the one that is due; its id names the time, so a mail that is sent twice has one `Message-ID`.
        address: whom it is for.
        sender: `mail_from` of the settings.
        digest: the answer of `GET /v1/digest`.
        locale: language tag of the user.
        link: ends the digests; "": there is none.
    """
    language = language_of(locale)
    subject = _SUBJECT[language].format(count=digest["messages"])
    lines = [line["text"] for line in digest["lines"]]
    text = "\n".join([*(f"- {line}" for line in lines), *(["", f"{_END[language]}: {link}"] if link else [])])
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    footer = f'<p><small><a href="{escape(link)}">{_END[language]}</a></small></p>' if link else ""
    html = f"<h1>{subject}</h1><ul>{items}</ul>{footer}"
    return new_mail(sender, address, subject, message_digest(action, address), text, html, link)


def digest_page(word: DigestWord, accept_language: str) -> Response:
    """The page behind the link of a digest."""
    language = language_of(accept_language)
    retry_after = str(RETRY_AFTER_S) if word == "away" else ""
    button = _END[language] if word == "ask" else ""
    return link_page(_WORDS[language][word], button, language, status=_STATUS[word], retry_after=retry_after)
