"""The mail about a message, whatever is in the message."""

from __future__ import annotations

from email import message_from_bytes, policy
from email.message import EmailMessage, Message
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from engine.core.model.constants import NORMAL
from engine.features.actions.store import QueuedAction
from engine.features.reach.mails import SUBJECT_CHARS_MAX, mail_of

VALUES = st.text() | st.integers() | st.none() | st.lists(st.text())


def action(**members: Any) -> QueuedAction:
    body = msgspec.json.encode({"id": "m1", "type": "alert.raised", **members})
    return QueuedAction("1-0", "channel://email", "acme", "ann", "m1", "k1", 1000, NORMAL, body)


def read(made: Message) -> EmailMessage:
    """As a mail program reads it."""
    found = message_from_bytes(made.as_bytes(), policy=policy.default)
    assert isinstance(found, EmailMessage)
    return found


@given(st.fixed_dictionaries({}, optional={"title": VALUES, "body": VALUES}) | VALUES, VALUES, VALUES)
def test_any_message_makes_a_mail_whose_headers_end_where_they_should(data: Any, url: Any, unsubscribe: Any) -> None:
    made = mail_of(action(data=data, url=url, unsubscribe=unsubscribe), "ann@example.org", "ops@example.com", "")
    mail = read(made)
    assert {name for name, _ in mail.items()} <= {
        "From", "To", "Subject", "Message-ID", "Date", "Auto-Submitted", "MIME-Version", "Content-Type",
    }  # fmt: skip
    assert mail["To"] == "ann@example.org"
    assert 0 < len(str(mail["Subject"])) <= SUBJECT_CHARS_MAX


def test_the_unsubscribe_link_is_in_headers_and_texts() -> None:
    message = action(unsubscribe="/v1/unsubscribe?token=t")
    made = mail_of(message, "ann@example.org", "ops@example.com", "https://notify.example.com/")
    assert made["List-Unsubscribe"] == "<https://notify.example.com/v1/unsubscribe?token=t>"
    assert made["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    contents = [made["List-Unsubscribe"], *(part.get_content() for part in read(made).iter_parts())]  # type: ignore[attr-defined]
    assert all("https://notify.example.com/v1/unsubscribe?token=t" in content for content in contents)
    assert "List-Unsubscribe" not in mail_of(message, "ann@example.org", "ops@example.com", ""), "a path alone leads nowhere"


def test_texts_of_the_message_are_no_markup_of_the_mail() -> None:
    made = read(mail_of(action(data={"title": "<b>", "body": "<script>"}, url="javascript:x"), "ann@example.org", "ops@example.com", ""))
    (_, html) = made.iter_parts()
    content = html.get_content()  # type: ignore[attr-defined]
    assert "<b>" not in content
    assert "<script>" not in content
    assert "javascript" not in content


@given(st.text(), st.text())
def test_subject_and_text_arrive_as_they_were_written(title: str, body: str) -> None:
    mail = read(mail_of(action(data={"title": title, "body": body}), "ann@example.org", "Öps, Inc <ops@example.com>", ""))
    (plain, _) = mail.iter_parts()
    shown = " ".join("".join(char if char.isprintable() else " " for char in " ".join(title.split())).split())
    assert shown.startswith(" ".join(str(mail["Subject"]).split())) or not shown
    assert all(line.strip() in plain.get_content() for line in body.splitlines())  # type: ignore[attr-defined]
    assert max(map(len, made_lines(mail))) <= 998
    assert str(mail["From"]) == '"Öps, Inc" <ops@example.com>'


def made_lines(mail: EmailMessage) -> list[bytes]:
    return mail.as_bytes().splitlines()
