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
    from engine.http.outgoing import Outgoing

_UNREACHABLE: Final = frozenset((errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT))
_MAY_PASS: Final = frozenset((408, 425, 429))


class GuardedPost:
    """Posts.

    Args:
        guard: checks addresses.
        tls: verifies certificates; by default by the system's authorities.
    """

    def __init__(self, guard: AddressGuard, tls: ssl.SSLContext | None = None) -> None:
        self._guard = guard
        self._tls = tls

    @cached_property
    def _outgoing(self) -> Outgoing:
        from engine.http.outgoing import Outgoing

        return Outgoing(self._tls, proxies=False)

    async def __call__(self, target: WebhookTarget, headers: Mapping[str, str], body: bytes) -> int:
        """The status that the first address answers which can be connected to; no more than the head of the answer is read.

        Raises ActionFailed: no address is allowed, or there was no answer. Its reason has the host, and nothing else of the target.
        """
        addresses = await self._guard.addresses(target.host, target.port, private_only=not target.secure)
        scheme = "https" if target.secure else "http"
        sent = {"Host": target.authority, "Connection": "close", **headers}
        for address in addresses:
            host = f"[{address}]" if ":" in address else address
            url = f"{scheme}://{host}:{target.port}{target.path}"
            try:
                answer = await self._outgoing.request("POST", url, sent, body, timeout_s=None, answer_bytes_max=0, server_name=target.host)
            except OSError as error:
                if address == addresses[-1] or error.errno not in _UNREACHABLE:
                    raise ActionFailed(f"{target.authority}: {str(error) or type(error).__name__}") from error
                continue
            return answer.status
        raise ActionFailed(f"{target.authority}: the name has no address")


def check_status(target: WebhookTarget, status: int) -> None:
    """Raises ActionFailed unless it is a success: 408, 425, 429 and 5xx may pass, everything else is refused for good."""
    if 200 <= status < 300:
        return
    hint = "; redirects are not followed" if 300 <= status < 400 else ""
    raise ActionFailed(f"{target.authority} answered {status}{hint}", final=status not in _MAY_PASS and status < 500)
