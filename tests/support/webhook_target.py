"""A system that gets webhooks: an HTTP server of its own, and a verifier of signatures that shares no code with the engine."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

SECRET = "whsec_" + base64.b64encode(b"the newest of the two secrets...").decode()
OLDER_SECRET = "whsec_" + base64.b64encode(b"the older one of the two secrets").decode()


class Received(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> Any:
        return json.loads(self.body)

    def verified(self, secret: str) -> bool:
        """Whether one of the signatures is made with this secret, as the Standard Webhooks specification says."""
        signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + self.body
        key = base64.b64decode(secret.removeprefix("whsec_"))
        expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        return f"v1,{expected}" in self.headers["webhook-signature"].split(" ")


class WebhookServer:
    """Answers with `statuses`, one after another, then with 204; `headers` of every answer; while `silent`, with nothing."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.statuses: list[int] = []
        self.headers = ""
        self.raw: bytes | None = None
        self.silent = False
        self.port = 0

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await reader.readexactly(int(headers["content-length"]))
            self.received.append(Received(first.split()[1], headers, body))
            while self.silent:
                await asyncio.sleep(0.01)
            status = self.statuses.pop(0) if self.statuses else 204
            writer.write(self.raw or f"HTTP/1.1 {status} Whatever\r\n{self.headers}Content-Length: 0\r\n\r\n".encode())
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the engine has ended the call
        finally:
            writer.close()


@asynccontextmanager
async def webhook_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[WebhookServer]:
    """A server on a free port of the loopback interface, behind TLS where a context is given."""
    target = WebhookServer()
    server = await asyncio.start_server(target.serve, "127.0.0.1", 0, ssl=tls)
    target.port = server.sockets[0].getsockname()[1]
    try:
        yield target
    finally:
        target.silent = False
        server.close()
