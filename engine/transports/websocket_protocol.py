"""The application protocol of a WebSocket, `notify.v1.json`, without its bytes: what client frames do and what the server sends.

    client frame --text/binary-->  WebSocketSession  --ack, nack, detach-->  Gateway
    client       <--write/ping---  WebSocketSession  <--on_messages, ...---  Gateway

`engine.transports.websocket_transport.DirectWebSocket` implements `write`, `ping` and `close` on a transport; the simulator has an
implementation of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from engine.api import subscriptions
from engine.auth.tokens import Principal
from engine.auth.topic_permissions import check_topics, memberships, permits
from engine.core.edge.heartbeat import Heartbeat, HeartbeatAction
from engine.core.model.message import frame_bytes
from engine.core.wire import client_frames
from engine.core.wire import records as wire
from engine.errors import Invalid
from engine.gateway.connection import Connection, Cursor
from engine.gateway.gateway import GOING_AWAY, Gateway
from engine.http.problems import Problem

INVALID_DATA: Final = 1007
POLICY_VIOLATION: Final = 1008
TOKEN_EXPIRED: Final = 4401
FORBIDDEN: Final = 4403
HEARTBEAT_MISSED: Final = 4408
TOO_SLOW: Final = 4413
TOO_SLOW_HINT: Final = "too slow: read faster or ask for less; reconnect with your cursor, everything not acknowledged is kept"
"""The reason in the close frame, at most 123 bytes (RFC 6455, section 5.5)."""

Verify = Callable[[str], Principal]
"""Returns a token's principal; raises Problem, 401 for a token that is not valid, 403 for one without the scope `connect`."""


class WebSocketSession(Connection):
    """One WebSocket; subclasses implement `write`, `ping` and `close`.

    Args:
        verify: checks the fresh token of an `auth` frame.
    """

    __slots__ = ("heard", "heartbeat", "malformed_frames", "owner", "unsent", "verify")

    def __init__(self, gateway: Gateway, owner: Principal, cursor: Cursor, device: str, verify: Verify) -> None:
        super().__init__(gateway, owner, wire.WEBSOCKET, cursor, device)
        self.verify = verify
        self.owner = owner
        self.heartbeat = Heartbeat(gateway.heartbeat, gateway.clock())
        self.heard = False  # a frame arrived since the last `check`
        self.malformed_frames = 0
        self.unsent = False  # the client has not taken everything written

    # -- For subclasses to implement. --------------------------------------------------------------------------------------
    def write(self, text: bytes) -> None:
        """Send one text frame, or buffer it; end the connection when the buffer exceeds `send_buffer_bytes_max`."""
        raise NotImplementedError

    def ping(self, payload: bytes) -> None:
        """Send a ping frame."""
        raise NotImplementedError

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

    def on_revoke(self, ids: Sequence[str]) -> None:
        self.write(client_frames.revoke(ids))

    def on_gap(self, first: int, last: int) -> None:
        self.write(client_frames.gap(first, last))

    def on_nacks_stored(self, ids: Sequence[str]) -> None:
        self.write(client_frames.nacked(ids))

    def on_fault(self, code: str, detail: str) -> None:
        self.write(client_frames.error(code, detail))

    def drain(self, after_ms: int) -> None:
        self.write(client_frames.drain(after_ms))
        self.close(GOING_AWAY, "going away")

    def check(self, now_ms: int, wall_ms: int) -> int:
        if wall_ms >= self.expires_ms:
            self.close(TOKEN_EXPIRED, "the token has expired")
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
        """A text frame arrived."""
        if self.ended:
            return
        self.heard = True
        self.gateway.metrics.frames_received += 1
        seq = client_frames.parse_ack(data)
        if seq >= 0:
            self.gateway.ack(self, seq)
            return
        try:
            frame = client_frames.parse(data)
        except Invalid as error:
            self._malformed(str(error))
            return
        except UnicodeDecodeError:
            self.close(INVALID_DATA, "text frames are UTF-8")
            return
        if frame is not None:
            self._handle(frame)

    def binary(self) -> None:
        """A binary frame arrived."""
        if not self.ended:
            self.heard = True
            self.gateway.metrics.frames_received += 1
            self._malformed("binary frames are not used")

    def _handle(self, frame: client_frames.ClientFrame) -> None:
        if type(frame) is client_frames.ClientAck:
            if frame.seq is not None:
                self.gateway.ack(self, frame.seq)
            if frame.ids:
                self.gateway.ack_ids(self, frame.ids)
        elif type(frame) is client_frames.ClientNack:
            if frame.ids:
                self.gateway.nack(self, frame.ids, frame.reason)
        elif type(frame) is client_frames.ClientPing:
            self.write(client_frames.pong(frame.ts))
        elif type(frame) is client_frames.ClientAuth:
            self._reauthenticate(frame.token)
        elif type(frame) is client_frames.ClientSubscribe:
            self._subscribe(frame.topics, ())
        elif type(frame) is client_frames.ClientUnsubscribe:
            self._subscribe((), frame.topics)

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
        else:
            subscriptions.begin_change(self.gateway.shard_client, self.key, add, remove, self._on_subscribed)

    def _on_subscribed(self, topics: list[str] | str) -> None:
        """The shard's answer: the user's topics, or the code of an error."""
        if isinstance(topics, str):
            self.write(client_frames.error(topics, "the subscriptions are unchanged"))
        else:
            self.write(client_frames.subscribed(topics))

    def _reauthenticate(self, token: str) -> None:
        try:
            owner = self.verify(token)
        except Problem as problem:
            if problem.status == 403:
                self.close(FORBIDDEN, "the token does not allow to connect")
            else:
                self.write(client_frames.error("unauthorized", problem.detail))
            return
        if f"{owner.tenant}:{owner.user}" != self.key:
            self.close(FORBIDDEN, "the token is another user's")
            return
        self.expires_ms = int(owner.expires_s * 1000)
        self.owner = owner
        self.gateway.rejoin(self, memberships(owner))

    def _malformed(self, detail: str) -> None:
        self.malformed_frames += 1
        self.write(client_frames.error("malformed", detail))
        if self.malformed_frames >= self.gateway.config.malformed_frames_max:
            self.close(POLICY_VIOLATION, "too many malformed frames")
