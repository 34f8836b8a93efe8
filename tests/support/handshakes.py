"""Requests for WebSockets, byte for byte, and what an edge answers."""

from __future__ import annotations

import re

from tests.support.edge_world import EdgeWorld

PLAIN = {
    "Host": "127.0.0.1",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "notify.v1.json",
}


def asked(token: str, target: str = "/v1/ws", line: str = "", method: str = "GET", version: str = "1.1", **fields: str | None) -> bytes:
    """A request for a WebSocket: the plain one with fields changed, left out (None) or a line added."""
    changed = PLAIN | {"Authorization": f"Bearer {token}"} | {name.replace("_", "-"): value for name, value in fields.items()}
    lines = [f"{name}: {value}" for name, value in changed.items() if value is not None]
    return "\r\n".join([f"{method} {target} HTTP/{version}", *lines, *filter(None, [line]), "", ""]).encode("latin-1")


async def told(world: EdgeWorld, request: bytes) -> bytes:
    """What a client reads until it is welcomed, or until the server ends the connection; without the time and the connection's name."""
    client = await world.raw_unasked()
    await client.send(request)
    read = b""
    try:
        while b'"welcome"' not in read or not read.endswith(b"}"):
            read += await client.read(1)
    except (EOFError, ConnectionResetError):
        read += b"<end>"
    client.close()
    return re.sub(rb'(?im)^date: .*?\r\n|"connection":"[^"]*"', b"", read)
