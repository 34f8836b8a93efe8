"""A client's connection, as the gateway uses it, whatever carries it.

A connection is attached to the shard that owns its user. The gateway calls it with the records of that shard, in their order; the
connection calls the gateway with the client's acknowledgements, and with its own end. It keeps only what a new link session needs: the
highest cumulative ACK, the highest sequence number written, and pending_nacks (nacks) that are not confirmed.

Its subclasses are in `engine.transports`. Those that write through an awaited `send` share `Outbox`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from engine.auth.tokens import Principal
from engine.auth.topic_permissions import memberships
from engine.core.model.message import early_frame
from engine.core.wire import client_frames
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


def wants_counts(query_string: bytes) -> bool:
    """Whether the client asks for the counts of the inbox, by `?counts=true`."""
    return b"counts=true" in query_string.split(b"&")


class PendingNacks(Struct):
    """The nacks of a client that its shard has not confirmed: the end of the link session may have lost them.

    Until they are confirmed `Connection.acked` stays where it was: a new session is sent that first, then the nacks, then `acked`.
    """

    reasons: dict[str, str]  # by message id, in the client's order
    acked: int  # highest cumulative ACK meanwhile

    def add(self, ids: Sequence[str], reason: str, ids_max: int) -> None:
        """Add the nacks of one frame; of more than `ids_max` ids the oldest are dropped."""
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
        kind: WEBSOCKET, SSE, SSE_EXPLICIT or POLL of `engine.core.wire.records`.
        cursor: what the client presented.
        device: the device name the client gave, for `session:stream`.
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
        "owner",
        "pending_nacks",
        "sent",
        "shard",
        "since_ms",
        "wants_counts",
        "wants_digest",
        "welcomed",
    )

    def __init__(self, gateway: Gateway, owner: Principal, kind: int, cursor: Cursor, device: str) -> None:
        self.gateway = gateway
        self.owner = owner
        self.key = f"{owner.tenant}:{owner.user}"
        self.kind = kind
        self.memberships = memberships(owner)
        self.cursor = cursor
        self.device = device
        self.expires_ms = int(owner.expires_s * 1000)
        self.wants_counts = False  # of the user's inbox, see `wants_counts`
        self.id = 0  # given by the gateway
        self.shard = -1  # the one it is attached to
        self.since_ms = 0  # when it was attached, by the wall clock
        self.epoch = ""
        self.acked = 0  # highest cumulative ACK the client is known to have given
        self.sent = 0  # highest sequence number written
        self.pending_nacks: PendingNacks | None = None  # while the shard has not confirmed all of them
        self.welcomed = False
        self.wants_digest = False  # its client asked for a digest of what it missed
        self.ended = False

    @property
    def user(self) -> str:
        """The user's id within its tenant."""
        return self.key.partition(":")[2]

    @property
    def name(self) -> str:
        """The connection's name for clients, logs and `session:stream`: unique across edges and restarts."""
        return f"{self.gateway.incarnation}-{self.id:x}"

    # -- Called with records of the shard. `on_welcome` comes first; after `ended` nothing comes. --------------------------
    def on_welcome(self, record: wire.Welcome) -> None:
        """The connection is attached, for the first time."""
        raise NotImplementedError

    def flush(self) -> None:
        """The batch with the welcome is handled: write what waited to be joined with the rest of the batch."""

    def on_messages(self, messages: Sequence[tuple[int, int, bytes]]) -> None:
        """Write messages (seq, attempt, body), in sequence order. `sent` is updated after the call."""
        raise NotImplementedError

    def on_early(self, messages: Sequence[tuple[int, int, bytes]]) -> None:
        """Write early copies (seq, attempt, body). They advance neither `sent` nor a cursor."""
        self.write_frame("early", early_frame(messages))

    def write_frame(self, kind: str, frame: bytes) -> None:
        """Write a frame, a JSON object of this `type`. Polling, which has no place for most, leaves it out."""

    def on_transient(self, kind: str, frame: bytes) -> None:
        """Write a frame of a feature, a JSON object. One whose client has not taken what was written before is dropped."""
        raise NotImplementedError

    def on_gap(self, first: int, last: int) -> None:
        """Numbers `first` to `last` are gone; called before anything after them is sent."""
        self.write_frame("gap", client_frames.gap(first, last))

    def confirm_nacks(self, ids: Sequence[str]) -> None:
        """The nacks of these ids are durable, or the messages were settled: tell the client."""
        pending_nacks = self.pending_nacks
        if pending_nacks is not None:
            for id in ids:
                pending_nacks.reasons.pop(id, None)
            if not pending_nacks.reasons:
                self.acked = pending_nacks.acked
                self.pending_nacks = None
        self.write_frame("nacked", client_frames.nacked(ids))

    def on_announced(self) -> None:
        """The gateway has announced it to a new link session: send again what that session needs beyond the cursor."""

    # -- Called by the gateway. --------------------------------------------------------------------------------------------
    def close(self, code: int, reason: str) -> None:
        """End it with a WebSocket close code (streams translate it) and call `Gateway.detach`. Idempotent."""
        raise NotImplementedError

    def drain(self, after_ms: int) -> None:
        """The edge stops: tell the client to come back after `after_ms`, and end."""
        raise NotImplementedError

    def check(self, now_ms: int, wall_ms: int) -> int:
        """Check heartbeat and token expiry. Returns when to be called again, on the clock of `now_ms`."""
        raise NotImplementedError

    def check_backlog(self, now_ms: int) -> int:
        """It is in the gateway's backlog: close it when its client takes nothing.

        Returns how many bytes wait for the client, 0 once it has ended.
        """
        raise NotImplementedError

    def too_slow(self) -> None:
        """Close it with 4413: its client takes less than it is sent."""
        raise NotImplementedError

    # -- Shared by the transports. -----------------------------------------------------------------------------------------
    def welcome_frame(self, record: wire.Welcome) -> WelcomeFrame:
        """The `welcome` object of docs/PROTOCOL-RECEIVING.md."""
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
    """A bounded queue of bytes in front of an awaited `send`: filled by anyone, emptied by one task.

    What is queued during one `send` is joined in the next one, so a burst costs one write.
    """

    __slots__ = ("_chunks", "_finished", "_limit", "_waiter", "passes", "size")

    def __init__(self, limit_bytes: int) -> None:
        self._chunks: list[bytes] = []
        self._limit = limit_bytes
        self._finished = False
        self._waiter: asyncio.Future[None] | None = None
        self.size = 0  # bytes pushed and not yet sent
        self.passes = 0  # sends completed

    def push(self, chunk: bytes) -> bool:
        """Queue a chunk without waiting; `False`, and nothing queued, when the limit would be passed."""
        if self.size + len(chunk) > self._limit:
            return False
        self._chunks.append(chunk)
        self.size += len(chunk)
        self._wake()
        return True

    def finish(self) -> None:
        """`pump` shall end when everything queued has been sent."""
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
    """How long a client has taken nothing: compares a mark that changes when it takes something, at each call."""

    __slots__ = ("_mark", "_since_ms")

    def __init__(self, mark: object, now_ms: int) -> None:
        self._mark = mark
        self._since_ms = now_ms

    def stalled_ms(self, mark: object, now_ms: int) -> int:
        """For how many milliseconds the mark has not changed."""
        if mark != self._mark:
            self._mark = mark
            self._since_ms = now_ms
        return now_ms - self._since_ms
