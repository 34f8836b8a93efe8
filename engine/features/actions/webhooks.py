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

import base64
import hashlib
import hmac
import ssl
from collections.abc import Callable, Sequence

from engine import __version__
from engine.config import Config
from engine.core.model.action import WebhookTarget
from engine.core.model.allowed_targets import not_allowed
from engine.core.model.trace_context import trace_in
from engine.errors import ActionFailed
from engine.features.actions.address_guard import AddressGuard
from engine.features.actions.event_body import event_body
from engine.features.actions.guarded_post import GuardedPost, check_status
from engine.features.actions.settings import webhook_secrets
from engine.features.actions.store import QueuedAction


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
        self._post = GuardedPost(guard or AddressGuard(config.webhook_networks), tls)

    async def call(self, target: WebhookTarget, action: QueuedAction) -> None:
        """POST an action. Returns when the target has answered 2xx. Raises ActionFailed."""
        if reason := not_allowed(target, self._config):
            raise ActionFailed(reason, final=True)
        check_status(target, await self._post(target, self._headers(action, body := event_body(action)), body))

    def _headers(self, action: QueuedAction, body: bytes) -> dict[str, str]:
        timestamp = str(self._wall_ms() // 1000)
        context = trace_in(action.body)
        return {
            "User-Agent": f"engine/{__version__}",
            "Content-Type": "application/json",
            "webhook-id": action.key,
            "webhook-timestamp": timestamp,
            "webhook-signature": signatures(self._secrets, action.key, timestamp, body),
            **({"traceparent": str(context)} if context is not None else {}),
        }


def signatures(secrets: Sequence[bytes], id: str, timestamp: str, body: bytes) -> str:
    """The `webhook-signature` of a request, one part per secret."""
    signed = b"%b.%b.%b" % (id.encode(), timestamp.encode(), body)
    return " ".join(f"v1,{base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()}" for secret in secrets)
