"""Events over a WebSocket: an `event` frame is what `POST /v1/events` is (`engine.gateway.feature_frames`).

Without the scope `publish` the status is 403. Quotas, room and rules are checked as for a request, by the same code. So the same event
under the same id is the same event on either way.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

import msgspec
from msgspec import Struct

from engine.auth import tokens
from engine.auth.tokens import Principal
from engine.core.wire import client_frames
from engine.features.rules.events import EventEndpoint
from engine.gateway.connection import Connection
from engine.gateway.feature_frames import Result
from engine.gateway.gateway import Gateway


class _EventFrame(Struct, gc=False):
    event: msgspec.Raw


_frames: Final = msgspec.json.Decoder(_EventFrame)


class EventFrames:
    """Takes the events of an edge's WebSockets, and of its other features.

    Args:
        gateway: of the edge; its `take_event` is set.
        events: takes those of requests too.
    """

    def __init__(self, gateway: Gateway, events: EventEndpoint) -> None:
        self._gateway = gateway
        self._events = events
        gateway.take_event = self.take
        gateway.feature_frames.register("event", self.answer)

    def answer(self, connection: Connection, frame: bytes) -> Coroutine[Any, Any, Result]:
        """The answer to a frame. Raises Invalid."""
        return self._answer(connection.owner, bytes(client_frames.decode(_frames, frame).event))

    async def _answer(self, owner: Principal, event: bytes) -> Result:
        return 202, await self.take(owner, event)

    async def take(self, owner: Principal, event: bytes) -> dict[str, Any]:
        """Take an event, JSON, of the bearer of a token; returns the members of the answer. Raises Problem, Overloaded, Unavailable."""
        gateway = self._gateway
        trace = gateway.trace_of("", owner.tenant)
        try:
            tokens.require(owner, "publish")
            gateway.tenant_quotas.check_request(owner)
            gateway.check_room(owner.tenant)
            durability = {"durability": word} if (word := gateway.storage.durability) else {}
            return {**await self._events.take(event, owner, trace), **durability}
        except Exception as error:
            if trace is not None:
                trace.failed(error)
            raise
