"""Arms the steps of messages on an edge, after the messages were accepted and before their publisher is answered.

    post --accepted, or a repeat--> timers of its steps at the scheduler --durable--> 202

| what dies, or is away | effect |
|---|---|
| the edge, before the message is stored | nothing was accepted; the publisher repeats it |
| the edge, between message and timers | no 202; the repeat finds the message, and arms the timers |
| the scheduler, before it has stored the timers | the edge asks its successor; without one the publisher gets 503 and repeats it |
| the edge, after the timers are stored | no 202; the repeat finds message and timers, and changes nothing |
| scheduler or shard, when a step is due | as with every durable timer: it is handed out again, and takes effect once |
| the edge that sends, in a call | as with every action: another edge sends it again, under the same key |

The message comes first because its number is known then, by which its shard finds it for as long as it is kept. With the timers first, a
publish that was refused and repeated later would find its steps gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from engine.core.model.formats import STEPS
from engine.core.model.step import ChannelStep
from engine.core.wire.records import CONFLICT, PUBLISH_STATUS, Timer
from engine.features.reach.core.step_timers import step_timers
from engine.gateway.shard_client import ShardClient
from engine.publish.drafts import Draft
from engine.publish.results import ItemResult

_CONFLICT: Final = PUBLISH_STATUS[CONFLICT]


class StepArming:
    """Arms the steps of one edge. `wall_ms`: milliseconds since the epoch."""

    def __init__(self, shard_client: ShardClient, wall_ms: Callable[[], int]) -> None:
        self._shard_client = shard_client
        self._wall_ms = wall_ms

    async def arm(self, drafts: Sequence[Draft], results: Sequence[ItemResult], steps: Mapping[str, Sequence[ChannelStep]]) -> None:
        """Arm the steps of these drafts, whose results are known; durable on return.

        A message that was merged with others has no steps: what users get is the summary. Nor has one for a topic, or for everyone, nor one
        whose id belongs to another.

        Args:
            steps: by category.

        Raises:
            Overloaded, Unavailable: not all are armed; the request is to be repeated under the same ids.
        """
        now_ms, timers = self._wall_ms(), list[Timer]()
        for draft, result in zip(drafts, results, strict=True):
            terms = draft.envelope.policy_terms
            if terms is None or draft.topic is not None or result.status == _CONFLICT or not (result.seq > 0 or result.scheduled_id):
                continue
            message_ms = now_ms if result.seq else result.scheduled_at or draft.due_ms or now_ms
            timers += step_timers(
                draft.key,
                draft.envelope,
                steps.get(terms.category, ()),
                seq=result.seq,
                sid=result.scheduled_id,
                message_ms=message_ms,
                ttl_ms=draft.ttl_ms,
                now_ms=now_ms,
            )
        if timers:
            await self._shard_client.schedule_all(timers, STEPS)
