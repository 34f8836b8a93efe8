"""A port for a server that cannot be asked which one it took."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Nobody listens on it now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
