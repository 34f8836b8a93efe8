"""`POST /v1/explain`, and the timeline of a message: read from shards and schedulers; nothing is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from engine.api.history import History
from engine.core.mailbox.broadcast_log import EVERYONE
from engine.core.model.routing import split_key
from engine.core.wire.records import OK, Explained, Step
from engine.errors import Unavailable
from engine.gateway.shard_client import ShardClient
from engine.http.problems import not_found
from engine.publish.drafts import Draft

_STATES: Final = {
    "accepted": "pending",
    "revoked": "acknowledged",
    "triggered": "scheduled",
    "rescheduled": "scheduled",
    "cancelled": "gone",
    "expired": "gone",
    "trimmed": "gone",
    "superseded": "gone",
    "dead_lettered": "refused",
    "action_done": "acknowledged",
    "action_failed": "refused",
    **{state: state for state in ("scheduled", "merged", "suppressed", "deferred", "digested", "inboxed", "sent", "acknowledged")},
}
"""The state of a message that only the history knows, by the last event of it."""

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


async def timeline(shard_client: ShardClient, history: History, key: str, id: str) -> dict[str, Any]:
    """State and timeline of a user's message: from its shard, from its scheduler while it is scheduled, and from the history.

    The history has every step, a second later and for long; the others have the state, and the last moments. Without an answer of the
    history the timeline is what they know, and says so.

    Raises:
        Problem: 404, nothing is known.
        Unavailable: one of them did not answer.
    """
    traced, listed, archived = await asyncio.gather(shard_client.trace(key, id), shard_client.list_timers(key), _archived(history, key, id))
    if listed.status != OK:
        raise Unavailable(listed.detail or "durable storage did not answer")
    steps, state = list(traced.steps), traced.state
    for timer in listed.timers:
        if timer.envelope.id == id:
            steps.append(Step(timer.created_ms, "scheduled", f"scheduled_id: {timer.sid}", timer.due_ms))
            state = "scheduled"
    if archived:
        steps = _together(archived, steps)
        state = state or _STATES.get(archived[-1].event, "pending")
    if not state:
        raise not_found("nothing is known of this message: it never was, or it was settled too long ago")
    members = {"id": id, "state": state, "timeline": [_step(step) for step in sorted(steps, key=_when)]}
    if archived is None:
        members["history"] = "unavailable"
    return {**members, "seq": traced.seq} if traced.seq else members


async def _archived(history: History, key: str, id: str) -> list[Step] | None:
    """The steps that the history has, none where there is no history; None when it does not answer."""
    try:
        return await history.steps(*split_key(key), id) or []
    except Unavailable:
        return None


def _together(archived: Sequence[Step], known: Sequence[Step]) -> list[Step]:
    """The steps of the history, and those that it does not have yet."""
    had = {step.event for step in archived}
    return [*archived, *(step for step in known if step.event not in had)]


def _when(step: Step) -> int:
    return step.at_ms or 1 << 62  # a step whose time is not kept any more is the last one


def _step(step: Step) -> dict[str, Any]:
    members: dict[str, Any] = {"at": step.at_ms} if step.at_ms else {}
    members["event"] = step.event
    if step.reason:
        members["reason"] = step.reason
    if step.until_ms:
        members["until"] = step.until_ms
    return {**members, **step.details}
