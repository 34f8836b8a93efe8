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
import errno
import hashlib
import hmac
import ssl
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

from engine import __version__
from engine.config import Config, webhook_secrets
from engine.core.model.action import WebhookTarget
from engine.core.model.allowed_targets import not_allowed
from engine.core.model.trace_context import trace_in
from engine.errors import ActionFailed
from engine.features.actions.address_guard import AddressGuard
from engine.features.actions.event_body import event_body
from engine.features.actions.store import QueuedAction

if TYPE_CHECKING:
    from engine.http.outgoing import Outgoing

_UNREACHABLE: Final = frozenset((errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT))
_MAY_PASS: Final = frozenset((408, 425, 429))


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
        self._tls = tls

    async def call(self, target: WebhookTarget, action: QueuedAction) -> None:
        """POST an action. Returns when the target has answered 2xx. Raises ActionFailed."""
        if reason := not_allowed(target, self._config):
            raise ActionFailed(reason, final=True)
        addresses = await self._guard.addresses(target.host, target.port, private_only=not target.secure)
        try:
            status = await self._post(addresses, target, action)
        except OSError as error:
            raise ActionFailed(f"{target.authority}: {str(error) or type(error).__name__}") from error
        if 200 <= status < 300:
            return
        passing = status in _MAY_PASS or status >= 500
        hint = "; redirects are not followed" if 300 <= status < 400 else ""
        raise ActionFailed(f"{target.authority} answered {status}{hint}", final=not passing)

    @cached_property
    def _outgoing(self) -> Outgoing:
        from engine.http.outgoing import Outgoing

        return Outgoing(self._tls, proxies=False)

    async def _post(self, addresses: Sequence[str], target: WebhookTarget, action: QueuedAction) -> int:
        """The status that the first address answers which can be connected to. Raises OSError."""
        body = event_body(action)
        timestamp = str(self._wall_ms() // 1000)
        context = trace_in(action.body)
        headers = {
            "Host": target.authority,
            "User-Agent": f"engine/{__version__}",
            "Content-Type": "application/json",
            "Connection": "close",
            "webhook-id": action.key,
            "webhook-timestamp": timestamp,
            "webhook-signature": signatures(self._secrets, action.key, timestamp, body),
            **({"traceparent": str(context)} if context is not None else {}),
        }
        scheme = "https" if target.secure else "http"
        for address in addresses:
            host = f"[{address}]" if ":" in address else address
            url = f"{scheme}://{host}:{target.port}{target.path}"
            try:
                answer = await self._outgoing.request(
                    "POST", url, headers, body, timeout_s=None, answer_bytes_max=0, server_name=target.host
                )
            except OSError as error:
                if address == addresses[-1] or error.errno not in _UNREACHABLE:
                    raise
                continue
            return answer.status
        raise ConnectionError("the name has no address")


def signatures(secrets: Sequence[bytes], id: str, timestamp: str, body: bytes) -> str:
    """The `webhook-signature` of a request, one part per secret."""
    signed = b"%b.%b.%b" % (id.encode(), timestamp.encode(), body)
    return " ".join(f"v1,{base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()}" for secret in secrets)
