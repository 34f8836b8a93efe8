"""The timers of the steps of one message.

Their ids follow from the message's id, so a repeated publish arms none twice, and a timer whose message never came does nothing.
They keep the collapse key of the message: what cancels a waiting message by its key ends its steps too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

import msgspec

from engine.core.model.action import ChannelCap, action_of
from engine.core.model.category import DAY_MS, PolicyTerms
from engine.core.model.constants import AT_MAX_MS, HIGH
from engine.core.model.envelope import Envelope
from engine.core.model.routing import timer_id
from engine.core.model.step import ChannelStep, StepTerms
from engine.core.policy.conditions import Conditions
from engine.core.wire.records import Timer


def step_timers(
    key: str, envelope: Envelope, steps: Sequence[ChannelStep], *, seq: int, sid: str, message_ms: int, ttl_ms: int, now_ms: int
) -> Iterator[Timer]:
    """The timers of a message that was accepted.

    Args:
        key: mailbox key of the user.
        steps: of its category.
        seq: its number; 0 for a delayed message, which has none yet.
        sid: of a delayed message, its scheduled id.
        message_ms: when it was accepted, or is due.
        ttl_ms: how long a step may be late.
    """
    category = envelope.policy_terms or PolicyTerms()
    for index, step in enumerate(steps):
        counted = step.cap and not (step.mandatory or category.limits.mandatory or envelope.priority == HIGH)
        cap = ChannelCap(category.category, step.cap, step.cap_ms) if counted else None
        due_ms = min(message_ms + step.after_ms, AT_MAX_MS)
        name = blake2b("\n".join((key, envelope.id, str(index))).encode(), digest_size=16).hexdigest()
        terms = StepTerms(step, envelope.id, seq) if seq else StepTerms(step, envelope.id, 0, min(due_ms + DAY_MS, AT_MAX_MS), sid)
        yield Timer(
            sid=timer_id(key, name),
            key=key,
            due_ms=due_ms,
            created_ms=now_ms,
            ttl_ms=ttl_ms,
            envelope=envelope,
            conditions=Conditions(message_ms, step=terms),
            action=msgspec.structs.replace(action_of(step.target, key, f"{envelope.id}/{index}"), cap=cap),
        )
