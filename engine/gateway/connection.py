"""What every connection is to the gateway, whatever carries it.

A connection is attached to the shard that owns its user. The gateway calls it with what the shard says, in the order
the shard said it; the connection calls the gateway with what the client says, and with its end. It remembers only what
a new link session needs: the highest cumulative ACK and the highest sequence number written.

Carriers: `engine.transports.websocket_transport`, `engine.transports.sse` (which writes through an awaited `send`, hence `Outbox`) and
`engine.transports.long_poll`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from engine.auth.tokens import Principal
from engine.auth.topic_permissions import memberships
from engine.core.wire import records as wire
from engine.core.wire.client_frames import SEQ_MAX, ReconnectAdvice
from engine.core.wire.client_frames import WelcomeEvent as WelcomeFrame

if TYPE_CHECKING:
    from engine.gateway.gateway import Gateway

UNKNOWN_EPOCH: Final = "?"
"""The epoch of a cursor that cannot be read. No storage ever has it, so the shard answers `resumed: "gap"`."""

_CURSOR_CHARS_MAX: Final = 64


class Cursor(NamedTuple):
    """The last message a client has handled. The epoch is "" when the client presented none."""

    epoch: str
    seq: int


NO_CURSOR: Final = Cursor("", 0)


def parse_cursor(text: str) -> Cursor:
    """`<epoch>-<seq>`. A malformed one is a cursor of an unknown epoch, never an error: the client gets everything pending."""
    if not text:
        return NO_CURSOR
    epoch, _, number = text.rpartition("-")
    if not epoch or len(text) > _CURSOR_CHARS_MAX or not (number.isascii() and number.isdigit()) or int(number) > SEQ_MAX:
        return Cursor(UNKNOWN_EPOCH, 0)
    return Cursor(epoch, int(number))


class PendingNacks(Struct):
    """What a client refused and its shard has not confirmed: a link session that ends now may lose it.

    Until then `Connection.acked` stays where it was: a new session is told that first, then the refusals, then `acked`.
    """

    reasons: dict[str, str]  # by message id, in the client's order
    acked: int  # highest cumulative ACK meanwhile

    def add(self, ids: Sequence[str], reason: str, ids_max: int) -> None:
        """One more frame of the client; the oldest make room."""
        self.reasons.update(dict.fromkeys(ids, reason))
        for id in list(self.reasons)[:-ids_max]:
            del self.reasons[id]

    def records(self, conn: int) -> list[wire.Nack]:
        """All of them, for a new link session."""
        by_reason: dict[str, list[str]] = {}
        for id, reason in self.reasons.items():
            by_reason.setdefault(reason, []).append(id)
        return [wire.Nack(conn, ids, reason) for reason, ids in by_reason.items()]


class Connection:
    """One client, attached by `Gateway.attach`. Subclasses write to it.

    Args:
        gateway: the edge it belongs to.
        owner: the authenticated user.
        kind: WEBSOCKET, SSE, SSE_EXPLICIT or POLL of `engine.core.wire.records`.
        cursor: what the client presented.
        device: the client's name for itself, for `session:stream`.
    """

    __slots__ = (
        "acked",
        "cursor",
        "device",
        "ended",
        "epoch",
        "expires_ms",
        "gateway",
        "id",
        "key",
        "kind",
        "memberships",
        "refusals",
        "sent",
        "shard",
        "welcomed",
    )

    def __init__(self, gateway: Gateway, owner: Principal, kind: int, cursor: Cursor, device: str) -> None:
        self.gateway = gateway
        self.key = f"{owner.tenant}:{owner.user}"
        self.kind = kind
        self.memberships = memberships(owner)
        self.cursor = cursor
        self.device = device
        self.expires_ms = int(owner.expires_s * 1000)
        self.id = 0  # given by the gateway
        self.shard = -1  # who serves it now
        self.epoch = ""
        self.acked = 0  # highest cumulative ACK the client is known to have given
        self.sent = 0  # highest sequence number written
        self.refusals: PendingNacks | None = None  # while the shard has not confirmed all of them
        self.welcomed = False
        self.ended = False

    @property
    def user(self) -> str:
        """The user's id within its tenant."""
        return self.key.partition(":")[2]

    @property
    def name(self) -> str:
        """How clients, logs and `session:stream` call this connection: unique across edges and restarts."""
        return f"{self.gateway.incarnation}-{self.id:x}"

    # -- What the shard says. `on_welcome` comes first; after `ended` nothing comes. ---------------------------------------
    def on_welcome(self, record: wire.Welcome) -> None:
        """The connection is attached, for the first time."""
        raise NotImplementedError

    def flush(self) -> None:
        """The batch that brought the welcome has brought all it had: what waited for more to be written with it need not wait."""

    def on_messages(self, messages: Sequence[tuple[int, int, bytes]]) -> None:
        """Messages (seq, attempt, body) in sequence order. `sent` still is what it was before them."""
        raise NotImplementedError

    def on_revoke(self, ids: Sequence[str]) -> None:
        """These were handled on another device."""
        raise NotImplementedError

    def on_gap(self, first: int, last: int) -> None:
        """These are gone; said before anything after them."""
        raise NotImplementedError

    def on_fault(self, code: str, detail: str) -> None:
        """Something the client sent cannot be. Only for carriers that bring frames of a client."""

    def confirm(self, ids: Sequence[str]) -> None:
        """Nothing of what the client refused by these ids can get lost any more."""
        refusals = self.refusals
        if refusals is not None:
            for id in ids:
                refusals.reasons.pop(id, None)
            if not refusals.reasons:
                self.acked = refusals.acked
                self.refusals = None
        self.on_refused(ids)

    def on_refused(self, ids: Sequence[str]) -> None:
        """What the client refused is in the dead-letter queue, or settled. Only for carriers that bring frames of a client."""

    def on_announced(self) -> None:
        """The gateway has announced it to a new link session: repeat what that session must know beyond the cursor."""

    # -- What the gateway says. --------------------------------------------------------------------------------------------
    def close(self, code: int, reason: str) -> None:
        """End it with a WebSocket close code (streams translate it) and tell the gateway; nothing when it has ended."""
        raise NotImplementedError

    def drain(self, after_ms: int) -> None:
        """The edge goes away: tell the client when to come back, and end."""
        raise NotImplementedError

    def check(self, now_ms: int, wall_ms: int) -> int:
        """Its timer is due: heartbeat and token expiry. Returns when to be called again, on the clock of `now_ms`."""
        raise NotImplementedError

    def check_backlog(self, now_ms: int) -> None:
        """It is in the gateway's backlog: has it made progress?"""
        raise NotImplementedError

    # -- Shared by the carriers. -------------------------------------------------------------------------------------------
    def welcome_frame(self, record: wire.Welcome) -> WelcomeFrame:
        """The `welcome` object of PROTOCOL."""
        config = self.gateway.config
        return WelcomeFrame(
            connection=self.name,
            user=self.user,
            epoch=record.epoch,
            seq=record.head,
            resumed=record.resumed,
            from_=record.from_seq,
            heartbeat_ms=config.heartbeat_ms,
            timeout_ms=config.client_timeout_ms,
            window=config.window,
            reconnect=ReconnectAdvice(config.reconnect_delays_ms, config.reconnect_jitter),
        )


