"""`GET /v1/audit`: what operators and admins did. The feature records every act that an endpoint declares (`Access.audited`)."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access, limit_of
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.auth import tokens
from engine.auth.tokens import Principal
from engine.core.model.routing import mailbox_key
from engine.errors import StorageUnavailable
from engine.features.audit import description
from engine.features.audit.audit_log import PAGE_MAX, Act, AuditLog
from engine.gateway.gateway import Gateway
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.http.problems import bad_request

log = logging.getLogger(__name__)

_ENTRY: Final = re.compile(description.ENTRY_PATTERN)


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    return feature_of(ports.gateway, AuditLog(ports.redis, ports.config))


def feature_of(gateway: Gateway, store: AuditLog) -> EdgeFeature:
    """The feature, with this storage."""

    async def record(who: Principal, act: str, on: str, details: Mapping[str, Any]) -> None:
        log.info("%s of tenant %s: %s %s", who.user, who.tenant, act, on)
        gateway.shard_client.record(mailbox_key(who.tenant, who.user), "acted", reason=f"{act}: {on}")
        try:
            await store.append(Act(who.tenant, who.user, who.jti, act, on, details))
        except StorageUnavailable as error:
            log.error("not in the audit log: %s of tenant %s: %s %s: %s", who.user, who.tenant, act, on, error)

    async def rows(key: str) -> AsyncIterator[bytes]:
        async for act in store.about(key):
            yield msgspec.json.encode(_shown(act))

    gateway.record_act = record
    gateway.kept_of_user["acts"] = rows
    return EdgeFeature("audit", lambda access: table(access, store))


def table(access: Access, store: AuditLog) -> EndpointTable:
    """The endpoint."""

    async def acts(request: Request) -> Response:
        """`GET /v1/audit?before=&after=&limit=`."""
        access.authenticate(request, tokens.OPERATOR)
        query = request.query_params
        for name in ("before", "after"):
            if name in query and not _ENTRY.fullmatch(query[name]):
                raise bad_request(f"`{name}`: the `entry` of an act")
        limit = limit_of(query, PAGE_MAX, 100)
        before = query.get("before", "")
        page = await (store.after(query["after"], limit, before) if "after" in query else store.page(before, limit))
        following = {"before": page[-1].entry} if len(page) == limit and "after" not in query else {}
        return json_answer({"acts": [_shown(act) for act in page], **following})

    return EndpointTable([route("/v1/audit", GET=acts)], description)


def _shown(act: Act) -> dict[str, Any]:
    members: dict[str, Any] = {"entry": act.entry, "at": act.at_ms, "tenant": act.tenant, "by": act.by, "act": act.act, "on": act.on}
    return members | ({"jti": act.jti} if act.jti else {}) | ({"details": act.details} if act.details else {})
