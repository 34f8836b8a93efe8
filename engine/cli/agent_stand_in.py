"""A program that stands in for an agent of a raylet (`engine.cli.ray_parts`). It imports nothing but Python's own modules.

    agent_stand_in.py [PORT_FILE HOST COMMAND...] [what the raylet adds]

Without a port file it does nothing. Else it listens on a free port of the host, writes its number to the file, and at the first connection
becomes the agent that the command starts, which goes on with the listening socket: so the connection is served, only a second later.
It ends with the raylet, its parent.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from pathlib import Path
from typing import Final

_LOOK_S: Final = 5.0
"""Between two looks whether the raylet lives."""

_AGENT: Final = """
import os, runpy, socket, sys
listening = int(sys.argv[1])
del sys.argv[:2]
socket.socket.bind = lambda own, address: os.dup2(listening, own.fileno())
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs the agent, whose only socket of Python's is the one on which it is to listen."""


def _await(listeners: list[socket.socket]) -> None:
    """Returns with a connection."""
    raylet = int(os.environ.get("RAY_RAYLET_PID", os.getppid()))  # by Ray: it may have ended before this program began
    while not select.select(listeners, [], [], _LOOK_S)[0]:
        if os.getppid() != raylet:
            sys.exit()


def main(arguments: list[str]) -> None:
    """Stand in for an agent."""
    if not (arguments and Path(arguments[0]).is_absolute()):
        _await([])
    port_file, host, *command = arguments
    listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    written = Path(f"{port_file}.new")
    written.write_text(str(listener.getsockname()[1]), "ascii")
    written.rename(port_file)
    _await([listener])
    listener.set_inheritable(True)
    script = next(at for at, word in enumerate(command) if word.endswith(".py"))
    os.execv(command[0], [*command[:script], "-c", _AGENT, str(listener.fileno()), *command[script:]])


if __name__ == "__main__":
    main(sys.argv[1:])