class Outbox:
    """Bytes on their way to an awaited `send`: bounded, filled by anyone, emptied by one task.

    What is queued while one `send` is under way goes out joined by the next one, so a burst costs one write.
    """

    __slots__ = ("_chunks", "_finished", "_limit", "_waiter", "passes", "size")

    def __init__(self, limit_bytes: int) -> None:
        self._chunks: list[bytes] = []
        self._limit = limit_bytes
        self._finished = False
        self._waiter: asyncio.Future[None] | None = None
        self.size = 0  # bytes pushed and not yet sent
        self.passes = 0  # sends completed: a number that stands still while bytes wait is a stalled client

    def push(self, chunk: bytes) -> bool:
        """Queue a chunk without waiting; `False`, and nothing queued, when the limit would be passed."""
        if self.size + len(chunk) > self._limit:
            return False
        self._chunks.append(chunk)
        self.size += len(chunk)
        self._wake()
        return True

    def finish(self) -> None:
        """Nothing more comes: `pump` ends when what is queued has been sent."""
        self._finished = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def pump(self, send: Callable[[list[bytes]], Awaitable[None]]) -> None:
        """Send everything in the order pushed, until `finish`."""
        while True:
            if self._chunks:
                chunks, self._chunks = self._chunks, []
                await send(chunks)
                self.size -= sum(map(len, chunks))
                self.passes += 1
            elif self._finished:
                return
            else:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
                self._waiter = None


class Progress:
    """Does a client take what is sent to it? Told a number that changes with every step, at each look."""

    __slots__ = ("_mark", "_since_ms")

    def __init__(self, mark: int, now_ms: int) -> None:
        self._mark = mark
        self._since_ms = now_ms

    def stalled_ms(self, mark: int, now_ms: int) -> int:
        """For how long the number has stood still."""
        if mark != self._mark:
            self._mark = mark
            self._since_ms = now_ms
        return now_ms - self._since_ms
