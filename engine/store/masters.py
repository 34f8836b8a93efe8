"""What connections share that look for their master themselves: behind Sentinel, and in a Redis Cluster."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from redis.exceptions import ConnectionError


def host_and_port(text: str, port: int, of: str) -> tuple[str, int]:
    """Of one host in a URL that names several. Raises ValueError.

    Args:
        port: where it names none.
        of: what the host is, for the error.
    """
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(f"{text!r} is not HOST:PORT of a {of}")
    return parts.hostname, parts.port or port


async def greet_master(connection: Any) -> None:
    """Authenticate, then verify that the server reports the role of master."""
    await connection.on_connect()
    await connection.send_command("ROLE", check_health=False)
    (role, *_) = await connection.read_response()
    if role != b"master":
        raise ConnectionError(f"{connection.host}:{connection.port} is not the master yet, or no longer")
