"""`GET /v1/audit`: what operators and admins did. The feature records every act that an endpoint declares (`Access.audited`)."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access, limit_of
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.auth import tokens
from engine.auth.tokens import Principal
from engine.core.model.routing import mailbox_key
from engine.errors import StorageUnavailable
from engine.features.audit import description
from engine.features.audit.audit_log import Act, AuditLog
from engine.gateway.gateway import Gateway
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.http.problems import RETRY_AFTER_S, bad_request, unavailable

log = logging.getLogger(__name__)

_ENTRY: Final = re.compile(description.ENTRY_PATTERN)


class ActStore(Protocol):
    """The log in storage, see `engine.features.audit.audit_log`."""

    async def append(self, act: Act, /) -> None: ...

    async def page(self, before: str, count: int, /) -> list[Act]: ...


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    return feature_of(ports.gateway, AuditLog(ports.redis, ports.config))


def feature_of(gateway: Gateway, store: ActStore) -> EdgeFeature:
    """The feature, with this storage."""

    async def record(who: Principal, act: str, on: str, details: Mapping[str, Any]) -> None:
        log.info("%s of tenant %s: %s %s", who.user, who.tenant, act, on)
        gateway.shard_client.record(mailbox_key(who.tenant, who.user), "acted", reason=f"{act}: {on}")
        try:
            await store.append(Act(who.tenant, who.user, who.jti, act, on, details))
        except StorageUnavailable as error:
            log.error("not in the audit log: %s of tenant %s: %s %s: %s", who.user, who.tenant, act, on, error)

    gateway.record_act = record
    return EdgeFeature("audit", lambda access: table(access, store))


def table(access: Access, store: ActStore) -> EndpointTable:
    """The endpoint."""

    async def acts(request: Request) -> Response:
        """`GET /v1/audit?before=&limit=`."""
        access.authenticate(request, tokens.OPERATOR)
        before, limit_max = request.query_params.get("before", ""), access.config.audit_page_max
        if "before" in request.query_params and not _ENTRY.fullmatch(before):
            raise bad_request("`before`: what the page before answered as `before`")
        limit = limit_of(request.query_params, limit_max, min(100, limit_max))
        try:
            page = await store.page(before, limit)
        except StorageUnavailable as error:
            raise unavailable(str(error), RETRY_AFTER_S) from None
        following = {"before": page[-1].entry} if len(page) == limit else {}
        return json_answer({"acts": [_shown(act) for act in page], **following})

    return EndpointTable([route("/v1/audit", GET=acts)], description)


def _shown(act: Act) -> dict[str, Any]:
    members: dict[str, Any] = {"at": act.at_ms, "tenant": act.tenant, "by": act.by, "act": act.act, "on": act.on}
    return members | ({"jti": act.jti} if act.jti else {}) | ({"details": act.details} if act.details else {})
