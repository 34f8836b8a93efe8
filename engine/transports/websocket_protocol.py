"""The application protocol of a WebSocket, `notify.v1.json`, without its bytes: what client frames do and what the server sends.

    client frame --text/binary-->  WebSocketSession  --ack, nack, detach-->  Gateway
    client       <--write/ping---  WebSocketSession  <--on_messages, ...---  Gateway

Budget. A cumulative ACK of what was sent replaces the one before it on its way to the shard, so any number of them is taken. Every other
frame costs an answer, a record for the shard, the check of a signature or an object of the library: it takes a token of the connection's
bucket, a large one takes one per `_TOKEN_BYTES`. The bucket gains `client_frames_per_s`, and `client_frames_per_message` for each message
delivered: a client may acknowledge one by one at any rate. One that has used it up is closed with 4429. Requests (`subscribe`, and those of
`engine.gateway.feature_frames`) are bounded by number too, per connection and for all, so users cannot fill the table of unanswered calls
that publishers need.

`engine.transports.websocket_transport.DirectWebSocket` implements `write`, `ping` and `close` on a transport; the simulator has an
implementation of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from engine.api import subscriptions
from engine.auth.tokens import Principal
from engine.auth.topic_permissions import check_topics, permits
from engine.core.edge.heartbeat import Heartbeat, HeartbeatAction
from engine.core.edge.token_bucket import TokenBucket
from engine.core.model.constants import REASON_CHARS_MAX
from engine.core.model.message import frame_bytes
from engine.core.wire import client_frames
from engine.core.wire import records as wire
from engine.errors import Invalid
from engine.gateway.connection import Connection, Cursor
from engine.gateway.gateway import GOING_AWAY, TOKEN_REFUSED, Gateway
from engine.http.problems import RETRY_AFTER_S, Problem, too_many_requests

INVALID_DATA: Final = 1007
POLICY_VIOLATION: Final = 1008
FORBIDDEN: Final = 4403
HEARTBEAT_MISSED: Final = 4408
TOO_SLOW: Final = 4413
TOO_MANY_FRAMES: Final = 4429
NOT_UTF8: Final = "text frames are UTF-8"

TOO_SLOW_HINT: Final = "too slow: read faster or ask for less; reconnect with your cursor, everything not acknowledged is kept"
_TOO_MANY_FRAMES: Final = "too many frames: acknowledge by `seq`, and wait for answers; reconnect with your cursor"
"""Reasons in close frames, at most 123 bytes (RFC 6455, section 5.5)."""

_TOKEN_BYTES: Final = 256
"""The size up to which a frame takes one token: a message id and what is around it."""

Verify = Callable[[str], Principal]
"""Returns a token's principal; raises Problem, 401 for a token that is not valid, 403 for one without the scope of the connection, 503
where that cannot be told now."""


class WebSocketSession(Connection):
    """One WebSocket; subclasses implement `write`, `ping` and `close`.

    Args:
        verify: checks the fresh token of an `auth` frame.
    """

    __slots__ = ("_budget", "_budgeted", "_requests", "heard", "heartbeat", "malformed_frames", "unsent", "verify")

    def __init__(self, gateway: Gateway, owner: Principal, cursor: Cursor, device: str, verify: Verify) -> None:
        super().__init__(gateway, owner, wire.WEBSOCKET, cursor, device)
        self.verify = verify
        self.heartbeat = Heartbeat(gateway.config, gateway.clock())
        self.heard = False  # a frame arrived since the last `check`
        self.malformed_frames = 0
        self.unsent = False  # the client has not taken everything written
        self._budget: TokenBucket | None = None  # made when it is needed: most clients only send ACKs
        self._budgeted = 0  # the highest sequence number whose delivery the budget has gained from, less the early copies since
        self._requests = 0  # unanswered

    # -- For subclasses to implement. --------------------------------------------------------------------------------------
    def write(self, text: bytes) -> None:
        """Send one text frame, or buffer it; end the connection when the buffer exceeds `send_buffer_bytes_max`."""
        raise NotImplementedError

    def ping(self, payload: bytes) -> None:
        """Send a ping frame."""
        raise NotImplementedError

    def fail(self, code: int, reason: str) -> None:
        """End it because of what the client sends, and read no more of that."""
        self.close(code, reason)

    # -- From the gateway. -------------------------------------------------------------------------------------------------
    def on_welcome(self, record: wire.Welcome) -> None:
        self.write(client_frames.welcome(self.welcome_frame(record)))

    def on_messages(self, messages: Sequence[tuple[int, int, bytes]]) -> None:
        if self.unsent:
            # A retry of what is still in the send buffer would only make a slow client slower.
            messages = [message for message in messages if message[0] > self.sent or message[1] == 1]
            if not messages:
                return
        self.write(frame_bytes(self.epoch, messages))

    def on_early(self, messages: Sequence[tuple[int, int, bytes]]) -> None:
        self._budgeted -= len(messages)
        super().on_early(messages)

    def write_frame(self, kind: str, frame: bytes) -> None:
        self.write(frame)

    def on_transient(self, kind: str, frame: bytes) -> None:
        if not self.unsent:
            self.write(frame)

    def drain(self, after_ms: int) -> None:
        self.write(client_frames.drain(after_ms))
        self.close(GOING_AWAY, "going away")

    def check(self, now_ms: int, wall_ms: int) -> int:
        if wall_ms >= self.expires_ms:
            self.close(TOKEN_REFUSED, "the token has expired")
            return now_ms
        if self.heard:
            self.heard = False
            self.heartbeat.alive()
        verdict = self.heartbeat.check(now_ms)
        if verdict is HeartbeatAction.DEAD:
            self.close(HEARTBEAT_MISSED, "heartbeat missed")
            return now_ms
        if verdict is HeartbeatAction.PING:
            self.ping(self.heartbeat.payload)
        return min(self.heartbeat.due_ms, now_ms + self.expires_ms - wall_ms)

    # -- From the client. --------------------------------------------------------------------------------------------------
    def text(self, data: bytes) -> None:
        if self.ended:
            return
        self.heard = True
        self.gateway.metrics.frames_received += 1
        seq, client_ms = client_frames.parse_ack(data)
        if seq >= 0:
            if seq <= self.sent or self.spend(1):
                self.gateway.ack(self, seq, client_ms)
            return
        if not self.spend(1 + len(data) // _TOKEN_BYTES):
            return
        try:
            frame = client_frames.parse(data)
        except Invalid as error:
            self._malformed(str(error))
            return
        except UnicodeDecodeError:
            self.fail(INVALID_DATA, NOT_UTF8)
            return
        if frame is not None:
            self._handle(frame)
        else:
            self._request(data)

    def binary(self) -> None:
        if not self.ended and self.spend(1):
            self.heard = True
            self.gateway.metrics.frames_received += 1
            self._malformed("binary frames are not used")

    def spend(self, tokens: int) -> bool:
        """Take tokens for a frame other than a cumulative ACK. When there are not so many, end the connection and return false."""
        config, now_ms = self.gateway.config, self.gateway.clock()
        budget = self._budget
        if budget is None:
            budget = self._budget = TokenBucket(config.client_frames_per_s, config.client_frames_burst, now_ms)
        elif self.sent > self._budgeted:
            budget.put((self.sent - self._budgeted) * config.client_frames_per_message)
        self._budgeted = self.sent
        if budget.take(now_ms, tokens):
            return True
        self.fail(TOO_MANY_FRAMES, _TOO_MANY_FRAMES)
        return False

    def _handle(self, frame: client_frames.ClientFrame) -> None:
        if type(frame) is client_frames.ClientAck:
            if frame.seq is not None:
                self.gateway.ack(self, frame.seq, client_frames.time_of(frame.ts))
            if frame.ids:
                self.gateway.ack_ids(self, frame.ids, client_frames.time_of(frame.ts))
        elif type(frame) is client_frames.ClientNack:
            if frame.ids:
                self.gateway.nack(self, frame.ids, frame.reason[:REASON_CHARS_MAX])  # each letter has it
        elif type(frame) is client_frames.ClientPing:
            self.write(client_frames.pong(frame.ts))
        elif type(frame) is client_frames.ClientAuth:
            self._reauthenticate(frame.token)
        elif type(frame) is client_frames.ClientSubscribe:
            self._subscribe(frame.topics, ())
        elif type(frame) is client_frames.ClientUnsubscribe:
            self._subscribe((), frame.topics)

    def _request(self, text: bytes) -> None:
        """A frame that the kernel does not know: a feature answers it, or it is ignored."""
        frames = self.gateway.feature_frames
        try:
            frame = client_frames.parse_request(text, frames.types)
            if frame is None:
                return
            kind, ref = frame.type, frame.ref
            if self._requests_full():
                problem = too_many_requests("too many requests of this connection are unanswered; nothing was accepted", RETRY_AFTER_S)
                self.write(client_frames.request_result(kind, ref, 429, {"problem": problem.body(), "retry_after": RETRY_AFTER_S}))
                return

            def answered(status: int, members: Mapping[str, Any]) -> None:
                self._requests -= 1
                self.gateway.frame_requests -= 1
                self.write(client_frames.request_result(kind, ref, status, members))

            frames.begin(self, kind, text, answered)
        except Invalid as error:
            self._malformed(str(error))
            return
        self._requests += 1
        self.gateway.frame_requests += 1

    def _requests_full(self) -> bool:
        config = self.gateway.config
        return self._requests >= config.frame_requests_per_connection_max or self.gateway.frame_requests >= config.frame_requests_max

    def _subscribe(self, add: Sequence[str], remove: Sequence[str]) -> None:
        config = self.gateway.config
        try:
            check_topics(add or remove, config.id_chars_max, config.topics_per_user_max)
        except Invalid as error:
            self._malformed(str(error))
            return
        forbidden = [topic for topic in add if not permits(self.owner, topic)]
        if forbidden:
            self.write(client_frames.error("forbidden", f"the token does not allow the topic {forbidden[0]}"))
        elif self._requests_full():
            self.write(client_frames.error("overloaded", "too many requests are unanswered; the subscriptions are unchanged"))
        else:
            self._requests += 1
            self.gateway.frame_requests += 1
            self.gateway.begin(self._change(add, remove))

    async def _change(self, add: Sequence[str], remove: Sequence[str]) -> None:
        try:
            self.write(await subscriptions.answer_frame(self.gateway, self.key, add, remove))
        finally:
            self._requests -= 1
            self.gateway.frame_requests -= 1

    def _reauthenticate(self, token: str) -> None:
        try:
            owner = self.verify(token)
        except Problem as problem:
            if problem.status == 403:
                self.close(FORBIDDEN, problem.detail)
            elif problem.status == 503:  # what it takes to check the token is away: the client sends it again, or connects with it
                self.write(client_frames.error("unavailable", problem.detail))
            else:
                self._malformed(problem.detail, "unauthorized")
            return
        if f"{owner.tenant}:{owner.user}" != self.key:
            self.close(FORBIDDEN, "the token is another user's")
            return
        self.gateway.renew(self, owner)

    def _malformed(self, detail: str, code: str = "malformed") -> None:
        self.malformed_frames += 1
        self.write(client_frames.error(code, detail))
        if self.malformed_frames >= self.gateway.config.malformed_frames_max:
            self.fail(POLICY_VIOLATION, "too many malformed frames")
