"""Mails to a real mail server: what it gets, what is tried again, what is given up, and what no reason says."""

from __future__ import annotations

import pytest

from engine.config import Config
from engine.core.model.constants import NORMAL
from engine.errors import ActionFailed
from engine.features.actions.store import QueuedAction
from engine.features.reach.email_channel import EmailChannel, MailServer
from tests.support.free_port import free_port
from tests.support.mail_server import mail_server

BODY = b'{"id":"m1","type":"alert.raised","ts":1700000000000,"data":{"title":"Disk full","body":"On db1"}}'
ACTION = QueuedAction("1-0", "channel://email", "acme", "ann", "m1", "k1", 1000, NORMAL, BODY)


def channel(url: str) -> EmailChannel:
    return EmailChannel(Config(smtp_url=url, mail_from="Ops <ops@example.com>"))


async def test_a_mail_has_sender_subject_and_both_texts() -> None:
    with mail_server() as server:
        await channel(server.url).send(ACTION, "ann@example.org")
    (mail,) = server.to("ann@example.org")
    assert (mail["From"], mail["To"], mail["Subject"]) == ("Ops <ops@example.com>", "ann@example.org", "Disk full")
    texts = {part.get_content_type(): part.get_content() for part in mail.iter_parts()}  # type: ignore[attr-defined]
    assert texts["text/plain"].strip() == "On db1"
    assert "<p>On db1</p>" in texts["text/html"]


async def test_a_mail_that_is_sent_twice_has_one_message_id() -> None:
    with mail_server() as server:
        for _ in range(2):
            await channel(server.url).send(ACTION, "ann@example.org")
        await channel(server.url).send(ACTION, "ann@example.net")
    first, again, other = (mail.message["Message-ID"] for mail in server.mails)
    assert first == again != other
    assert first.endswith("@example.com>")


@pytest.mark.filterwarnings("ignore:Requiring AUTH:UserWarning")
async def test_the_user_and_the_password_of_the_url_are_percent_decoded() -> None:
    assert MailServer.of("smtps://a%40b:se%20cret@[::1]:2525") == ("::1", 2525, "a@b", "se cret", True)
    with mail_server(login=True) as server:
        await channel(server.url.replace("//", "//a%40b:se%20cret@")).send(ACTION, "ann@example.org")
        assert server.logins == [(b"a@b", b"se cret")]
        with pytest.raises(ActionFailed) as failed:
            await channel(server.url.replace("//", "//a%40b:wrong@")).send(ACTION, "ann@example.org")
    assert not failed.value.final, "the operator may mend it"


@pytest.mark.parametrize(("answer", "final"), [("451 greylisted, ann@example.org", False), ("554 spam from ann@example.org", True)])
async def test_a_refusal_for_good_is_final_and_names_no_address(answer: str, final: bool) -> None:
    with mail_server() as server:
        server.answers = [answer]
        with pytest.raises(ActionFailed) as failed:
            await channel(server.url).send(ACTION, "ann@example.org")
    assert failed.value.final is final
    assert "ann@" not in str(failed.value)


async def test_an_unknown_mailbox_is_final_and_is_not_named() -> None:
    with mail_server() as server:
        server.refused = {"ann@example.org"}
        with pytest.raises(ActionFailed, match="refused the address with 550") as failed:
            await channel(server.url).send(ACTION, "ann@example.org")
    assert failed.value.final


async def test_a_server_that_is_away_is_tried_again() -> None:
    with pytest.raises(ActionFailed) as failed:
        await channel(f"smtp://127.0.0.1:{free_port()}").send(ACTION, "ann@example.org")
    assert not failed.value.final
