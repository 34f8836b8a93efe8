"""The mail that asks whether an address is the user's, and the page behind its link, in English or Chinese."""

from __future__ import annotations

from email.message import Message
from html import escape
from typing import Final, Literal
from uuid import uuid4

from starlette.responses import Response

from engine.features.policy.link_page import language_of, link_page
from engine.features.reach.mails import new_mail
from engine.http.problems import RETRY_AFTER_S

ConfirmationWord = Literal["ask", "done", "invalid", "away"]

_SUBJECT: Final = {"en": "Confirm your mail address", "zh": "请确认您的邮箱地址"}
_TEXT: Final = {
    "en": "Somebody, hopefully you, wants notifications at this address. Confirm it by the link. If it was not you, ignore this mail: "
    "the address is not used.",
    "zh": "有人（希望是您）希望通过此邮箱接收通知。请打开链接确认。如果不是您本人操作，请忽略本邮件：该地址不会被使用。",
}
_WORDS: Final[dict[str, dict[ConfirmationWord, str]]] = {
    "en": {
        "ask": "Do you want notifications at {email}?",
        "done": "You get notifications at {email}.",
        "invalid": "This link is not complete, or too old.",
        "away": "This did not work now. Please try again in a moment.",
    },
    "zh": {
        "ask": "通过 {email} 接收通知？",
        "done": "您将通过 {email} 接收通知。",
        "invalid": "此链接不完整或已过期。",
        "away": "暂时无法完成，请稍后再试。",
    },
}
_BUTTON: Final = {"en": "Confirm", "zh": "确认"}


def confirmation_mail(address: str, sender: str, link: str, accept_language: str) -> Message:
    """The mail. It has no text of who asks for it: a stranger may get it.

    Args:
        address: whom it is for.
        sender: `mail_from` of the settings.
    """
    language = language_of(accept_language)
    subject, text = _SUBJECT[language], _TEXT[language]
    html = f'<h1>{subject}</h1><p>{text}</p><p><a href="{escape(link)}">{_BUTTON[language]}</a></p>'
    return new_mail(sender, address, subject, uuid4().hex, f"{text}\n\n{link}", html)


def confirmation_page(word: ConfirmationWord, accept_language: str, email: str = "", *, status: int = 200) -> Response:
    """The page. `email`: the address."""
    language = language_of(accept_language)
    button = _BUTTON[language] if word == "ask" else ""
    retry_after = str(RETRY_AFTER_S) if word == "away" else ""
    return link_page(_WORDS[language][word].format(email=email), button, language, status=status, retry_after=retry_after)
