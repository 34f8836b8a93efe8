"""What `make fuzz` found, shrunk: sent to an engine in every run of the tests. Entries stay when their defect is mended."""

from __future__ import annotations

from tests.fuzz.boundaries import HANDSHAKE, TOKEN
from tests.support.edge_world import client_frame
from tests.support.hostile_input import nested

KEPT: list[tuple[str, list[bytes]]] = [
    # A handshake that is refused was logged as an error of the application.
    ("handshake", [HANDSHAKE.replace(TOKEN, b"x")]),
    # Deep nesting in a member that is wrong anyway: the error escaped from the reader, and the connection ended without a close frame.
    ("frames", [HANDSHAKE, client_frame(b'{"type":"ping","ts":[],"x":%b}' % nested(5000, array=True))]),
]
"""(name of the boundary, the pieces of bytes)."""
