"""The timeline of a message: read from its shard, its scheduler and the history; nothing is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from engine.core.model.routing import split_key
from engine.core.wire.records import Step, Timer, Trace, Traced
from engine.errors import Unavailable
from engine.gateway.shard_client import ShardClient
from engine.http.problems import not_found

StepsOf = Callable[[str, str, str], Awaitable[list[Step] | None]]
"""(tenant, user, message) -> the steps that the history has; None: there is no history. Raises Unavailable."""

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


_EVENT: Final = "event"
"""Of an event for the rules, whose id may be that of a message too."""

_PASSING: Final = ("", "deferred", "digested")
"""States of which the shard does not say whether they are over: it knows its latest decisions for longer than its latest ids."""

STEPS: Final = frozenset(("step_skipped", "step_unsent", "step_done", "step_failed"))
"""Events of the steps of a message, which change nothing about the message."""


async def timeline(shard_client: ShardClient, steps_of: StepsOf, key: str, id: str) -> dict[str, Any]:
    """State and timeline of a user's message: from its shard, from its scheduler while it is scheduled, and from the history.

    The history has every step, a second later and for long; the others have the state, and the last moments. Without an answer of the
    history the timeline is what they know, and says so.

    Raises:
        Problem: 404, nothing is known.
        Unavailable: one of them did not answer.
    """
    traced, timers, archived = await asyncio.gather(
        shard_client.ask(Traced, lambda ref: Trace(ref, key, id)), _timers_of(shard_client, key, id), _archived(steps_of, key, id)
    )
    steps, state = list(traced.steps), traced.state
    for timer in timers:
        terms = None if timer.conditions is None else timer.conditions.step
        if terms is not None:
            steps.append(Step(timer.created_ms, "step_armed", f"{terms.step.channel}: {timer.sid}", timer.due_ms))
            continue
        steps.append(Step(timer.created_ms, "scheduled", f"scheduled_id: {timer.sid}", timer.due_ms))
        state = "scheduled"
    if archived:
        steps = _together(archived, steps)
        of_message = [step.event for step in archived if step.event != _EVENT]
        own = [event for event in of_message if event not in STEPS]
        if of_message and state in _PASSING:
            state = _STATES.get(own[-1], "pending") if own else state or "pending"
    if not state:
        raise not_found("nothing is known of this message: it never was, or it was settled too long ago")
    members = {"id": id, "state": state, "timeline": [_step(step) for step in sorted(steps, key=_when)]}
    if archived is None:
        members["history"] = "unavailable"
    return {**members, "seq": traced.seq} if traced.seq else members


async def _timers_of(shard_client: ShardClient, key: str, id: str) -> list[Timer]:
    return [timer async for timer in shard_client.every_timer(key) if timer.envelope.id == id]


async def _archived(steps_of: StepsOf, key: str, id: str) -> list[Step] | None:
    """The steps that the history has, none where there is no history; None when it does not answer."""
    try:
        return await steps_of(*split_key(key), id) or []
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
