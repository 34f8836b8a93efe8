"""Reads the body of a request, bounded in size; `engine.transports.http_protocol` bounds the time."""

from __future__ import annotations

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from engine.config import Config
from engine.http.problems import too_large


async def read_body(scope: Scope, receive: Receive, config: Config, bytes_max: int | None = None) -> bytes:
    """The body of a request, at most `bytes_max` bytes (None: `body_bytes_max`), with or without Content-Length.

    Raises:
        Problem: 413, as soon as the limit is exceeded.
        ClientDisconnect: the client disconnected before the end, or took longer than `request_timeout_s` and got 408.
    """
    bytes_max = config.body_bytes_max if bytes_max is None else bytes_max
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > bytes_max:
            raise too_large(bytes_max)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > bytes_max:
            raise too_large(bytes_max)
        if not message.get("more_body", False):
            return b"".join([*chunks, chunk]) if chunks else chunk
        chunks.append(chunk)
