"""An identity provider's list of keys (RFC 7517), on a real socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

DEADLINE_S = 20


def jwk(key: Any) -> dict[str, Any]:
    """The public part of a key as a member of such a list."""
    algorithm = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    return json.loads(algorithm.to_jwk(key.public_key()))  # type: ignore[no-any-return]


def jwks(**keys: Any) -> bytes:
    """The list, each key under its id."""
    return json.dumps({"keys": [{**jwk(key), "kid": name} for name, key in keys.items()]}).encode()


class KeyServer:
    """Answers every request with the same, and counts them."""

    def __init__(self) -> None:
        self.answer: Callable[[BaseHTTPRequestHandler], None] = lambda _: None
        self.requests = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests += 1
                outer.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/jwks.json"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def say(self, body: bytes, status: int = 200, **headers: str) -> None:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.end_headers()
            with suppress(ConnectionError):
                handler.wfile.write(body)

        self.answer = answer

    def publish(self, **keys: Any) -> None:
        self.say(jwks(**keys))

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(DEADLINE_S)
