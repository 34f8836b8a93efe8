"""Publish frames of a held connection: each is what `POST /v1/notifications` is, checked, queued, parsed and answered by the same code.

    PublisherSocket --the frames of a read--> PublishFrames --alone------> PublishEndpoint.publish, as a request
                                                            --together---> one call to a shard, for all that it can answer at once

What a request costs beside its message is the call to its shard. So frames of one read share calls: those with one immediate message for a
user, of one priority and for one shard. For these a call is decided as a whole exactly as it would be for each: queue, lanes and breaker go
by tenant, priority and shard. Each frame keeps its own checks, its own turn to be parsed, its own result and its own refusal. All others,
and all where items are traced or get links, are published alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from engine.api.publish_endpoint import PublishEndpoint
from engine.auth.tokens import Principal
from engine.publish.drafts import Draft
from engine.publish.media_types import Content

OnResult = Callable[[int, bytes | Exception], None]
"""Called once for each frame, with its place and the body of its 202, or why it is none."""

_JSON: Final = Content()


class PublishFrames:
    """Publishes for one connection.

    Args:
        endpoint: takes requests too.
    """

    def __init__(self, endpoint: PublishEndpoint) -> None:
        self._endpoint = endpoint
        self._tasks: set[asyncio.Task[None]] = set()  # the loop holds them weakly

    def begin(self, frames: Sequence[bytes], principal: Principal, on_result: OnResult) -> None:
        """Publish what came in one read, the JSON of a request each. `on_result` may be called before this returns."""
        endpoint = self._endpoint
        calls: dict[tuple[int, int], list[tuple[int, Draft]]] = {}
        for place, items in enumerate(frames):
            try:
                endpoint.check(principal)
                if not endpoint.shares_calls:
                    self._run(self._alone(place, items, principal, on_result))
                    continue
                turn = endpoint.enter(items, _JSON, principal)
                if turn is not None:
                    self._run(self._later(place, turn, items, principal, on_result))
                    continue
                drafts = endpoint.parse(items, _JSON, principal)
            except Exception as error:
                on_result(place, error)
                continue
            draft = drafts[0]
            if len(drafts) == 1 and draft.topic is None and not draft.due_ms:
                calls.setdefault((endpoint.shard_of(draft), draft.envelope.priority), []).append((place, draft))
            else:
                self._run(self._parsed(place, drafts, on_result))
        for together in calls.values():
            self._run(self._together(together, on_result))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _alone(self, place: int, items: bytes, principal: Principal, on_result: OnResult) -> None:
        try:
            answer = await self._endpoint.publish(items, _JSON, principal)
        except Exception as error:
            on_result(place, error)
        else:
            on_result(place, answer)

    async def _later(self, place: int, turn: asyncio.Future[None], items: bytes, principal: Principal, on_result: OnResult) -> None:
        try:
            await turn
            drafts = self._endpoint.parse(items, _JSON, principal)
        except Exception as error:
            on_result(place, error)
        else:
            await self._parsed(place, drafts, on_result)

    async def _parsed(self, place: int, drafts: Sequence[Draft], on_result: OnResult) -> None:
        try:
            answer = await self._endpoint.post(drafts)
        except Exception as error:
            on_result(place, error)
        else:
            on_result(place, answer)

    async def _together(self, together: Sequence[tuple[int, Draft]], on_result: OnResult) -> None:
        try:
            outcomes = await self._endpoint.post_each([draft for _, draft in together])
        except Exception as error:
            for place, _ in together:
                on_result(place, error)
        else:
            for (place, _), outcome in zip(together, outcomes, strict=True):
                on_result(place, outcome)
