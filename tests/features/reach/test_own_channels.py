"""A user's own mail address: used when its mailbox has confirmed it, and no way to write to strangers."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from engine.features.policy.unsubscribe_links import LinkClaims, make_link_token
from engine.features.reach.core.addresses import Addresses
from tests.support.edge_world import EdgeWorld, edge_world
from tests.support.mail_server import LOST, MailServer, mail_server

ANN = "ann@example.org"


@pytest.fixture
async def mails() -> AsyncIterator[MailServer]:
    with mail_server() as server:
        yield server


@pytest.fixture
async def world(mails: MailServer) -> AsyncIterator[EdgeWorld]:
    settings: dict[str, Any] = {"smtp_url": mails.url, "mail_from": "ops@example.com", "public_url": "https://notify.example.com/"}
    async with edge_world(**settings) as world:
        yield world


async def ask(world: EdgeWorld, email: Any = ANN, *, user: str = "ann", scopes: str = "connect", **headers: str) -> httpx.Response:
    return await world.once(user, scopes=scopes).put("/v1/channels/email", json={"email": email}, headers=headers)


async def visit(world: EdgeWorld, method: str, path: str, **headers: str) -> httpx.Response:
    """As a browser that the engine knows nothing of."""
    async with httpx.AsyncClient(base_url=world.url(), trust_env=False, verify=False) as client:
        return await client.request(method, path, headers=headers)


def link_of(mails: MailServer, address: str = ANN) -> str:
    """The path in the last mail to an address."""
    text = mails.to(address)[-1].get_body(("plain",)).get_content()  # type: ignore[union-attr]
    (found,) = re.findall(r"https://notify\.example\.com(/v1/\S+)", text)
    return str(found)


async def test_an_address_is_used_when_the_button_of_the_mails_link_was_pressed(world: EdgeWorld, mails: MailServer) -> None:
    answer = await ask(world)
    assert (answer.status_code, answer.json()["email"]) == (202, ANN)
    path = link_of(mails)
    page = await visit(world, "GET", path)
    assert (page.status_code, ANN in page.text, '<form method="post"><button>' in page.text) == (200, True, True)
    assert world.addresses.kept == {}, "a mail scanner opens links"
    for _ in range(2):
        assert (await visit(world, "POST", path)).status_code == 200
        assert world.addresses.kept == {"default:ann": Addresses(ANN)}
    assert (await ask(world)).status_code == 200
    assert len(mails.mails) == 1, "it is the user's already"


async def test_web_mail_may_open_the_link_and_its_page_may_post(world: EdgeWorld, mails: MailServer) -> None:
    """A browser posts a form of a page without referrer with `Origin: null`."""
    await ask(world)
    path = link_of(mails)
    assert (await visit(world, "GET", path, **{"Sec-Fetch-Site": "cross-site"})).status_code == 200
    assert (await visit(world, "POST", path, Origin="null")).status_code == 200
    assert world.addresses.kept == {"default:ann": Addresses(ANN)}


async def test_a_link_sent_before_the_user_was_erased_confirms_nothing(world: EdgeWorld, mails: MailServer) -> None:
    await ask(world)
    old = link_of(mails)
    await world.addresses.erase("default:ann")
    assert (await visit(world, "POST", old)).status_code == 404
    assert world.addresses.kept == {}
    await ask(world)
    assert (await visit(world, "POST", link_of(mails))).status_code == 200


async def test_other_addresses_stay_and_the_user_removes_the_mail_address(world: EdgeWorld, mails: MailServer) -> None:
    world.addresses.kept["default:ann"] = Addresses("old@example.org", ("json://h/1",))
    await ask(world)
    await visit(world, "POST", link_of(mails))
    async with world.http("ann") as client:
        assert (await client.get("/v1/channels")).json() == {"email": ANN, "apprise": ["json://h/1"]}
        assert (await client.delete("/v1/channels/email")).json() == {"apprise": ["json://h/1"]}


async def test_a_mail_has_no_text_of_the_user_and_speaks_the_language_of_the_request(world: EdgeWorld, mails: MailServer) -> None:
    await ask(world, user="BUY NOW http://spam.example", **{"Accept-Language": "zh-CN"})
    (mail,) = mails.to(ANN)
    assert mail["Subject"] == "请确认您的邮箱地址"
    assert "BUY NOW" not in str(mail)


async def test_an_address_gets_three_mails_a_day_and_a_user_causes_five(world: EdgeWorld, mails: MailServer) -> None:
    got = [(await ask(world, address, user=user)).status_code for user, address in (*(("u1", ANN), ("u2", ANN.upper())) * 2, ("u3", ANN))]
    assert got == [202, 202, 202, 429, 429]
    many = [await ask(world, f"b{n}@example.org", user="u4") for n in range(6)]
    assert [answer.status_code for answer in many] == [202] * 5 + [429]
    assert int(many[-1].headers["Retry-After"]) > 1
    assert len(mails.mails) == 8


async def test_mails_that_could_not_be_sent_now_are_not_counted(world: EdgeWorld, mails: MailServer) -> None:
    mails.answers = ["451 later"] * 4 + ["550 no"] * 2
    answers = [await ask(world) for _ in range(8)]
    assert [answer.status_code for answer in answers] == [503] * 4 + [422] * 2 + [202, 429]
    assert answers[4].json()["errors"][0]["path"] == "$.email"
    assert "550" in answers[4].text


async def test_mails_of_confirmation_that_may_have_been_sent_are_counted(world: EdgeWorld, mails: MailServer) -> None:
    mails.answers = [LOST] * 3
    assert [(await ask(world)).status_code for _ in range(4)] == [503] * 3 + [429]
    assert len(mails.mails) == 3


async def test_a_token_of_another_use_or_another_key_confirms_nothing(world: EdgeWorld, mails: MailServer) -> None:
    await ask(world)
    path = link_of(mails)
    token = path.partition("token=")[2]
    unsubscribe = make_link_token(LinkClaims("default", "ann", "news", 1 << 40), b"k" * 32)
    for bad in ("", "x", token[:-4], unsubscribe, "a" * 5000 + ".b.c"):
        for method in ("GET", "POST"):
            assert (await visit(world, method, f"{urlsplit(path).path}?token={bad}")).status_code == 404, bad
    assert (await visit(world, "POST", f"/v1/unsubscribe?token={token}")).status_code == 404
    assert world.addresses.kept == {}


async def test_a_bad_address_is_named_and_no_mail_is_sent(world: EdgeWorld, mails: MailServer) -> None:
    for bad in ("", "ann", "a@b.c\r\nBcc: d@e.f", 1):
        answer = await ask(world, bad)
        assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "$.email")
    assert (await ask(world, scopes="publish")).status_code == 403
    assert mails.mails == []


async def test_a_mail_server_or_storage_that_is_away_is_503(world: EdgeWorld, mails: MailServer) -> None:
    mails.answers = ["451 later"]
    assert (await ask(world)).status_code == 503
    await ask(world)
    world.addresses.away = True
    assert (await ask(world, "b@example.org")).status_code == 503
    assert (await visit(world, "POST", link_of(mails))).status_code == 503


async def test_an_engine_without_mails_says_which_settings_it_lacks() -> None:
    async with edge_world() as world:
        answer = await ask(world)
    assert (answer.status_code, "smtp_url" in answer.json()["detail"]) == (404, True)
