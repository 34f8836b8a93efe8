"""Mails: plain text and HTML. The one about a message is made of its title, body and link.

One `Message-ID` for a message and an address, made of both: a mail that is sent twice is one to every mail program. `List-Unsubscribe` and
`List-Unsubscribe-Post` (RFC 8058) lead to the link of the message's category, where it has one and `public_url` is set.

The older classes of `email` make a mail in 0.1 ms. `EmailMessage` takes 0.9 ms: it parses each header that it is given.
"""

from __future__ import annotations

import hashlib
from email.charset import QP, Charset
from email.header import Header
from email.message import Message
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from email.policy import compat32
from email.utils import format_datetime, formataddr
from html import escape
from typing import Any, Final

import msgspec

from engine.core.model.constants import TS_MS_MAX
from engine.features.actions.store import QueuedAction
from engine.features.reach.message_texts import text, texts_of
from engine.publish.items import EPOCH, MILLISECOND

SUBJECT_CHARS_MAX: Final = 200
_POLICY: Final = compat32.clone(linesep="\r\n", max_line_length=998)
"""RFC 5322, section 2.1.1: a folded link is none to some mail programs."""

_LATIN: Final = Charset("utf-8")
_LATIN.body_encoding = QP
"""For texts of ASCII: readable, and without long lines. Others are in base64."""


def new_mail(sender: str, address: str, subject: str, id: str, text: str, html: str, unsubscribe: str = "", **headers: str) -> Message:
    """A mail.

    Args:
        sender: `mail_from` of the settings.
        address: whom it is for, ASCII.
        subject: one line.
        id: what identifies it, before the sender's host.
        html: the body of its HTML.
        unsubscribe: a link that ends such mails; "": there is none.
    """
    name, _, own_address = sender.rstrip(">").rpartition(" <")
    mail = MIMEMultipart("alternative", policy=_POLICY)
    mail["From"] = formataddr((name.strip('"'), own_address))
    mail["To"] = address
    mail["Subject"] = subject if subject.isascii() else Header(subject, "utf-8", header_name="Subject").encode()
    mail["Message-ID"] = f"<{id}@{own_address.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no answering machine answers
    if unsubscribe:
        mail["List-Unsubscribe"] = f"<{unsubscribe}>"
        mail["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    for header, value in headers.items():
        mail[header] = value
    page = f'<!doctype html><html><head><meta charset="utf-8"></head><body>{html}</body></html>\n'
    for content, subtype in ((f"{text}\n", "plain"), (page, "html")):
        mail.attach(MIMEText(content, subtype, _LATIN if content.isascii() else "utf-8", policy=_POLICY))  # type: ignore[arg-type]
    return mail


def mail_of(action: QueuedAction, address: str, sender: str, public_url: str) -> Message:
    """The mail.

    Args:
        action: its body is the message, a JSON object.
        address: whom it is for.
        sender: `mail_from` of the settings.
        public_url: where users reach the engine; "": the mail has no link to it.
    """
    message: dict[str, Any] = msgspec.json.decode(action.body)
    texts = texts_of(message)
    title, body = _line(texts.title) or _line(texts.type), texts.body
    link = texts.url if texts.url.startswith(("https://", "http://")) else ""
    path = text(message.get("unsubscribe"))
    unsubscribe = f"{public_url.rstrip('/')}{path}" if public_url and path else ""
    at_ms = message.get("ts")
    date = {"Date": format_datetime(EPOCH + at_ms * MILLISECOND)} if isinstance(at_ms, int) and 0 <= at_ms <= TS_MS_MAX else {}
    parts = [part for part in (body or title, link, f"Unsubscribe: {unsubscribe}" if unsubscribe else "") if part]
    html = _html(title, body, link, unsubscribe)
    return new_mail(sender, address, title, message_digest(action, address), "\n\n".join(parts), html, unsubscribe, **date)


def message_digest(action: QueuedAction, address: str) -> str:
    """Identifies the mail about this message to this address."""
    return hashlib.sha256("\n".join((action.tenant, action.user, action.id, address)).encode()).hexdigest()[:40]


def _html(title: str, body: str, link: str, unsubscribe: str) -> str:
    heading = f'<a href="{escape(link)}">{escape(title)}</a>' if link else escape(title)
    paragraphs = "".join(f"<p>{escape(part)}</p>" for part in body.splitlines() if part.strip())
    footer = f'<p><small><a href="{escape(unsubscribe)}">Unsubscribe</a></small></p>' if unsubscribe else ""
    return f"<h1>{heading}</h1>{paragraphs}{footer}"


def _line(given: str) -> str:
    """One line: a header has no line breaks."""
    return "".join(char if char.isprintable() else " " for char in " ".join(given.split()))[:SUBJECT_CHARS_MAX]
