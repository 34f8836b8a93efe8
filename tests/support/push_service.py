"""A push service and the browsers that it has: takes pushes as RFC 8030 says, checks who sent them (RFC 8292), and decrypts them as a
browser does (RFC 8291, section 3.4), with nothing of what the engine encrypts by.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from engine.features.reach.core.addresses import PushKeys, PushSubscription
from tests.support.webhook_target import Received, WebhookServer, webhook_server


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def derived(secret: bytes, salt: bytes, info: bytes, size: int) -> bytes:
    return HKDF(SHA256(), size, salt, info).derive(secret)


class Push(NamedTuple):
    """A push as its browser reads it. `claims`: who signed it, checked by the key that it names."""

    payload: dict[str, Any]
    headers: dict[str, str]
    key: str
    claims: dict[str, Any]


class Browser:
    """A browser that has subscribed; `name`: in the path of its endpoint."""

    def __init__(self, origin: str, name: str) -> None:
        self.path = f"/push/{name}"
        self._private = ec.generate_private_key(ec.SECP256R1())
        self._public = self._private.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        self._auth = b"0123456789abcdef"
        self.subscription = PushSubscription(origin + self.path, PushKeys(encoded(self._public), encoded(self._auth)))

    def read(self, received: Received) -> Push:
        """Decrypt a push, and check its signature."""
        scheme, parts = received.headers["authorization"].split(" ", 1)
        named = dict(part.strip().split("=", 1) for part in parts.split(","))
        point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), decoded(named["k"]))
        audience = self.subscription.endpoint.removesuffix(self.path)
        claims = jwt.decode(named["t"], point, ["ES256"], audience=audience, options={"verify_exp": False})
        assert (scheme, received.headers["content-encoding"]) == ("vapid", "aes128gcm")
        return Push(json.loads(self._decrypted(received.body)), received.headers, named["k"], claims)

    def _decrypted(self, body: bytes) -> bytes:
        salt, size = body[:16], body[20]
        sender, record = body[21 : 21 + size], body[21 + size :]
        shared = self._private.exchange(ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), sender))
        key = derived(shared, self._auth, b"WebPush: info\0" + self._public + sender, 32)
        content = derived(key, salt, b"Content-Encoding: aes128gcm\0", 16)
        nonce = derived(key, salt, b"Content-Encoding: nonce\0", 12)
        return AESGCM(content).decrypt(nonce, record, None).rstrip(b"\0").removesuffix(b"\2")


class PushService:
    """The service of some browsers. `server`: what it answers, and what it got."""

    def __init__(self, server: WebhookServer) -> None:
        self.server = server

    def subscribe(self, name: str) -> Browser:
        return Browser(f"http://127.0.0.1:{self.server.port}", name)

    def pushes(self, browser: Browser) -> list[Push]:
        return [browser.read(received) for received in self.server.received if received.path == browser.path]


@asynccontextmanager
async def push_service() -> AsyncIterator[PushService]:
    """One on a free port of the loopback interface."""
    async with webhook_server() as server:
        yield PushService(server)
