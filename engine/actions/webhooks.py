"""Webhooks: one signed POST per try, to a checked address.

Signed as the Standard Webhooks specification says (https://www.standardwebhooks.com), for which most languages have a verifier:

    webhook-id          the key of the action, the same in every try: what the target recognises a repeat by
    webhook-timestamp   seconds since the epoch, of this try: the target refuses old ones, so that a recording cannot be replayed
    traceparent         of the message, where it has one (W3C Trace Context)
    webhook-signature   `v1,` and the base64 of HMAC-SHA256(secret, "<id>.<timestamp>.<body>"); one for each secret, separated by spaces

Two secrets are given while a target changes from one to the other. 2xx is done. 408, 425, 429 and 5xx may pass, and so may everything below
HTTP. Everything else is refused for good, redirects among it: where they lead nobody has allowed. Each try has a connection of its own, and
no more than the head of the answer is read.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ssl
from collections.abc import Callable, Sequence
from typing import Final

import httptools

from engine import __version__
from engine.actions.address_guard import AddressGuard
from engine.actions.allowed_targets import not_allowed
from engine.actions.event_body import event_body
from engine.config import Config, webhook_secrets
from engine.core.model.action import WebhookTarget
from engine.core.model.trace_context import trace_in
from engine.errors import ActionFailed
from engine.store.action_stream import QueuedAction

_MAY_PASS: Final = frozenset((408, 425, 429))
_HEAD_BYTES_MAX: Final = 64 << 10
_READ_BYTES: Final = 4096


class _Answer:
    """The head of a response, for httptools."""

    def __init__(self) -> None:
        self.complete = False

    def on_headers_complete(self) -> None:
        self.complete = True


class Webhooks:
    """Calls webhooks.

    Args:
        config: `webhook_hosts`, `webhook_networks` and `webhook_secret`.
        wall_ms: milliseconds since the epoch.
        guard: checks addresses; by default of the settings' networks.
        tls: verifies certificates; by default by the system's authorities.
    """

    def __init__(
        self, config: Config, wall_ms: Callable[[], int], guard: AddressGuard | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._config = config
        self._secrets = webhook_secrets(config.webhook_secret)
        self._wall_ms = wall_ms
        self._guard = guard or AddressGuard(config.webhook_networks)
        self._tls = tls or ssl.create_default_context()

    async def call(self, target: WebhookTarget, action: QueuedAction) -> None:
        """POST an action. Returns when the target has answered 2xx. Raises ActionFailed."""
        if reason := not_allowed(target, self._config):
            raise ActionFailed(reason, final=True)
        addresses = await self._guard.addresses(target.host, target.port, private_only=not target.secure)
        try:
            status = await self._post(addresses, target, self._request(target, action))
        except (OSError, httptools.HttpParserError, asyncio.IncompleteReadError) as error:
            raise ActionFailed(f"{target.authority}: {str(error) or type(error).__name__}") from error
        if 200 <= status < 300:
            return
        passing = status in _MAY_PASS or status >= 500
        hint = "; redirects are not followed" if 300 <= status < 400 else ""
        raise ActionFailed(f"{target.authority} answered {status}{hint}", final=not passing)

    def _request(self, target: WebhookTarget, action: QueuedAction) -> bytes:
        body = event_body(action)
        context = trace_in(action.body)
        traced = f"traceparent: {context}\r\n" if context is not None else ""
        timestamp = str(self._wall_ms() // 1000)
        head = (
            f"POST {target.path} HTTP/1.1\r\nHost: {target.authority}\r\nUser-Agent: engine/{__version__}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
            f"webhook-id: {action.key}\r\nwebhook-timestamp: {timestamp}\r\n"
            f"webhook-signature: {signatures(self._secrets, action.key, timestamp, body)}\r\n"
            f"{traced}\r\n"
        )
        return head.encode("ascii") + body

    async def _post(self, addresses: Sequence[str], target: WebhookTarget, request: bytes) -> int:
        """The status that the first address answers which can be connected to. Raises OSError, HttpParserError."""
        reader, writer = await self._connect(addresses, target)
        try:
            writer.write(request)
            answer = _Answer()
            parser = httptools.HttpResponseParser(answer)
            taken = 0
            while not answer.complete:
                data = await reader.read(_READ_BYTES)
                taken += len(data)
                if not data or taken > _HEAD_BYTES_MAX:
                    raise ConnectionError("it answered no HTTP")
                parser.feed_data(data)
            return int(parser.get_status_code())
        finally:
            writer.transport.abort()

    async def _connect(self, addresses: Sequence[str], target: WebhookTarget) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tls, name = (self._tls, target.host) if target.secure else (None, None)
        for address in addresses[:-1]:
            try:
                return await asyncio.open_connection(address, target.port, ssl=tls, server_hostname=name)
            except OSError:
                continue
        return await asyncio.open_connection(addresses[-1], target.port, ssl=tls, server_hostname=name)


def signatures(secrets: Sequence[bytes], id: str, timestamp: str, body: bytes) -> str:
    """The `webhook-signature` of a request, one part per secret."""
    signed = b"%b.%b.%b" % (id.encode(), timestamp.encode(), body)
    return " ".join(f"v1,{base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()}" for secret in secrets)
