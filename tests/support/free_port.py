"""Ports for servers that cannot be asked which one they took.

Between the choice and the server's `bind` the port is nobody's: the kernel gives it to the next who asks for any, for a connection too.
So they are not of the range that the kernel gives out, and a lock keeps each from every other process of the tests until this one ends.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import IO, Final

_PORTS: Final = range(20_100, 32_000)
"""Linux gives out 32768 to 60999, others 49152 to 65535. Links of engines take those from 20000 on (`link_ports`)."""

_TRIES: Final = 1000

_held: Final[list[IO[bytes]]] = []


def free_port() -> int:
    """Nobody listens on it now, and nobody else is given it."""
    folder = Path(tempfile.gettempdir(), f"engine-test-ports-{os.getuid()}")  # that of whoever came first is closed to others
    folder.mkdir(exist_ok=True)
    dice = random.Random()
    for _ in range(_TRIES):
        port = dice.choice(_PORTS)
        lock = (folder / str(port)).open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            continue
        _held.append(lock)
        return port
    raise RuntimeError(f"none of {_TRIES} ports of {_PORTS} is free")
