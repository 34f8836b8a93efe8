"""`POST /v1/explain`: read from shards; nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access, tenant_named
from engine.api.publish_endpoint import drafts_of
from engine.auth import tokens
from engine.core.mailbox.broadcast_log import EVERYONE
from engine.core.model.step import PROGRESS, ChannelStep
from engine.core.policy.profile import NO_PROFILE
from engine.core.wire.records import Explained
from engine.features.policy.core.contact_policy import unwanted_by
from engine.features.policy.core.policy_step import facts_of
from engine.features.policy.profiles import ask_profile
from engine.gateway.shard_client import ShardClient
from engine.http.endpoint_table import Endpoint, json_answer
from engine.publish.drafts import Draft
from engine.publish.media_types import Content

_WITH_STEPS: Final = ("deliver", "defer", "digest", "inbox")
"""Decisions about a message that is kept."""

_BROADCAST = {"code": "broadcast", "detail": "every mailbox decides for itself: mutes and quiet hours count, caps and the digest do not"}


async def explain(
    shard_client: ShardClient, drafts: Sequence[Draft], steps: Mapping[str, Sequence[ChannelStep]], now_ms: int, *, inbox: bool
) -> dict[str, Any]:
    """What the engine would decide about these drafts now, and why.

    Args:
        steps: by category.
        now_ms: milliseconds since the epoch.
        inbox: whether there is an inbox.

    Raises:
        Overloaded: too many records await answers.
        Unavailable: a shard did not answer.
    """
    for_users = [draft for draft in drafts if draft.topic is None]
    explained = iter(await shard_client.explain(for_users))
    keys = {draft.key for draft in for_users if _steps_of(draft, steps)}
    profiles = {key: (await ask_profile(shard_client, key)).profile or NO_PROFILE for key in keys}
    results = []
    for draft in drafts:
        if draft.topic is not None:
            results.append(_broadcast_explanation(draft))
            continue
        told = next(explained)
        members = _explanation(draft, told)
        found = _steps_of(draft, steps) if told.decision in _WITH_STEPS else ()
        if found:
            facts, profile = facts_of(draft.envelope), profiles[draft.key]
            message_ms = max(told.until_ms, now_ms)
            members["steps"] = [_step(step, message_ms, unwanted_by(facts, profile, step, inbox=inbox)) for step in found]
        results.append(members)
    return {"results": results}


def _steps_of(draft: Draft, steps: Mapping[str, Sequence[ChannelStep]]) -> Sequence[ChannelStep]:
    terms = draft.envelope.policy_terms
    return () if terms is None else steps.get(terms.category, ())


def _explanation(draft: Draft, explained: Explained) -> dict[str, Any]:
    members: dict[str, Any] = {"user": draft.user, "decision": explained.decision}
    members["reasons"] = [{"code": code, "detail": detail} for code, detail in explained.reasons]
    if explained.until_ms:
        members["until"] = explained.until_ms
    if explained.seq:
        members["seq"] = explained.seq
    return members


def _step(step: ChannelStep, message_ms: int, unwanted: str) -> dict[str, Any]:
    """When the step would be due, and why the user does not want it, as of now; it is decided then."""
    members: dict[str, Any] = {"channel": step.channel, "at": message_ms + step.after_ms}
    members |= {"to": step.to} if step.to else {}
    members |= {"unless": PROGRESS[step.unless]} if step.unless else {}
    members |= {"unwanted": unwanted} if unwanted else {}
    return members | ({"cap": step.cap, "per": step.cap_ms} if step.cap else {})


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
        return json_answer(await explain(gateway.shard_client, drafts, defined.steps, gateway.wall_ms(), inbox=access.config.inbox_max > 0))

    return ask
