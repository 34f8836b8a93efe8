"""`POST /v1/explain`: read from shards; nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access, tenant_named
from engine.api.publish_endpoint import drafts_of
from engine.auth import tokens
from engine.core.mailbox.broadcast_log import EVERYONE
from engine.core.wire.records import Explained
from engine.gateway.shard_client import ShardClient
from engine.http.endpoint_table import Endpoint, json_answer
from engine.publish.drafts import Draft
from engine.publish.media_types import Content

_BROADCAST = {"code": "broadcast", "detail": "every mailbox decides for itself: mutes and quiet hours count, caps and the digest do not"}


async def explain(shard_client: ShardClient, drafts: Sequence[Draft]) -> dict[str, Any]:
    """What the engine would decide about these drafts now, and why.

    Raises:
        Overloaded: too many records await answers.
        Unavailable: a shard did not answer.
    """
    for_users = [draft for draft in drafts if draft.topic is None]
    explained = iter(await shard_client.explain(for_users))
    return {"results": [_explanation(draft, next(explained)) if draft.topic is None else _broadcast_explanation(draft) for draft in drafts]}


def _explanation(draft: Draft, explained: Explained) -> dict[str, Any]:
    members: dict[str, Any] = {"user": draft.user, "decision": explained.decision}
    members["reasons"] = [{"code": code, "detail": detail} for code, detail in explained.reasons]
    if explained.until_ms:
        members["until"] = explained.until_ms
    if explained.seq:
        members["seq"] = explained.seq
    return members


def _broadcast_explanation(draft: Draft) -> dict[str, Any]:
    whom = {"broadcast": True} if draft.topic == EVERYONE else {"topic": draft.topic}
    until = {"until": draft.due_ms} if draft.due_ms else {}
    return {**whom, "decision": "deliver", "reasons": [_BROADCAST], **until}


def endpoint(access: Access) -> Endpoint:
    """`POST /v1/explain?tenant=`."""

    async def ask(request: Request) -> Response:
        principal = access.authenticate(request, "")
        if "tenant" in request.query_params:
            principal = msgspec.structs.replace(principal, tenant=tenant_named(principal, request.query_params))
        elif tokens.OPERATOR not in principal.scopes:
            tokens.require(principal, "publish")
        body, gateway = await access.body(request), access.gateway
        defined = gateway.category_book.in_use(principal.tenant)
        drafts = drafts_of(gateway, access.config, body, Content.of(request.scope["headers"]), principal, defined)
        return json_answer(await explain(gateway.shard_client, drafts))

    return ask
