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
    the edge, by draining    is answered, and what comes within          sends the rest elsewhere
                             `_CROSSING_S`; then closed 1012
    the token                as of the client's connection; closed 4401  the same, with a fresh token

Backpressure. A turn of the event loop handles `_TURN_BYTES` of what was read, or a frame that is larger; the rest waits here for the next
turns, and nothing more is read meanwhile. Nothing is handled or read while `held_publishes_max` frames, or `held_publish_bytes_max` bytes
of them, are unanswered, and while the client does not take its results: TCP makes the publisher wait, and results wait here until those
before them have left. A load beyond capacity is refused frame by frame, with 429 and `retry_after`, where requests are
(`engine.publish`). One that takes no results for `send_stall_ms` is closed with 4413. While nothing is read, pongs are not either, so
silence counts for nothing then: frames under way end within `publish_timeout_ms`, and results that are not taken within `send_stall_ms`.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableSet
from typing import Any, Final

from engine.api.publish_endpoint import PublishEndpoint
from engine.auth.tokens import Principal
from engine.core.wire import client_frames
from engine.core.wire.client_frames import ClientAuth, ClientPing, ClientPublish
from engine.errors import Invalid
from engine.gateway.connection import NO_CURSOR, PUBLISHER
from engine.gateway.gateway import GOING_AWAY, TOKEN_REFUSED, Gateway
from engine.http.error_responses import problem_for
from engine.http.problems import unprocessable
from engine.publish.media_types import Content
from engine.transports.websocket_protocol import INVALID_DATA, NOT_UTF8, Verify
from engine.transports.websocket_transport import DirectWebSocket

_FRAME_BYTES: Final = 2048
"""Of a publish frame beside its items: `type`, and `ref`, 128 characters of 12 bytes each with escapes."""

_TURN_BYTES: Final = 16 << 10
"""Of frames that one turn of the event loop handles: some 80 publish frames, 480 of the smallest, each 20 to 40 us."""

_WRITE_BYTES: Final = 64 << 10
"""Of results in one write: some 500. More are written when the kernel has taken these, so a slow client costs no more memory."""

_CROSSING_S: Final = 1.0
"""How long frames are read after `drain`: what its client had sent by then, over any network."""

_JSON: Final = Content()


