"""What the edge's HTTP server offers its ASGI application beside the specification, and what its streaming endpoints need of ASGI."""

from __future__ import annotations

from typing import Final

from starlette.types import Receive

TRANSPORT: Final = "notify.transport"
"""Key of `scope["extensions"]` of HTTP requests: `{"transport": asyncio.Transport}`, so that a stream can abort a connection whose
client does not read."""


async def until_disconnected(receive: Receive) -> None:
    """Return when the client has closed its connection; what it sends before is discarded."""
    while (await receive())["type"] != "http.disconnect":
        pass
