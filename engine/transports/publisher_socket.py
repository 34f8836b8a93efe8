"""A WebSocket that a publisher holds: any number of publish requests on one connection, answered as each becomes durable.

    client --{"type":"publish","ref","items"}--> PublisherSocket --a task--> PublishEndpoint, as a request
    client <--{"type":"publish_result","ref","status",...}-- the results of a turn of the event loop, in one write

Bytes, handshake, heartbeats, tokens and closing are those of `DirectWebSocket`; what a frame publishes is checked, queued, traced, counted
and answered by the code of requests (`engine.api.publish_endpoint`). The connection is of no user: no shard knows it, it receives nothing,
and it makes nobody present.

States of a frame: arrived -> under way -> answered. Who owns it: this object until a result is written, then nobody.

    end of                   what was under way                          what the publisher does
    the client's connection  is carried out; nobody is told              sends everything unanswered again, under the same ids
    this process             in the journal or not, as of a request      the same, to another edge
    the edge, by draining    is answered; later frames are answered 503;  sends those elsewhere
                             then the connection is closed with 1012
    the token                as of the client's connection; closed 4401  the same, with a fresh token

Backpressure. Nothing is read while `held_publishes_max` frames, or `held_publish_bytes_max` bytes of them, are unanswered, and while the
client does not take its results: TCP makes the publisher wait. What one read has brought beyond that is taken. A load beyond capacity is
refused frame by frame, with 429 and `retry_after`, where requests are (`engine.publish`). One that takes no results for `send_stall_ms` is
closed with 4413. While nothing is read, pongs are not either, so silence counts for nothing then: frames under way end within
`publish_timeout_ms`, and results that are not taken within `send_stall_ms`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableSet
from typing import Any, Final

from engine.api.publish_endpoint import PublishEndpoint
from engine.auth.tokens import Principal
from engine.core.wire import client_frames
from engine.core.wire.client_frames import ClientAuth, ClientPing, ClientPublish
from engine.errors import Invalid, Overloaded, Unavailable
from engine.gateway.connection import NO_CURSOR, PUBLISHER
from engine.gateway.gateway import GOING_AWAY, TOKEN_REFUSED, Gateway
from engine.http.error_responses import problem_of
from engine.http.problems import Problem
from engine.publish.media_types import Content
from engine.transports.websocket_protocol import INVALID_DATA, NOT_UTF8, Verify
from engine.transports.websocket_transport import DirectWebSocket

_FRAME_BYTES: Final = 1024
"""Of a publish frame beside its items: `type`, and `ref` with escapes."""

_JSON: Final = Content()

log = logging.getLogger(__name__)


class PublisherSocket(DirectWebSocket):
    """One publisher's connection.

    Args:
        verify: checks the fresh token of an `auth` frame; it needs the scope `publish`.
        publisher: takes what is published.
    """

    __slots__ = ("_arrived", "_held", "_leaving", "_publisher", "_results", "_tasks", "_unanswered", "_unanswered_bytes")

    receives = False

    def __init__(self, gateway: Gateway, owner: Principal, verify: Verify, publisher: PublishEndpoint) -> None:
        super().__init__(gateway, owner, NO_CURSOR, "", verify)
        self._publisher = publisher
        self._arrived: list[ClientPublish] = []  # by the read that is being handled
        self._tasks: set[asyncio.Task[None]] = set()  # the loop holds them weakly
        self._results: list[bytes] = []  # to be written at the end of this turn
        self._unanswered = 0  # frames
        self._unanswered_bytes = 0  # of their items
        self._held = False  # nothing is read
        self._leaving = False  # the edge drains

    @property
    def opened_as(self) -> str:
        """A publisher, whatever carries it."""
        return PUBLISHER

    # -- Reading. ----------------------------------------------------------------------------------------------------------
    @property
    def frame_bytes_max(self) -> int:
        """Of a message: what a request may hold."""
        return self.gateway.config.body_bytes_max + _FRAME_BYTES

    def data_received(self, data: bytes) -> None:
        """Bytes of the client: begin what they publish."""
        super().data_received(data)
        if self._arrived:
            arrived, self._arrived = self._arrived, []
            for frame in arrived:
                self._begin(frame)
            self._regulate()

    def text(self, data: bytes) -> None:
        """A text frame arrived."""
        if self.ended:
            return
        self.heard = True
        self.gateway.metrics.frames_received += 1
        try:
            frame = client_frames.parse_publisher(data)
        except UnicodeDecodeError:
            self.fail(INVALID_DATA, NOT_UTF8)
            return
        except Invalid as error:
            if self.spend_on(data):
                self._malformed(str(error))
            return
        if type(frame) is ClientPublish:
            self._arrived.append(frame)
        elif self.spend_on(data):
            if type(frame) is ClientPing:
                self.write(client_frames.pong(frame.ts))
            elif type(frame) is ClientAuth:
                self._reauthenticate(frame.token)

    def _begin(self, frame: ClientPublish) -> None:
        if self.gateway.wall_ms() >= self.expires_ms:
            self.close(TOKEN_REFUSED, "the token has expired")
        if self.ended:
            return
        items = bytes(frame.items)
        self._unanswered += 1
        self._unanswered_bytes += len(items)
        task = asyncio.get_running_loop().create_task(self._publish(frame.ref, items))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self, ref: str, items: bytes) -> None:
        try:
            if self._leaving:
                raise Unavailable("going away")
            self._publisher.check(self.owner)
            result = client_frames.publish_result(ref, await self._publisher.publish(items, _JSON, self.owner))
        except Exception as error:
            result = self._refusal(ref, error)
        self._answered(result, len(items))

    def _refusal(self, ref: str, error: Exception) -> bytes:
        if not isinstance(error, Problem | Overloaded | Unavailable):
            log.error("a publish frame failed", exc_info=error)  # a bug
        problem = problem_of(error)
        self.gateway.metrics.refused[problem.status] += 1
        retry_after = problem.headers.get("Retry-After")
        return client_frames.publish_refusal(ref, problem.status, problem.body(), None if retry_after is None else int(retry_after))

    # -- Answering. --------------------------------------------------------------------------------------------------------
    def _answered(self, result: bytes, size: int) -> None:
        self._unanswered -= 1
        self._unanswered_bytes -= size
        if not self._results:
            asyncio.get_running_loop().call_soon(self._write_results)
        self._results.append(result)

    def _write_results(self) -> None:
        """Write the results of a turn of the event loop together: those of one commit come together."""
        results, self._results = self._results, []
        self._corked = []
        for result in results:
            self.write(result)
        self.flush()
        self._regulate()
        if self._leaving and not self._unanswered:
            self._depart()

    def _regulate(self) -> None:
        """Stop reading where the client is to wait, and go on when half of what was too much has ended."""
        config, part = self.gateway.config, 2 if self._held else 1
        holds = not self.ended and (
            self.unsent
            or self._unanswered >= config.held_publishes_max / part
            or self._unanswered_bytes >= config.held_publish_bytes_max / part
        )
        if holds == self._held:
            return
        self._held = holds
        if self._transport.is_closing():
            return
        if holds:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """The kernel took less than everything: the client is to take its results before it publishes more."""
        super().pause_writing()
        self._regulate()

    def resume_writing(self) -> None:
        """Nothing is unsent any more."""
        super().resume_writing()
        self._regulate()

    # -- The end. ----------------------------------------------------------------------------------------------------------
    def check(self, now_ms: int, wall_ms: int) -> int:
        """Heartbeat and token expiry. Silence counts for nothing while nothing is read."""
        self.heard = self.heard or self._held
        return super().check(now_ms, wall_ms)

    def drain(self, after_ms: int) -> None:
        """Tell the client to publish elsewhere, answer what is under way, and close."""
        if not self._leaving:
            self.write(client_frames.drain(after_ms))
        self.shutdown()

    def shutdown(self) -> None:
        """Close once everything is answered."""
        self._leaving = True
        if not self._unanswered and not self._results:
            self._depart()

    def _depart(self) -> None:
        self.close(GOING_AWAY, "going away")

    def close(self, code: int, reason: str) -> None:
        """As of any WebSocket. The client's close frame is read, whatever held it up."""
        super().close(code, reason)
        self._regulate()

    def fail(self, code: int, reason: str) -> None:
        """Likewise."""
        super().fail(code, reason)
        self._regulate()

    def begin(self, transport: asyncio.Transport, connections: MutableSet[Any]) -> None:
        """Take the transport of an accepted WebSocket; an edge that began to drain meanwhile leaves at once."""
        super().begin(transport, connections)
        if self.gateway.draining and not self.ended:
            self.drain(0)
