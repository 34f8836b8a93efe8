"""Events over a WebSocket: an `event` frame is what `POST /v1/events` is, with its answer in an `event_result` frame.

    client --{"type":"event","ref","event"}--> WebSocketSession --EventFrames, a task--> EventEndpoint
    client <--{"type":"event_result","ref","status",...}--

The connection's token decides as that of a request would: without the scope `publish` the status is 403. Quotas, room and rules are
checked as for a request, by the same code, so the same event under the same id is the same event on either way.

Backpressure. A frame takes tokens of its connection's budget; the unanswered events of a connection, and of all, are bounded together with
other requests (`frame_requests_per_connection_max`, `frame_requests_max`): beyond that the answer is 429. Answers come as events end: who
needs an order waits for each answer. When the connection ends, an event that has begun is carried out all the same; its client sends it
again under its id on another connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from engine.auth import tokens
from engine.auth.tokens import Principal
from engine.errors import Overloaded, Unavailable
from engine.features.rules.events import EventEndpoint
from engine.gateway.gateway import Gateway
from engine.http.error_responses import problem_of
from engine.http.problems import Problem
from engine.publish.request_trace import RequestTrace

log = logging.getLogger(__name__)

OnResult = Callable[[int, dict[str, Any]], None]
"""Called once with the status and the members of the answer."""


class EventFrames:
    """Takes the events of an edge's WebSockets.

    Args:
        gateway: of the edge; its `begin_event` is set.
        events: takes those of requests too.
    """

    def __init__(self, gateway: Gateway, events: EventEndpoint) -> None:
        self._gateway = gateway
        self._events = events
        self._tasks: set[asyncio.Task[None]] = set()  # the loop holds them weakly
        gateway.begin_event = self.begin

    def begin(self, owner: Principal, event: bytes, on_result: OnResult) -> None:
        """Take an event, JSON, of the bearer of a token."""
        task = asyncio.ensure_future(self._take(owner, event, on_result))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, owner: Principal, event: bytes, on_result: OnResult) -> None:
        gateway = self._gateway
        trace = None if gateway.spans is None else RequestTrace("", gateway.spans.spans, owner.tenant)
        try:
            tokens.require(owner, "publish")
            gateway.tenant_quotas.check_request(owner)
            gateway.check_room(owner.tenant)
            durability = {"durability": word} if (word := gateway.storage.durability) else {}
            on_result(202, {**await self._events.take(event, owner, trace), **durability})
        except (Problem, Overloaded, Unavailable) as error:
            self._refuse(error, on_result, trace)
        except Exception as error:
            log.exception("an event of a WebSocket failed")
            self._refuse(error, on_result, trace)

    def _refuse(self, error: Exception, on_result: OnResult, trace: RequestTrace | None) -> None:
        if trace is not None:
            trace.failed(error)
        problem = problem_of(error)
        self._gateway.metrics.refused[problem.status] += 1
        retry = {"retry_after": int(text)} if (text := problem.headers.get("Retry-After")) else {}
        on_result(problem.status, {"problem": problem.body(), **retry})
