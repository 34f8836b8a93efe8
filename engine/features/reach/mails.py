"""The mail about a message: plain text and HTML, from its title, body and link.

One `Message-ID` for a message and an address, made of both: a mail that is sent twice is one to every mail program. `List-Unsubscribe` and
`List-Unsubscribe-Post` (RFC 8058) lead to the link of the message's category, where it has one and `public_url` is set.
"""

from __future__ import annotations

import hashlib
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, parseaddr
from html import escape
from typing import Any, Final

import msgspec

from engine.core.model.constants import TS_MS_MAX
from engine.features.actions.store import QueuedAction
from engine.features.reach.message_texts import text, texts_of
from engine.publish.items import EPOCH, MILLISECOND

SUBJECT_CHARS_MAX: Final = 200
MAIL_POLICY: Final = SMTP.clone(max_line_length=998)


def mail_of(action: QueuedAction, address: str, sender: str, public_url: str) -> EmailMessage:
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
    mail = EmailMessage(MAIL_POLICY)
    mail["From"] = sender
    mail["To"] = Address(addr_spec=address)
    mail["Subject"] = title
    mail["Message-ID"] = f"<{message_digest(action, address)}@{parseaddr(sender)[1].rpartition('@')[2]}>"
    if isinstance(at_ms := message.get("ts"), int) and 0 <= at_ms <= TS_MS_MAX:
        mail["Date"] = format_datetime(EPOCH + at_ms * MILLISECOND)
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no answering machine answers
    if unsubscribe:
        mail["List-Unsubscribe"] = f"<{unsubscribe}>"
        mail["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    parts = [part for part in (body or title, link, f"Unsubscribe: {unsubscribe}" if unsubscribe else "") if part]
    mail.set_content("\n\n".join(parts) + "\n")
    mail.add_alternative(_html(title, body, link, unsubscribe), subtype="html")
    return mail


def message_digest(action: QueuedAction, address: str) -> str:
    """Identifies the mail about this message to this address."""
    return hashlib.sha256("\n".join((action.tenant, action.user, action.id, address)).encode()).hexdigest()[:40]


def _html(title: str, body: str, link: str, unsubscribe: str) -> str:
    heading = f'<a href="{escape(link)}">{escape(title)}</a>' if link else escape(title)
    paragraphs = "".join(f"<p>{escape(part)}</p>" for part in body.splitlines() if part.strip())
    footer = f'<p><small><a href="{escape(unsubscribe)}">Unsubscribe</a></small></p>' if unsubscribe else ""
    return html_of(f"<h1>{heading}</h1>{paragraphs}{footer}")


def html_of(body: str) -> str:
    """The HTML of a mail, with this body."""
    return f'<!doctype html><html><head><meta charset="utf-8"></head><body>{body}</body></html>\n'


def _line(given: str) -> str:
    """One line: a header has no line breaks."""
    return "".join(char if char.isprintable() else " " for char in " ".join(given.split()))[:SUBJECT_CHARS_MAX]
