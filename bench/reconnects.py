"""`python -m bench.reconnects PORT < TOKENS`: a client for each token connects, loses its connection, and all come back at once.

A process of its own, so that the clients do not slow down whoever measures what they do to others. TOKENS is a JSON list; prints one
JSON line.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time

import uvloop
from picows import WSError, WSFrame, WSHandshakeError, WSListener, WSMsgType, WSTransport, ws_connect

_CONNECTING_AT_ONCE = 100
_PATIENCE_S = 300  # at `connections_per_s` 10 000 clients need 100 s


class _Client(WSListener):
    def __init__(self) -> None:
        self.welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.TEXT and not self.welcomed.done():
            self.welcomed.set_result(None)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(ConnectionError("closed before the welcome"))


async def _connect(port: int, token: str) -> _Client:
    """A welcomed client, after as many tries as it takes within five minutes."""
    headers = {"Authorization": f"Bearer {token}", "Sec-WebSocket-Protocol": "notify.v1.json"}
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            client = _Client()
            pause_s = 0.5
            try:
                await ws_connect(
                    lambda client=client: client, f"ws://127.0.0.1:{port}/v1/ws", extra_headers=headers, websocket_handshake_timeout=60
                )
                await client.welcomed
                return client
            except WSHandshakeError as refused:
                if refused.response is not None:  # the edge says when there is room; a client spreads that, as those of the engine do
                    pause_s = float(refused.response.headers.get("Retry-After", pause_s)) * random.uniform(1, 1.3)
            except (WSError, OSError):
                pass
            if client.welcomed.done():
                client.welcomed.exception()
            await asyncio.sleep(pause_s)


async def storm(port: int, tokens: list[str]) -> dict[str, float]:
    gate = asyncio.Semaphore(_CONNECTING_AT_ONCE)

    async def gently(token: str) -> _Client:
        async with gate:
            return await _connect(port, token)

    clients = await asyncio.gather(*map(gently, tokens))
    for client in clients:
        client.transport.underlying_transport.abort()
    began = time.monotonic()
    clients = await asyncio.gather(*(_connect(port, token) for token in tokens))
    took_s = time.monotonic() - began
    for client in clients:
        client.transport.underlying_transport.abort()
    return {"clients": len(tokens), "all_back_s": round(took_s, 2)}


if __name__ == "__main__":
    print(json.dumps(uvloop.run(storm(int(sys.argv[1]), json.load(sys.stdin)))))
