"""Pushes to a push service that reads them as a browser does: what they say, how long and how urgent, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.config import Config
from engine.core.model.constants import HIGH
from engine.errors import ActionFailed, Invalid
from engine.features.actions.store import QueuedAction
from engine.features.reach.core.addresses import PushKeys, PushSubscription
from engine.features.reach.push_channel import PushChannel, check_push, payload_of, public_key_of
from tests.support.push_service import push_service

NOW_MS = 1_700_000_000_000
SECRET = b"k" * 32
BODY = b'{"id":"m1","type":"alert.raised","ts":1700000000000,"url":"/disks/1","data":{"title":"Disk full","body":"On db1"}}'
ACTION = QueuedAction("1-0", "channel://push/127.0.0.1", "acme", "ann", "m1", "k1", NOW_MS - 60_000, HIGH, BODY, 3_660_000)
LOOPBACK: dict[str, Any] = {"push_hosts": ("127.0.0.1",), "webhook_networks": ("127.0.0.0/8",), "push_contact": "mailto:ops@example.com"}
KEYS = PushKeys("BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4", "BTBZMqHH6r4Tts7J_aSIgg")


async def secret() -> bytes:
    return SECRET


def channel(**settings: Any) -> PushChannel:
    return PushChannel(Config(**LOOPBACK | settings), secret, lambda: NOW_MS)


async def test_a_browser_reads_the_texts_and_the_service_only_how_long_and_how_urgent() -> None:
    async with push_service() as service:
        browser = service.subscribe("a")
        assert await channel().send(ACTION, browser.subscription)
        (push,) = service.pushes(browser)
    assert push.payload == {"id": "m1", "title": "Disk full", "body": "On db1", "url": "/disks/1", "ts": NOW_MS}
    assert (push.headers["ttl"], push.headers["urgency"]) == ("3600", "high")
    assert (push.key, push.claims["sub"]) == (public_key_of(SECRET), "mailto:ops@example.com")
    assert push.claims["exp"] - NOW_MS // 1000 <= 24 * 3600, "RFC 8292, section 2"


async def test_a_repeat_has_one_topic_and_another_message_another() -> None:
    async with push_service() as service:
        browser = service.subscribe("a")
        for action in (ACTION, ACTION, replace(ACTION, id="m2"), replace(ACTION, user="bob")):
            await channel().send(action, browser.subscription)
        first, again, *others = (push.headers["topic"] for push in service.pushes(browser))
    assert first == again
    assert len({first, *others}) == 3
    assert all(len(topic) <= 32 for topic in (first, *others)), "RFC 8030, section 5.4"


@pytest.mark.parametrize("status", [404, 410])
async def test_a_browser_that_has_unsubscribed_is_told_apart(status: int) -> None:
    async with push_service() as service:
        service.server.statuses = [status]
        assert not await channel().send(ACTION, service.subscribe("a").subscription)


async def test_a_subscription_that_has_expired_gets_nothing() -> None:
    async with push_service() as service:
        assert not await channel().send(ACTION, replace(service.subscribe("a").subscription, expires_ms=NOW_MS))
        assert service.server.received == []


@pytest.mark.parametrize(("status", "final"), [(403, True), (413, True), (429, False), (503, False)])
async def test_a_refusal_for_good_is_final_and_no_reason_has_the_endpoint(status: int, final: bool) -> None:
    async with push_service() as service:
        service.server.statuses = [status]
        with pytest.raises(ActionFailed) as failed:
            await channel().send(ACTION, service.subscribe("secret").subscription)
    assert failed.value.final is final
    assert "secret" not in str(failed.value)


async def test_a_host_that_the_operator_has_removed_is_not_called() -> None:
    async with push_service() as service:
        for settings in ({"push_hosts": ("push.example.com",)}, {"webhook_networks": ()}):
            with pytest.raises(ActionFailed) as failed:
                await channel(**settings).send(ACTION, service.subscribe("a").subscription)
            assert failed.value.final
        assert service.server.received == []


@pytest.mark.parametrize(
    ("endpoint", "keys", "member"),
    [
        ("https://push.example.com/a", KEYS, "endpoint"),
        ("http://fcm.googleapis.com/a", KEYS, "endpoint"),
        ("channel://push", KEYS, "endpoint"),
        ("https://fcm.googleapis.com:99999/a", KEYS, "endpoint"),
        ("https://fcm.googleapis.com/" + "a" * 1000, KEYS, "endpoint"),
        ("https://fcm.googleapis.com/a", PushKeys(KEYS.p256dh[:-1], KEYS.auth), "keys.p256dh"),
        ("https://fcm.googleapis.com/a", PushKeys("B" + "A" * 86, KEYS.auth), "keys.p256dh"),
        ("https://fcm.googleapis.com/a", PushKeys(KEYS.p256dh, "short"), "keys.auth"),
    ],
)
def test_what_is_no_browser_is_refused_by_its_member(endpoint: str, keys: PushKeys, member: str) -> None:
    check_push(PushSubscription("https://fcm.googleapis.com/a", KEYS), Config())
    with pytest.raises(Invalid) as refused:
        check_push(PushSubscription(endpoint, keys), Config())
    assert refused.value.path == member


@given(title=st.text(max_size=3000), body=st.text(max_size=6000), url=st.text(max_size=3000))
def test_any_message_fits_into_a_push(title: str, body: str, url: str) -> None:
    message = {"id": "m1", "type": "alert", "url": url, "data": {"title": title, "body": body}}
    payload = payload_of(replace(ACTION, body=msgspec.json.encode(message)))
    assert len(payload) <= 3993
    shown = msgspec.json.decode(payload)
    assert body.startswith(shown["body"])
    assert shown["url"] in ("", url), "half a link would lead elsewhere"
