"""Requests of Ray jobs: a call of the edge actor instead of an HTTP request, answered by the same application.

    job  --Ray call: tenant, user, method, target, body-->  RayRequests  --ASGI scope-->  Starlette, routes, handlers of errors
         <------------- status, headers, body -------------             <----------------

Nothing behind the routes can tell the two apart: validation, quotas, admission, results and refusals are those of HTTP. What differs is
who may. Ray does not tell who calls, so every job of the cluster may do what the lists of tenants allow, and no more:

    ray_publish    publish for the tenant: what a token with the scope `publish` may
    ray_listen     be any user of the tenant: what a token of this user with the scope `connect` may; and read the tenant's events in
                   groups: what a token with the scope `events` may

The request is let in under a principal that exists for as long as it is answered. It has no token, so no revocation concerns it. A response
that is a stream is refused: a Ray call has one answer.

A call that finds `ray_requests_max` under way is refused at once, so that the calls of the engine itself are never short of a place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from starlette.applications import Starlette

from engine.api.actor_feature import EdgeAnswer
from engine.auth.tokens import EVENTS, Authenticator, Principal
from engine.config import Config
from engine.core.model.names import is_user
from engine.gateway.gateway import Gateway
from engine.http.error_responses import refusal
from engine.http.problems import Problem, bad_request, content_too_large, forbidden, too_many_requests
from engine.http.routed_path import routed_path
from engine.transports.asgi import http_scope
from engine.transports.http_framing import check_path

log = logging.getLogger(__name__)

USER: Final = "ray"
"""`sub` of a publishing job."""

FEATURE: Final = "engine"
"""`sub` of an actor of a feature."""

_LIFETIME_S: Final = 600
"""Of a principal: beyond what any request takes."""

_INGEST_S: Final = 20.0
"""Of the requests of one call. Its caller waits for 30 s, and would repeat all of them for ever where they take longer."""

_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
_EVENTS: Final = "/v1/event-groups"
_STREAMS: Final = ("/v1/sse", "/v1/ws")


class RayRequests:
    """Of one edge.

    Args:
        application: that of `engine.routes.app`.
        authenticator: the one that the application uses.
        gateway: the edge's; refusals are counted there.
    """

    def __init__(self, application: Starlette, authenticator: Authenticator, gateway: Gateway, config: Config) -> None:
        self._application = application
        self._authenticator = authenticator
        self._gateway = gateway
        self._config = config
        self._under_way = 0

    async def answer(self, tenant: Any, user: Any, method: Any, target: Any, body: Any) -> EdgeAnswer:
        """The answer to a request; a refusal is an answer too.

        Args:
            tenant: in whose name.
            user: who is, for requests of a client; "" to publish.
            target: path and query, percent-encoded.
            body: JSON, b"" for none.
        """
        if self._under_way >= self._config.ray_requests_max:
            return self._refused(too_many_requests(f"{self._under_way} requests of Ray jobs are under way at this edge", 1))
        self._under_way += 1
        try:
            self._check(user, method, target, body)
            with self._authenticator.granted(self._principal(tenant, user, target)) as token:
                return await self._ask(token, method, target, bytes(body))
        except Problem as problem:
            return self._refused(problem)
        finally:
            self._under_way -= 1

    async def ingest(self, tenant: str, path: str, bodies: Sequence[bytes]) -> list[EdgeAnswer]:
        """The answers to requests of a feature's actor, which may publish for every tenant; none after a 429, a 5xx or `_INGEST_S`."""
        answers: list[EdgeAnswer] = []
        clock = asyncio.get_running_loop().time
        ends_s = clock() + _INGEST_S
        for body in bodies:
            with self._authenticator.granted(self._granted(tenant, FEATURE, "publish")) as token:
                answers.append(await self._ask(token, "POST", path, body))
            if (status := answers[-1][0]) == 429 or status >= 500 or clock() >= ends_s:
                break
        return answers

    def _check(self, user: Any, method: Any, target: Any, body: Any) -> None:
        """Raises Problem: an argument is not what `answer` takes. Any job may call, with anything."""
        if method not in _METHODS:
            raise bad_request(f"the method: allowed are {', '.join(_METHODS)}")
        if not (isinstance(target, str) and target.startswith("/") and target.isascii() and target.isprintable()):
            raise bad_request("the target: a path that begins with /, percent-encoded")
        check_path(target.encode())
        if routed_path(target.partition("?")[0]) in _STREAMS:
            raise Problem(406, "a stream is no answer to a Ray call; use /v1/poll")
        if len(target) > self._config.request_head_bytes_max:
            raise Problem(414, f"the target: at most {self._config.request_head_bytes_max} characters")
        if not isinstance(body, bytes):
            raise bad_request("the body: bytes")
        if len(body) > self._config.body_bytes_max:
            raise content_too_large(f"the body: at most {self._config.body_bytes_max} bytes")
        if not (isinstance(user, str) and (not user or is_user(user, self._config.id_chars_max))):
            raise bad_request(f"the user: text of 1 to {self._config.id_chars_max} characters without control characters")

    def _principal(self, tenant: Any, user: str, target: str) -> Principal:
        """Raises Problem: 403, no job may do this for the tenant."""
        setting, scope = ("ray_listen", "connect") if user else ("ray_publish", "publish")
        if not user and target.startswith(_EVENTS):
            setting, scope = "ray_listen", EVENTS
        if tenant not in getattr(self._config, setting):
            raise forbidden(f"Ray jobs may not do this for this tenant; the engine's setting {setting} lists those for which they may")
        return self._granted(tenant, user or USER, scope)

    def _granted(self, tenant: str, user: str, scope: str) -> Principal:
        now_ms = self._gateway.wall_ms()
        return Principal(tenant, user, frozenset((scope,)), now_ms // 1000 + _LIFETIME_S, issued_ms=now_ms)

    async def _ask(self, token: str, method: str, target: str, body: bytes) -> EdgeAnswer:
        headers_sent = [(b"authorization", b"Bearer " + token.encode()), (b"content-type", b"application/json")]
        scope = http_scope(method, target.encode(), headers_sent)
        unread = [{"type": "http.request", "body": body, "more_body": False}]
        status = 0
        headers: dict[str, str] = {}
        parts: list[bytes] = []

        async def receive() -> dict[str, Any]:
            if unread:
                return unread.pop()
            never: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()  # Ray does not tell that a caller left
            return await never

        async def send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
                headers.update((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in message["headers"])
            else:
                parts.append(message.get("body", b""))

        try:
            await self._application(scope, receive, send)
        except Exception:
            if not status:
                raise
            log.exception("a request of a Ray job failed: %s %s", method, scope["path"])  # answered with 500
        return status, headers, b"".join(parts)

    def _refused(self, problem: Problem) -> EdgeAnswer:
        response = refusal(problem, self._gateway.metrics.refused)
        return response.status_code, {**response.headers}, bytes(response.body)
