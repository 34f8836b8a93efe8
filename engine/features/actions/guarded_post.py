"""A POST to a host that somebody else has named: to an address that was checked, on a connection of its own, without redirects."""

from __future__ import annotations

import errno
import ssl
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

from engine.core.model.action import WebhookTarget
from engine.errors import ActionFailed
from engine.features.actions.address_guard import AddressGuard

if TYPE_CHECKING:
    from engine.http.outgoing import Outgoing, OutgoingAnswer

_UNREACHABLE: Final = frozenset(
    (
        *(errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ETIMEDOUT),
        *(errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EACCES, errno.EPERM),  # IPv6 that is switched off, or filtered, on this machine
    )
)
"""Errors of a connection that was not made, so that nothing was sent."""

_MAY_PASS: Final = frozenset((408, 425, 429))
_CONNECT_S: Final = 3.0
"""For an address while there is another one: a host that is reached takes milliseconds, and one lost packet a second more."""


class GuardedPost:
    """Posts.

    Args:
        tls: verifies certificates; by default by the system's authorities.
    """

    def __init__(self, guard: AddressGuard, tls: ssl.SSLContext | None = None) -> None:
        self._guard = guard
        self._tls = tls

    @cached_property
    def _outgoing(self) -> Outgoing:
        from engine.http.outgoing import Outgoing

        return Outgoing(self._tls, proxies=False)

    async def __call__(self, target: WebhookTarget, headers: Mapping[str, str], body: bytes) -> OutgoingAnswer:
        """What the first address answers which can be connected to; no more than the head of the answer is read.

        Raises ActionFailed: no address is allowed, or there was no answer. Its reason has the host, and nothing else of the target.
        """
        addresses = await self._guard.addresses(target.host, target.port, private_only=not target.secure)
        scheme = "https" if target.secure else "http"
        sent = {"Host": target.authority, "Connection": "close", **headers}
        for address in addresses:
            host = f"[{address}]" if ":" in address else address
            url = f"{scheme}://{host}:{target.port}{target.path}"
            last = address == addresses[-1]
            connect_s, name = None if last else _CONNECT_S, target.host
            try:
                return await self._outgoing.request(
                    "POST", url, sent, body, timeout_s=None, answer_bytes_max=0, server_name=name, connect_s=connect_s
                )
            except OSError as error:
                if last or not (isinstance(error, TimeoutError) or error.errno in _UNREACHABLE):
                    raise ActionFailed(f"{target.authority}: {str(error) or type(error).__name__}") from error
        raise ActionFailed(f"{target.authority}: the name has no address")


def check_status(target: WebhookTarget, answer: OutgoingAnswer) -> None:
    """Raises ActionFailed unless it is a success: 408, 425, 429 and 5xx may pass, everything else is refused for good."""
    status = answer.status
    if 200 <= status < 300:
        return
    hint = "; redirects are not followed" if 300 <= status < 400 else ""
    final = status not in _MAY_PASS and status < 500
    raise ActionFailed(f"{target.authority} answered {status}{hint}", final=final, retry_after_s=answer.retry_after_s)