class PublisherSocket(DirectWebSocket):
    """One publisher's connection.

    Args:
        verify: checks the fresh token of an `auth` frame; it needs the scope `publish`.
    """

    __slots__ = (
        "_departing",
        "_full",
        "_held",
        "_leaving",
        "_publisher",
        "_results",
        "_tasks",
        "_turn",
        "_unanswered",
        "_unanswered_bytes",
        "_unhandled",
    )

    receives = False
    too_slow_hint = "too slow: take the results; publish again what is unanswered, under the same ids"
    too_many_frames_hint = "too many frames other than `publish`; publish again what is unanswered, under the same ids"

    def __init__(self, gateway: Gateway, owner: Principal, verify: Verify, publisher: PublishEndpoint) -> None:
        super().__init__(gateway, owner, NO_CURSOR, "", verify)
        self._publisher = publisher
        self._tasks: set[asyncio.Task[None]] = set()  # the loop holds them weakly
        self._results: list[bytes] = []  # to be written at the end of this turn, or when those before them have left
        self._unanswered = 0  # frames
        self._unanswered_bytes = 0  # of their items
        self._unhandled = b""  # what was read, and waits for another turn
        self._turn: asyncio.Handle | None = None  # of the loop, in which more of it is handled
        self._full = False  # nothing is handled
        self._held = False  # nothing is read
        self._leaving = False  # the client has been told to publish elsewhere
        self._departing = False  # it has had the time to

    @property
    def opened_as(self) -> str:
        return PUBLISHER

    # -- Reading. ----------------------------------------------------------------------------------------------------------
    @property
    def frame_bytes_max(self) -> int:
        """Of a message: what a request may hold."""
        return self.gateway.config.body_bytes_max + _FRAME_BYTES

    def data_received(self, data: bytes) -> None:
        """Bytes of the client: handle as much as a turn may, and the rest in later ones."""
        self._unhandled += data
        if self._turn is None and not self._full:
            self._go_on()

    def _go_on(self) -> None:
        self._turn = None
        size = max(_TURN_BYTES, self._needed - len(self._tail) if self._tail else 0)
        if self.ended:
            size = len(self._unhandled)  # it is discarded
        data, self._unhandled = self._unhandled[:size], self._unhandled[size:]
        if data:
            super().data_received(data)
            self._regulate()

    def text(self, data: bytes) -> None:
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
            self._refuse(data, str(error))
            return
        if type(frame) is ClientPublish:
            self._begin(frame)
        elif self.spend_on(data):
            if type(frame) is ClientPing:
                self.write(client_frames.pong(frame.ts))
            elif type(frame) is ClientAuth:
                self._reauthenticate(frame.token)

    def _refuse(self, data: bytes, detail: str) -> None:
        """Answer a frame that is malformed. However large it is, it takes one token: it costs what any publish frame costs."""
        if not self.spend(1):
            return
        ref = client_frames.publish_ref(data)
        if ref is None:
            self._malformed(detail)
        else:
            self._unanswered += 1
            self._answered(self._refusal(ref, unprocessable(detail, [{"path": "$", "detail": detail}])), 0)

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
            self._publisher.check(self.owner)
            result = client_frames.publish_result(ref, await self._publisher.publish(items, _JSON, self.owner))
        except Exception as error:
            result = self._refusal(ref, error)
        self._answered(result, len(items))

    def _refusal(self, ref: str, error: Exception) -> bytes:
        problem = problem_for(error, self.gateway.metrics.refused)
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
        """Write the results of a turn of the event loop together, as far as the client takes them: those of one commit come together."""
        written = 0
        while written < len(self._results) and not self.unsent:
            self._corked, size = [], 0
            while written < len(self._results) and size < _WRITE_BYTES:
                result = self._results[written]
                self.write(result)
                size += len(result)
                written += 1
            self.flush()
        del self._results[:written]
        self._regulate()
        if self._departing:
            self._depart()

    def _regulate(self) -> None:
        """Stop where the client is to wait, and go on when half of what was too much has ended."""
        config, part = self.gateway.config, 2 if self._full else 1
        self._full = not self.ended and (
            self.unsent
            or self._departing
            or self._unanswered >= config.held_publishes_max / part
            or self._unanswered_bytes >= config.held_publish_bytes_max / part
        )
        if self._unhandled and not self._full and self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._go_on)
        holds = self._full or bool(self._unhandled)
        if holds == self._held:
            return
        self._held = holds
        if not holds:
            self._began_ms = self.gateway.clock()  # of an incomplete frame: it could not be completed meanwhile
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
        """Nothing is unsent any more: write what waited for that."""
        super().resume_writing()
        self._write_results()

    # -- The end. ----------------------------------------------------------------------------------------------------------
    def check(self, now_ms: int, wall_ms: int) -> int:
        """Heartbeat, token expiry and incomplete frames. Silence counts for nothing while nothing is read."""
        if self._held:
            self.heard = True
            self._began_ms = now_ms
        return super().check(now_ms, wall_ms)

    def drain(self, after_ms: int) -> None:
        """Tell the client to publish elsewhere, carry out what it has sent and sends until it knows, and close."""
        if not self._leaving:
            self._leaving = True
            self.write(client_frames.drain(after_ms))
            asyncio.get_running_loop().call_later(_CROSSING_S, self.shutdown)

    def shutdown(self) -> None:
        """Handle no more, and close once everything is answered."""
        self._departing = True
        self._regulate()
        self._depart()

    def _depart(self) -> None:
        if not self._unanswered and not self._results:
            self.close(GOING_AWAY, "going away")

    def close(self, code: int, reason: str) -> None:
        """As of any WebSocket. The client's close frame is read, whatever held it up."""
        super().close(code, reason)
        self._regulate()

    def fail(self, code: int, reason: str) -> None:
        super().fail(code, reason)
        self._regulate()

    def connection_lost(self, exc: Exception | None) -> None:
        """As of any WebSocket. What is under way is carried out; what was not handled is unanswered."""
        self._unhandled = b""
        super().connection_lost(exc)

    def begin(self, transport: asyncio.Transport, connections: MutableSet[Any]) -> None:
        """Take the transport of an accepted WebSocket; an edge that began to drain meanwhile leaves at once."""
        super().begin(transport, connections)
        if self.gateway.draining and not self.ended:
            self.drain(0)
