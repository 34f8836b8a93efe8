"""Which addresses a webhook may be sent to: public ones, and private networks that the settings name.

A name is resolved once per call, every address it has is checked, and the connection is made to the address that was checked: a name
that is answered differently a moment later (DNS rebinding) changes nothing. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from engine.errors import ActionFailed

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a name. Raises OSError."""

_NOT_PUBLIC: Final = tuple(
    IPv6Network(network)
    for network in (
        "::/96",  # IPv4-compatible (RFC 4291, section 2.5.5.1): some systems connect to the IPv4 address
        "::ffff:0:0:0/96",  # IPv4-translated (RFC 2765): likewise
        "64:ff9b:1::/48",  # local-use translation (RFC 8215): where the IPv4 address stands depends on the site
        "fec0::/10",  # site-local (RFC 3879)
    )
)

_NAT64: Final = IPv6Network("64:ff9b::/96")
"""RFC 6052: the last four bytes are the IPv4 address to which a translator sends it on."""


_THREADS: Final = ThreadPoolExecutor(32, "resolver")
"""A lookup goes on after its call was given up. Those of some names whose servers are silent keep nobody else's thread."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses that the system's resolver has for a name. Raises OSError."""
    asked = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_THREADS, asked)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class AddressGuard:
    """The addresses of hosts, as far as they are allowed.

    Args:
        networks: private networks that are allowed, in CIDR notation.
    """

    def __init__(self, networks: Sequence[str], resolve: Resolve = resolve) -> None:
        self._networks = [ip_network(network) for network in networks]
        self._resolve = resolve

    async def addresses(self, host: str, port: int, *, private_only: bool) -> list[str]:
        """The addresses of a host.

        Args:
            private_only: only allowed private networks will do: what is sent in clear text stays there.

        Raises:
            ActionFailed: it has none now; or, for good, one that is not allowed.
        """
        try:
            found = [ip_address(host)]
        except ValueError:
            try:
                found = [ip_address(text.partition("%")[0]) for text in await self._resolve(host, port)]
            except (OSError, UnicodeError) as error:
                raise ActionFailed(f"{host} cannot be resolved: {error}") from error
        if not found:
            raise ActionFailed(f"{host} has no address")
        for address in found:
            private = any(address in network for network in self._networks)
            if not private and (private_only or not is_public(address)):
                what = "is outside of webhook_networks, and http:// is allowed only inside" if private_only else "is not public"
                raise ActionFailed(f"{host} has the address {address}, which {what}", final=True)
        return [str(address) for address in found]


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether this is an address of the public internet, and so is what it may be translated to."""
    if isinstance(address, IPv6Address):
        embedded = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in _NAT64:
            embedded.append(IPv4Address(int(address) & 0xFFFF_FFFF))
        if any(address in network for network in _NOT_PUBLIC):
            return False
        if any(inner is not None and not is_public(inner) for inner in embedded):
            return False
        if address.ipv4_mapped is not None:
            return True
    return address.is_global and not address.is_multicast
