"""What a target is given: one JSON object about the action and its message."""

from __future__ import annotations

import msgspec

from engine.core.model.trace_context import trace_in
from engine.features.actions.store import QueuedAction


def event_body(action: QueuedAction) -> bytes:
    """`{"key", "tenant", "user", "due", "message": {...}}`: `key` identifies the action, `message` is what its rule made of the event.

    Also `traceparent`, where the message has one.
    """
    context = trace_in(action.body)
    return msgspec.json.encode(
        {
            "key": action.key,
            "tenant": action.tenant,
            "user": action.user,
            "due": action.due_ms,
            **({} if context is None else {"traceparent": str(context)}),
            "message": msgspec.Raw(action.body),
        }
    )
