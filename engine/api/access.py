"""Access to the endpoints: who asks, and about which tenant or user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from engine.auth import tokens
from engine.auth.tokens import Authenticator, Principal
from engine.auth.topic_permissions import mailbox_of
from engine.config import Config
from engine.core.model.names import is_tenant, is_user
from engine.core.model.routing import mailbox_key
from engine.gateway.gateway import Gateway
from engine.http.endpoint_table import Endpoint
from engine.http.problems import Problem, bad_request, forbidden, not_found
from engine.http.request_body import BodyReader

POLL_WAIT_S: Final = 25.0
"""Of a long poll without `wait`."""


_REPLACEMENT: Final = "\ufffd"
"""Stands in a decoded query for bytes that are not UTF-8."""

Status = Callable[[], Awaitable[Mapping[str, Any]]]
"""The status of the engine, as its controller answers it."""


class Access:
    """What endpoints ask of a request. Every method raises Problem: 401, 403, 429 as its tenant asks too often, or 400.

    Args:
        gateway: the state of the edge.
    """

    def __init__(self, gateway: Gateway, authenticator: Authenticator, config: Config) -> None:
        self.gateway = gateway
        self.config = config
        self.bodies = BodyReader(config)
        self._authenticator = authenticator

    def authenticate(self, request: Request, scope: str) -> Principal:
        """The bearer of the token, which has this scope; any with ""."""
        principal = self._bearer(request)
        if scope:
            tokens.require(principal, scope)
        if scope == "publish":
            check_own_tenant(principal, request.query_params)
        self.gateway.tenant_quotas.check_request(principal)
        return principal

    def _bearer(self, request: Request) -> Principal:
        return self._authenticator.authenticate(request.headers, request.scope["query_string"], now_s=self.gateway.wall_ms() / 1000)

    def confirm(self, request: Request) -> None:
        """To be called after a wait, before its answer. Raises Problem, 401: the token has expired or was revoked meanwhile."""
        self._bearer(request)

    def audited(self, act: str, endpoint: Endpoint) -> Endpoint:
        """The endpoint, which tells what it did when it succeeds: this word, its path, and what it puts into `request.state.details`."""

        async def told(request: Request) -> Response:
            principal = self._bearer(request)  # before the act: the token may have expired after it, or it is what was revoked
            try:
                response = await endpoint(request)
            except Problem as problem:
                if "results" in problem.members:  # a part of it took effect
                    await tell(request, principal, {"status": problem.status})
                raise
            await tell(request, principal, {})
            return response

        async def tell(request: Request, principal: Principal, details: Mapping[str, Any]) -> None:
            if (record := self.gateway.record_act) is not None:
                await record(
                    principal,
                    act,
                    request.scope["raw_path"].decode("latin-1"),
                    {**getattr(request.state, "details", {}), **details},
                )

        return told

    def is_known(self, request: Request) -> bool:
        """Whether the request has a good token."""
        try:
            self._bearer(request)
        except Problem:
            return False
        return True

    async def body(self, request: Request) -> bytes:
        """The whole body. Raises Problem: 408 or 413 too; Overloaded."""
        return await self.bodies.read(request.scope, request.receive)

    def device(self, request: Request) -> str:
        """The client's name for itself."""
        return request.query_params.get("device", "")[: self.config.id_chars_max]

    def tenant_of(self, request: Request) -> str:
        """The tenant that a request of an operator, or of the tenant's admin, is about."""
        return tenant_named(self.authenticate(request, ""), request.query_params)

    def subscriber(self, request: Request) -> tuple[Principal, str, bool]:
        """The bearer, the mailbox key of the query's `user` or of the bearer, and whether it is another user's."""
        user = self.queried_user(request)
        principal = self.authenticate(request, "connect" if user is None else "")
        check_own_tenant(principal, request.query_params)
        return principal, *mailbox_of(principal, user)

    def queried_user(self, request: Request) -> str | None:
        """The query's `user`; None where there is none. Bytes that are not UTF-8 name nobody: decoded, two such names would be one."""
        user = request.query_params.get("user")
        if user is not None and not (is_user(user, self.config.id_chars_max) and (_REPLACEMENT not in user or _is_utf8(request))):
            raise bad_request("`user`: text without control characters, in UTF-8")
        return user

    def user_of(self, request: Request, *, own: bool) -> str:
        """The mailbox key of the path's user, where the token allows it; `own`: it may be the bearer itself. Raises Problem: 404 too."""
        principal = self.authenticate(request, "")
        user: str = request.path_params["user"]
        if not is_user(user, self.config.id_chars_max):
            raise not_found("no user has this name")
        if own and "tenant" in request.query_params:
            return mailbox_key(tenant_named(principal, request.query_params), user)
        check_own_tenant(principal, request.query_params)
        return mailbox_of(principal, None if own and user == principal.user else user)[0]

    def durability(self) -> dict[str, str]:
        """The member of an answer that says that storage keeps less than promised."""
        word = self.gateway.storage.durability
        return {"durability": word} if word else {}

    def wait_s(self, request: Request) -> float:
        """How long a poll may wait, in seconds."""
        text = request.query_params.get("wait")
        if text is None:
            return min(POLL_WAIT_S, self.config.poll_wait_s_max)
        try:
            wait_s = float(text)
        except ValueError:
            wait_s = -1.0
        if not wait_s >= 0:  # NaN too
            raise bad_request("`wait`: seconds, not negative")
        return min(wait_s, self.config.poll_wait_s_max)


def _is_utf8(request: Request) -> bool:
    try:
        unquote_to_bytes(request.scope["query_string"]).decode()
    except UnicodeDecodeError:
        return False
    return True


def limit_of(query: Mapping[str, str], limit_max: int, default: int) -> int:
    """The `limit` of a listing. Raises Problem: 400."""
    text = query.get("limit", str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 0 < int(text) <= limit_max):
        raise bad_request(f"`limit`: a number from 1 to {limit_max}")
    return int(text)


def tenant_named(principal: Principal, query: QueryParams) -> str:
    """The tenant that a request concerns: the bearer's, or for an operator the one in the query.

    Raises:
        Problem: 403, the token has neither scope, or not that of an operator and names another tenant; 400, no tenant has that name.
    """
    operator = tokens.OPERATOR in principal.scopes
    if not operator:
        tokens.require(principal, "admin")
    tenant = query.get("tenant", principal.tenant)
    if not is_tenant(tenant):
        raise bad_request("`tenant`: 1 to 64 of A-Z, a-z, 0-9, _, . and -")
    if tenant != principal.tenant and not operator:
        raise forbidden("only with the scope `operator` may another tenant be given", scope=tokens.OPERATOR)
    return tenant


def check_own_tenant(principal: Principal, query: QueryParams) -> None:
    """Check that a request about the bearer's tenant names no other one, as other paths take it: it would change the wrong one.

    Raises:
        Problem: 403.
    """
    if query.get("tenant", principal.tenant) != principal.tenant:
        raise forbidden("`tenant`: this is done with a token of that tenant only")
