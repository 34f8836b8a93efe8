"""`POST /v1/tokens/revoke`, and the revocations in force on an edge: read from storage before it serves, followed from then on.

    POST --> RevocationLog (Redis) --every revocations_poll_ms, each edge--> RevokedTokens <-- Authenticator, with every token
                                                                            Gateway.close_revoked: connections end with 4401

| state of an edge | how it gets there | tokens seen before | other tokens | seen at |
|---|---|---|---|---|
| not started | storage has not answered since the start | no request is served | | |
| following | every read answers | checked | checked | |
| behind | no answer for more than a second | checked against what was read last | the same | `/readyz`, `engine_edge_degraded` |
| blind | no answer for `revocations_stale_ms` | the same | `503` | the same |

An edge that cannot read what is revoked goes on for whom it knows: without storage nothing can be revoked either, so only an edge that is
cut off alone can miss a revocation, and then its `/readyz` is 503 too. It lets in nobody new, since that may be who was locked out.

Who dies when: a revocation is answered after it is durable and in force on the edge that took it. Before that the request is repeated,
which changes nothing. An edge that dies reads everything at its next start. When storage has lost revocations (a fail-over, a restored
backup), every running edge notices at its next read, keeps what it had in force and appends it again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access, check_own_tenant
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.api.json_bodies import decode_body
from engine.auth.revoked_tokens import RevokedTokens
from engine.auth.tokens import Authenticator, Principal
from engine.config import Config
from engine.core.model.names import is_id, is_user
from engine.core.model.period import until_next
from engine.core.model.revocation import JTI, TOKEN, USER, Revocation
from engine.errors import Invalid, Overloaded, StorageUnavailable
from engine.features.token_revocation import description
from engine.features.token_revocation.revocation_log import RevocationLog
from engine.gateway.gateway import Gateway
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.http.problems import Problem, forbidden
from engine.publish import media_types
from engine.publish.items import rfc3339_ms

log = logging.getLogger(__name__)

BEFORE_AHEAD_S: Final = 300
"""How far in the future `before` may be: the issuer's clock may be ahead of the engine's."""

_BEHIND_MS: Final = 1000


class _Request(Struct, forbid_unknown_fields=True):
    token: str | UnsetType = UNSET
    jti: str | UnsetType = UNSET
    user: str | UnsetType = UNSET
    before: int | str | UnsetType = UNSET
    exp: int | UnsetType = UNSET


_REQUEST: Final = msgspec.json.Decoder(_Request)


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    store = RevocationLog(ports.redis, ports.config)
    return feature_of(TokenRevocations(ports.config, store, ports.authenticator, ports.gateway))


def feature_of(revocations: TokenRevocations) -> EdgeFeature:
    """The feature, with these revocations."""
    return EdgeFeature("token_revocation", lambda access: table(access, revocations), run=revocations.run, prepare=revocations.catch_up)


def table(access: Access, revocations: TokenRevocations) -> EndpointTable:
    """The endpoint."""

    async def revoke(request: Request) -> Response:
        """`POST /v1/tokens/revoke`."""
        principal = access.authenticate(request, "admin")
        check_own_tenant(principal, request.query_params)
        body = await access.body(request)
        revoked = await revocations.revoke(body, principal)
        named = msgspec.json.decode(body)  # a token itself is a secret
        request.state.details = {**revoked, **{name: named[name] for name in ("user", "jti") if name in named}}
        return json_answer(revoked)

    return EndpointTable([route("/v1/tokens/revoke", POST=access.audited("revoke_tokens", revoke))], description)


class TokenRevocations:
    """The revocations of one edge.

    Args:
        authenticator: reads a token that shall be revoked.
        gateway: its `revoked` is kept here, and its connections are closed.
    """

    def __init__(self, config: Config, store: RevocationLog, authenticator: Authenticator, gateway: Gateway) -> None:
        self._config = config
        self._store = store
        self._authenticator = authenticator
        self._gateway = gateway
        self._revoked: RevokedTokens = gateway.revoked
        self._clock: Callable[[], int] = gateway.clock
        self._head = ""
        self._turn = asyncio.Lock()  # what was read must not be compared with what was revoked since
        self._read_ms = gateway.clock()
        gateway.metrics.degraded["revocations"] = self._reason

    # -- Following. --------------------------------------------------------------------------------------------------------
    async def catch_up(self) -> None:
        """Put in force what was revoked since the last call, the first time everything. Raises StorageUnavailable."""
        async with self._turn:
            found = await self._store.read(self._head)
            await self._put_in_force(found.revocations)
            if found.whole and self._head:
                await self._put_back(found.revocations)
            self._head = found.head
        self._read_ms = self._clock()
        self._revoked.unknown = False

    async def run(self) -> None:
        """Follow storage until cancelled."""
        while True:
            await asyncio.sleep(until_next(time.monotonic(), self._config.revocations_poll_ms / 1000))
            try:
                await self.catch_up()
            except StorageUnavailable as error:
                if self._clock() - self._read_ms > self._config.revocations_stale_ms and not self._revoked.unknown:
                    self._revoked.unknown = True
                    log.warning("tokens that were not seen before are refused: %s", error)
            self._revoked.forget_expired(self._gateway.wall_ms())

    async def _put_in_force(self, revocations: Sequence[Revocation]) -> None:
        await self._gateway.close_revoked(self._revoked.add(revocations))

    async def _put_back(self, there: Sequence[Revocation]) -> None:
        """Append again what is in force here and not in storage, which has lost it. Raises StorageUnavailable."""
        missing = self._revoked.missing(there)
        if missing:
            log.error("storage has lost %d revocations; they are appended again", len(missing))
            try:
                await self._store.append(missing)
            except Overloaded as error:
                log.error("not all revocations could be appended again: %s", error)

    def _reason(self) -> str:
        behind_ms = self._clock() - self._read_ms
        return f"which tokens are revoked was last read {behind_ms / 1000:.0f} s ago" if behind_ms > _BEHIND_MS else ""

    # -- Revoking. ---------------------------------------------------------------------------------------------------------
    async def revoke(self, body: bytes, principal: Principal) -> dict[str, Any]:
        """Revoke what the request names, for `principal`'s tenant; the answer's members.

        Raises:
            Problem: 400 or 422, the request is not valid; 403, the token is another tenant's; 503, storage does not answer:
                it may be in force, and the request can be repeated.
            Overloaded: `revocations_max` or `revocations_per_tenant_max` is reached.
        """
        now_ms = self._gateway.wall_ms()
        try:
            revocation = self._parse(body, principal, now_ms)
        except Invalid as error:
            raise media_types.unacceptable(error) from None
        if revocation.expires_ms > now_ms:  # else the token has expired by itself
            async with self._turn:
                await self._store.append([revocation])
                await self._put_in_force([revocation])
            log.info("%s of tenant %s revoked by %s", revocation.kind, principal.tenant, principal.user)
        before = {"before": revocation.before_ms} if revocation.kind == USER else {}
        return {"revoked": revocation.kind, **before, "until": revocation.expires_ms}

    def _parse(self, body: bytes, principal: Principal, now_ms: int) -> Revocation:
        """The revocation that a request asks for. Raises Problem or Invalid."""
        request = decode_body(_REQUEST, body, _Request)
        named = [name for name in (TOKEN, JTI, USER) if getattr(request, name) is not UNSET]
        if len(named) != 1:
            raise Invalid("exactly one of token, jti and user is needed")
        if request.before is not UNSET and named != [USER]:
            raise Invalid("only with user", "$.before")
        if request.exp is not UNSET and named != [JTI]:
            raise Invalid("only with jti", "$.exp")
        if request.token is not UNSET:
            return self._of_token(request.token, principal)
        chars_max = self._config.id_chars_max
        last_ms = now_ms + self._config.token_lifetime_s_max * 1000
        if request.jti is not UNSET:
            if not is_id(request.jti, chars_max):
                raise Invalid(f"printable text of 1 to {chars_max} characters; a token with another one is given itself", "$.jti")
            return Revocation(JTI, principal.tenant, request.jti, last_ms if request.exp is UNSET else _expiry_ms(request.exp, last_ms))
        if request.user is UNSET or not is_user(request.user, chars_max):
            raise Invalid(f"text of 1 to {chars_max} characters without control characters", "$.user")
        before_ms = now_ms if request.before is UNSET else _before_ms(request.before, now_ms)
        return Revocation(
            USER, principal.tenant, request.user, max(last_ms, before_ms + self._config.token_lifetime_s_max * 1000), before_ms
        )

    def _of_token(self, token: str, principal: Principal) -> Revocation:
        try:
            bearer = self._authenticator.verify(token, math.inf)  # also one that is valid from tomorrow on
        except Problem as problem:
            if problem.status != 401:
                raise
            raise Invalid(f"no token of this engine: {problem.detail}", "$.token") from problem
        if bearer.tenant != principal.tenant:
            raise forbidden("the token is another tenant's")
        return Revocation(TOKEN, bearer.tenant, bearer.token_id, bearer.expires_s * 1000)


def _expiry_ms(exp_s: int, last_ms: int) -> int:
    if not 0 <= exp_s * 1000 <= last_ms:
        raise Invalid(f"seconds since the epoch, as in the token, at most {last_ms // 1000}", "$.exp")
    return exp_s * 1000


def _before_ms(before: int | str, now_ms: int) -> int:
    before_ms = rfc3339_ms(before, "$.before") if isinstance(before, str) else before
    if not 0 <= before_ms <= now_ms + BEFORE_AHEAD_S * 1000:
        raise Invalid(f"a time since the epoch, at most {BEFORE_AHEAD_S} seconds ahead: ms, or RFC 3339", "$.before")
    return before_ms
