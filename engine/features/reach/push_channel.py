"""Pushes to browsers (RFC 8030), encrypted for each of them (RFC 8291) and signed with the engine's key (VAPID, RFC 8292).

A push service learns which engine pushes when, how much, how urgent it is and for how long; `http_ece`, imported with the first push,
encrypts the rest. Only hosts of `push_hosts` are called, each pattern of them in a lane of its own: a user names the endpoint.

    201, 2xx    done
    404, 410    the browser has unsubscribed: it is removed from the addresses
    403 ...     refused for good: made with another key of the engine, which `DEL engine:push-key` replaces; the browser subscribes anew
                when its page is opened the next time
    429, 5xx    tried again

A push that is sent twice has one `Topic`, so the service keeps one of them, and one `tag`, so the browser shows one.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Final

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from engine.config import Config
from engine.core.model.action import WebhookTarget
from engine.core.model.allowed_targets import host_matches
from engine.core.model.constants import PRIORITIES
from engine.core.model.step import EXTRAS
from engine.errors import ActionFailed, Invalid
from engine.features.actions.address_guard import AddressGuard
from engine.features.actions.guarded_post import GuardedPost, check_status
from engine.features.actions.store import QueuedAction
from engine.features.reach.core.addresses import PushSubscription, check_browser
from engine.features.reach.mails import message_digest
from engine.features.reach.message_texts import texts_of

SECRET_BYTES: Final = 32
"""Of the secret that the key is made of."""

_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the group of P-256 (FIPS 186-4, D.1.2.3)."""

_SIGNED_S: Final = 12 * 3600
"""For how long a signature is good; RFC 8292 allows 24 h, and clocks differ."""

_TTL_S_MAX: Final = 28 * 86_400
"""Push services keep nothing longer."""

_PAYLOAD_BYTES_MAX: Final = 3993
"""RFC 8291, section 4: what fits into 4096 bytes."""

_URL_CHARS_MAX: Final = 1000
"""A longer link is left out; the click opens the application then."""

_GONE: Final = frozenset((404, 410))
_NOT_INSTALLED: Final = "http_ece is not installed where the edges run: install the extra `push`"

StoredSecret = Callable[[], Awaitable[bytes]]
"""The engine's secret, of which the key is made. Raises StorageUnavailable."""


def available() -> bool:
    """Whether this edge can push."""
    return find_spec(EXTRAS["push"][1]) is not None


def key_of(secret: bytes) -> ec.EllipticCurvePrivateKey:
    """The key that pushes are signed with."""
    return ec.derive_private_key(int.from_bytes(secret) % (_ORDER - 1) + 1, ec.SECP256R1())


def public_key_of(secret: bytes) -> str:
    """What browsers subscribe with: `applicationServerKey`, base64url."""
    return _base64url(key_of(secret).public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint))


def check_push(browser: PushSubscription, config: Config) -> None:
    """Check a browser of a user. Raises Invalid, with the member."""
    check_browser(browser)
    target = browser.target
    if not _pattern_of(target, config):
        raise Invalid(f"{target.host} is not among push_hosts: {', '.join(config.push_hosts)}", "endpoint")
    if not target.secure and not config.webhook_networks:
        raise Invalid("an https:// URL", "endpoint")
    try:
        _point(browser.keys.p256dh)
    except ValueError:
        raise Invalid("no point of P-256", "keys.p256dh") from None


def lane_of(browser: PushSubscription, config: Config) -> str:
    """The push service of a browser, as a part of the name of its lane and its metrics; "" where the settings allow it no more."""
    return _pattern_of(browser.target, config).removeprefix("*.")


def _pattern_of(target: WebhookTarget, config: Config) -> str:
    return next((pattern for pattern in config.push_hosts if host_matches(target.host, pattern.lower())), "")


class PushChannel:
    """Pushes.

    Args:
        config: `push_hosts`, `push_contact` and `webhook_networks`.
        wall_ms: milliseconds since the epoch.
    """

    def __init__(self, config: Config, secret: StoredSecret, wall_ms: Callable[[], int]) -> None:
        self._config = config
        self._secret = secret
        self._wall_ms = wall_ms
        self._post = GuardedPost(AddressGuard(config.webhook_networks))

    async def send(self, action: QueuedAction, browser: PushSubscription) -> bool:
        """Push the message to this browser; False where it has unsubscribed. Raises ActionFailed, StorageUnavailable."""
        now_ms, target = self._wall_ms(), browser.target
        if not _pattern_of(target, self._config):
            raise ActionFailed(f"{target.host} is not among push_hosts", final=True)
        if browser.expires_ms is not None and browser.expires_ms <= now_ms:
            return False
        body = _encrypted(payload_of(action), browser)
        left_s = (action.due_ms + action.ttl_ms - now_ms) // 1000
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Encoding": "aes128gcm",
            "Authorization": self._signature(target, await self._secret(), now_ms),
            "TTL": str(max(0, min(left_s, _TTL_S_MAX))),
            "Urgency": PRIORITIES[action.priority],
            "Topic": message_digest(action, browser.endpoint)[:32],
        }
        answer = await self._post(target, headers, body)
        if answer.status in _GONE:
            return False
        check_status(target, answer)
        return True

    def _signature(self, target: WebhookTarget, secret: bytes, now_ms: int) -> str:
        key = key_of(secret)
        claims = {"aud": f"http{'s' if target.secure else ''}://{target.authority}", "exp": now_ms // 1000 + _SIGNED_S}
        if self._config.push_contact:
            claims["sub"] = self._config.push_contact
        return f"vapid t={jwt.encode(claims, key, algorithm='ES256')}, k={public_key_of(secret)}"


def payload_of(action: QueuedAction) -> bytes:
    """What the service worker gets: JSON, whose texts are cut so that it fits."""
    message = msgspec.json.decode(action.body)
    texts = texts_of(message)
    title, body, url = texts.title or texts.type, texts.body, texts.url if len(texts.url) <= _URL_CHARS_MAX else ""
    while True:
        payload = msgspec.json.encode({"id": action.id, "title": title, "body": body, "url": url, "ts": message.get("ts")})
        if len(payload) <= _PAYLOAD_BYTES_MAX:
            return payload
        if body:
            body = body[: len(body) * 3 // 4]
        elif url:
            url = ""
        else:
            title = title[: len(title) * 3 // 4]


def _encrypted(payload: bytes, browser: PushSubscription) -> bytes:
    try:
        from http_ece import encrypt
    except ImportError:
        raise ActionFailed(_NOT_INSTALLED) from None
    own = ec.generate_private_key(ec.SECP256R1())
    made: bytes = encrypt(payload, private_key=own, dh=_bytes(browser.keys.p256dh), auth_secret=_bytes(browser.keys.auth))
    return made


def _point(text: str) -> ec.EllipticCurvePublicKey:
    """Raises ValueError."""
    return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), _bytes(text))


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _base64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
