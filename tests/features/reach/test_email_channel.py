"""Mails to a real mail server: what it gets, what is tried again, what is given up, and what no reason says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from redis.asyncio import Redis

from engine.config import Config
from engine.core.model.constants import NORMAL
from engine.errors import ActionFailed
from engine.features.actions.store import QueuedAction
from engine.features.reach.caught_mails import CaughtMails
from engine.features.reach.email_channel import EmailChannel
from engine.features.reach.mail_connections import MailServer
from tests.support.free_port import free_port
from tests.support.mail_server import LOST, mail_server
from tests.support.waiting import until

BODY = b'{"id":"m1","type":"alert.raised","ts":1700000000000,"data":{"title":"Disk full","body":"On db1"}}'
Channel = Callable[..., EmailChannel]

ACTION = QueuedAction("1-0", "channel://email", "acme", "ann", "m1", "k1", 1000, NORMAL, BODY)


@pytest.fixture
async def opened() -> AsyncIterator[list[EmailChannel]]:
    made: list[EmailChannel] = []
    yield made
    for one in made:
        await one.close()


@pytest.fixture
def channel(opened: list[EmailChannel]) -> Callable[..., EmailChannel]:
    def make(url: str, **settings: int) -> EmailChannel:
        opened.append(EmailChannel(Config(smtp_url=url, mail_from="Ops <ops@example.com>", **settings), CaughtMails(Redis())))  # type: ignore[arg-type]
        return opened[-1]

    return make


async def test_a_mail_has_sender_subject_and_both_texts(channel: Channel) -> None:
    with mail_server() as server:
        await channel(server.url).send(ACTION, "ann@example.org")
    (mail,) = server.to("ann@example.org")
    assert (mail["From"], mail["To"], mail["Subject"]) == ("Ops <ops@example.com>", "ann@example.org", "Disk full")
    texts = {part.get_content_type(): part.get_content() for part in mail.iter_parts()}  # type: ignore[attr-defined]
    assert texts["text/plain"].strip() == "On db1"
    assert "<p>On db1</p>" in texts["text/html"]


async def test_a_mail_that_is_sent_twice_has_one_message_id(channel: Channel) -> None:
    with mail_server() as server:
        for _ in range(2):
            await channel(server.url).send(ACTION, "ann@example.org")
        await channel(server.url).send(ACTION, "ann@example.net")
    first, again, other = (mail.message["Message-ID"] for mail in server.mails)
    assert first == again != other
    assert first.endswith("@example.com>")


@pytest.mark.filterwarnings("ignore:Requiring AUTH:UserWarning")
async def test_the_user_and_the_password_of_the_url_are_percent_decoded(channel: Channel) -> None:
    assert MailServer.of("smtps://a%40b:se%20cret@[::1]:2525") == ("::1", 2525, "a@b", "se cret", True)
    with mail_server(login=True) as server:
        await channel(server.url.replace("//", "//a%40b:se%20cret@")).send(ACTION, "ann@example.org")
        assert server.logins == [(b"a@b", b"se cret")]
        with pytest.raises(ActionFailed) as failed:
            await channel(server.url.replace("//", "//a%40b:wrong@")).send(ACTION, "ann@example.org")
    assert not failed.value.final, "the operator may mend it"


@pytest.mark.parametrize(("answer", "final"), [("451 greylisted, ann@example.org", False), ("554 spam from ann@example.org", True)])
async def test_a_refusal_for_good_is_final_and_names_no_address(answer: str, final: bool, channel: Channel) -> None:
    with mail_server() as server:
        server.answers = [answer]
        with pytest.raises(ActionFailed) as failed:
            await channel(server.url).send(ACTION, "ann@example.org")
    assert failed.value.final is final
    assert "ann@" not in str(failed.value)


async def test_an_unknown_mailbox_is_final_and_is_not_named(channel: Channel) -> None:
    with mail_server() as server:
        server.refused = {"ann@example.org"}
        with pytest.raises(ActionFailed, match="refused the address with 550") as failed:
            await channel(server.url).send(ACTION, "ann@example.org")
    assert failed.value.final


async def test_a_server_that_is_away_is_tried_again(channel: Channel) -> None:
    with pytest.raises(ActionFailed) as failed:
        await channel(f"smtp://127.0.0.1:{free_port()}").send(ACTION, "ann@example.org")
    assert (failed.value.final, failed.value.unclear) == (False, False)


@pytest.mark.parametrize("before", [0, 1])
async def test_a_mail_whose_answer_is_lost_may_have_been_sent(before: int, channel: Channel) -> None:
    with mail_server() as server:
        email = channel(server.url)
        for _ in range(before):
            await email.send(ACTION, "ann@example.org")
        server.answers = [LOST]
        with pytest.raises(ActionFailed) as failed:
            await email.send(ACTION, "ann@example.org")
    assert (failed.value.final, failed.value.unclear) == (False, True)
    assert len(server.mails) == before + 1


async def test_a_connection_lost_before_the_mail_leaves_it_unsent(channel: Channel) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 here\r\n")
        while not (line := await reader.readline()).startswith(b"RCPT"):
            writer.write(b"250 OK\r\n")
            assert line
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        with pytest.raises(ActionFailed) as failed:
            await channel(f"smtp://127.0.0.1:{server.sockets[0].getsockname()[1]}").send(ACTION, "ann@example.org")
    assert (failed.value.final, failed.value.unclear) == (False, False)


async def test_a_server_that_refuses_the_connection_is_tried_again(channel: Channel) -> None:
    """As one does to an address that a list of senders of spam has for a while."""

    async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"554 no service for you\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        url = f"smtp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ActionFailed, match="answered 554") as failed:
            await channel(url).send(ACTION, "ann@example.org")
    assert not failed.value.final


async def test_a_server_that_wants_a_login_is_tried_again(channel: Channel) -> None:
    """The operator may add it to `smtp_url`."""

    async def want_login(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 here\r\n")
        while line := await reader.readline():
            writer.write(b"530 5.7.0 authentication required\r\n" if line.startswith(b"MAIL") else b"250 OK\r\n")
        writer.close()

    async with await asyncio.start_server(want_login, "127.0.0.1", 0) as server:
        with pytest.raises(ActionFailed, match="answered 530") as failed:
            await channel(f"smtp://127.0.0.1:{server.sockets[0].getsockname()[1]}").send(ACTION, "ann@example.org")
    assert not failed.value.final


async def test_mails_share_a_connection_until_it_has_carried_enough(channel: Channel) -> None:
    with mail_server() as server:
        email = channel(server.url, smtp_mails_max=3)
        for _ in range(7):
            await email.send(ACTION, "ann@example.org")
        assert (len(server.mails), server.connections) == (7, 3)


async def test_mails_at_once_have_a_connection_each_and_share_them_later(channel: Channel) -> None:
    with mail_server() as server:
        email = channel(server.url)
        for _ in range(2):
            await asyncio.gather(*(email.send(ACTION, "ann@example.org") for _ in range(4)))
        assert (len(server.mails), server.connections) == (8, 4)


async def test_a_connection_that_is_idle_is_ended_politely(channel: Channel) -> None:
    with mail_server() as server:
        email = channel(server.url, smtp_idle_ms=1)
        for expected in (1, 2):
            await email.send(ACTION, "ann@example.org")
            await until(lambda expected=expected: server.quits == expected)  # type: ignore[misc]
        assert server.connections == 2


async def test_a_server_that_closed_an_idle_connection_gets_the_mail_over_a_new_one(channel: Channel) -> None:
    with mail_server() as server:
        email = channel(server.url)
        await email.send(ACTION, "ann@example.org")
        server.answers = ["421 shutting down"]
        await email.send(ACTION, "ann@example.org")
        assert (len(server.mails), server.connections) == (2, 2)
    with mail_server(port=server.port) as again:
        await email.send(ACTION, "ann@example.org")
    assert len(again.mails) == 1


async def test_a_cancelled_mail_leaves_no_connection_for_the_next(channel: Channel) -> None:
    with mail_server() as server:
        email = channel(server.url)
        await email.send(ACTION, "ann@example.org")
        sending = asyncio.ensure_future(email.send(ACTION, "ann@example.net"))
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await email.send(ACTION, "ann@example.org")
        assert server.connections == 2
        assert len(server.to("ann@example.org")) == 2
