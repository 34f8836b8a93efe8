"""The cases of the Standard Webhooks reference library (https://github.com/standard-webhooks/standard-webhooks) on what the engine sends.

The library checks signatures as a receiver does. Its own tests give the secrets and the signature whose value is known.
"""

from __future__ import annotations

import time

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from engine.config import Config
from engine.core.model.action import WebhookTarget, parse_target
from engine.core.model.constants import NORMAL
from engine.features.actions.settings import webhook_secrets
from engine.features.actions.store import QueuedAction
from engine.features.actions.webhooks import Webhooks, signatures
from tests.support.webhook_target import Received, webhook_server

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER_SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
ACTION = QueuedAction("1-0", "", "acme", "ann", "m1", "msg_p5jXN8AQM9LWM0D4loKWxJek", 17, NORMAL, b'{"id":"m1","data":2432232314}')


async def sent(secret: str, at_s: float = 0) -> Received:
    """What a webhook gets, `at_s` seconds from now."""
    config = Config(webhook_hosts=("127.0.0.1",), webhook_networks=("127.0.0.0/8",), webhook_secret=secret)
    async with webhook_server() as server:
        target = parse_target(server.url())
        assert isinstance(target, WebhookTarget)
        await Webhooks(config, lambda: int((time.time() + at_s) * 1000)).call(target, ACTION)
    return server.received[0]


def test_a_signature_has_the_known_value() -> None:
    (secret,) = webhook_secrets(SECRET)
    made = signatures([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}')
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("secret", [SECRET, SECRET + "BrA", SECRET + "Br"], ids=["no padding", "one left out", "two left out"])
async def test_the_library_accepts_requests_signed_with_secrets_of_any_padding(secret: str) -> None:
    received = await sent(secret)
    for given in (secret, secret.removeprefix("whsec_")):
        assert Webhook(given).verify(received.body, received.headers)["message"] == {"id": "m1", "data": 2432232314}


async def test_the_library_accepts_either_secret_of_a_rotation() -> None:
    received = await sent(f"{OTHER_SECRET},{SECRET}")
    for secret in (OTHER_SECRET, SECRET):
        assert Webhook(secret).verify(received.body, received.headers)["key"] == ACTION.key


@pytest.mark.parametrize("at_s", [-600, 600])
async def test_the_library_refuses_a_request_of_another_time(at_s: float) -> None:
    received = await sent(SECRET, at_s)
    with pytest.raises(WebhookVerificationError, match="timestamp"):
        Webhook(SECRET).verify(received.body, received.headers)


@pytest.mark.parametrize("header", ["webhook-id", "webhook-timestamp", "webhook-signature"])
async def test_the_library_needs_each_header_that_is_sent(header: str) -> None:
    received = await sent(SECRET)
    del received.headers[header]
    with pytest.raises(WebhookVerificationError, match="headers"):
        Webhook(SECRET).verify(received.body, received.headers)
