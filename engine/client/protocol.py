"""The receiving client's protocol, without I/O, clock or random source.

One `Session` lasts as long as the client, over any number of connections:

    opened(now, cursor, transport) -> receive(frame, now) ... tick(now) ... -> closed(code, reason, now)
    or refused(...) | unreachable(...); then wait retry_in_ms(random) and begin again, until `failure` is set.

After each call the shell takes `events()` and `data_to_send()`, closes the connection if `closing` is set, and calls `tick` at
`deadline_ms` at the latest. The application takes messages with `next_message` and settles each with `settle`.

Transports. The session writes frames: on a WebSocket all, on SSE and polling acknowledgements and nacks only, which their links turn into
requests. `opened` while a connection is open replaces that one: a better transport was found, and what was acknowledged or refused over the
former may be so again.

Cursor. `_open` holds the sequence numbers received and not settled, `_order` a heap of all numbers received above the cursor. The
cursor is the highest number without an open one below it, so presenting it, which acknowledges everything up to it, never acknowledges
a message that is still being handled. Numbers that did not arrive are not waited for: the server settled each number it skips, or
announces it with `gap`. A gap moves the cursor to its end, because the server announces it on each connection, and to each poll at once,
until a cursor behind it is presented. Likewise an unknown cursor is replaced by the number before the one at which delivery begins.

Early copies. An early copy is open, so that the cursor stays below it, and in `_early` in place of `_order`, so that the cursor never moves
to it. It is acknowledged by id. In its place it comes as a repeat: of a settled message, or of an unsettled one, which joins `_order` then.

Duplicates. A repeat has the same id and number. One of an unsettled message is ignored; one of a settled message is dropped and
acknowledged again, because its acknowledgement was lost. The same id under another number is a new message: the engine knows an id for a
day from when it accepted the message, which may have waited for most of that before it was settled here. Numbers of another epoch cannot
be compared, so an id that was settled before a change of the epoch is a repeat, for as long as the engine may know it. One that is still
unsettled then holds the cursor under its new number.

Nacks. A rejected message stays open until the server confirms it, with `nacked`: an unconfirmed nack is sent again on the next
connection, and a cursor beyond the message would acknowledge it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, get_args

import msgspec
from msgspec import Struct

from engine.client.digest import Digest
from engine.client.frames import (
    Counts,
    DrainFrame,
    EarlyFrame,
    ErrorFrame,
    Frame,
    GapFrame,
    Message,
    MessagesFrame,
    NackedFrame,
    Part,
    Reconnect,
    RevokeFrame,
    WelcomeFrame,
    parse,
)
from engine.errors import ClientError, Forbidden, Refused, TooManyConnections, Unauthorized

WELCOME_TIMEOUT_MS: Final = 10_000  # from the upgrade to the first frame
IDS_PER_FRAME: Final = 100  # ids have 128 characters at most, a frame 64 KiB
REASON_CHARS_MAX: Final = 1024  # of a nack
SETTLED_IDS_MAX: Final = 4096  # sixteen in-flight windows of 256
SETTLED_IDS_MS: Final = 24 * 3600 * 1000  # as long as an engine keeps idempotency keys
UNSETTLED_WINDOWS_MAX: Final = 16  # a server that exceeds it is disconnected
UNSETTLED_MAX: Final = 4096  # so many of the usual size; an engine may be set to larger ones

Transport = Literal["websocket", "sse", "poll"]
TRANSPORTS: Final[tuple[Transport, ...]] = get_args(Transport)
"""Best first."""

CLOSE_LOST: Final = 1006  # RFC 6455, section 7.4.1: no close frame was received
CLOSE_TOKEN: Final = 4401
CLOSE_TOO_MANY: Final = 4409
_FATAL: Final[dict[int, type[Refused]]] = {4403: Forbidden, CLOSE_TOO_MANY: TooManyConnections}


class Connected(Struct, frozen=True):
    """Connected. `resumed`: `new`, `ok`, or `gap` when the cursor was unknown and delivery starts at `from_seq`.

    Without a `Disconnected` before it: the client has changed to a better `transport`. By polling, `connection` and `user` are empty.
    """

    connection: str
    user: str
    epoch: str
    seq: int
    resumed: str
    from_seq: int
    transport: Transport = "websocket"


class Disconnected(Struct, frozen=True):
    """The connection ended or failed. `code` is a WebSocket close code, an HTTP status, or 0 for neither."""

    code: int
    reason: str


class Gap(Struct, frozen=True):
    """The messages `first`..`last` will not be delivered: they expired, or were trimmed because too many were pending."""

    first: int
    last: int


class Revoked(Struct, frozen=True):
    """These messages were settled on another device: stop displaying them. Those not taken yet are not delivered."""

    ids: list[str]


class Draining(Struct, frozen=True):
    """The server is shutting down; the client reconnects in `after_ms`, which the server spreads over its clients."""

    after_ms: int


class ServerError(Struct, frozen=True):
    """An error of the server, a frame that could not be decoded, or a failure to get a fresh token (code `token`)."""

    code: str
    detail: str


Event = Connected | Disconnected | Gap | Revoked | Draining | ServerError | Digest | Counts | Part


def split_cursor(event_id: str) -> tuple[str, int]:
    """Epoch and number of an event id.

    Raises:
        ValueError: it is not `<epoch>-<seq>`.
    """
    epoch, dash, seq = event_id.rpartition("-")
    if not dash or not epoch or not seq.isascii() or not seq.isdigit():
        raise ValueError(f"a cursor looks like 7-1042, the event_id of a message; this is {event_id!r}")
    return epoch, int(seq)


def _chunks(ids: list[str]) -> Iterator[list[str]]:
    return (ids[start : start + IDS_PER_FRAME] for start in range(0, len(ids), IDS_PER_FRAME))


class _Settled(NamedTuple):
    """A message that was settled: when, as what, and the reason if it was rejected."""

    at_ms: int
    epoch: str
    seq: int
    reason: str | None


class Session:
    """The client's side of the protocol; see the module.

    Args:
        cursor: `event_id` to resume from; None for everything pending.
        renewable: whether a rejected token can be replaced, so that the first rejection is retried.

    Raises:
        ValueError: `cursor` is not an event id.
    """

    def __init__(self, cursor: str | None = None, *, renewable: bool = False) -> None:
        self.cursor = cursor
        self._renewable = renewable
        self.closing: str | None = None
        self.failure: ClientError | None = None
        self.token_rejected = False
        self._epoch, self._seq = split_cursor(cursor) if cursor else ("", 0)
        self._presented: str | None = None
        self._transport: Transport = "websocket"
        self._acked = 0
        self._queue: deque[Message] = deque()
        self._unsettled: dict[str, Message] = {}
        self._unsettled_max = UNSETTLED_MAX
        self._open: set[int] = set()
        self._order: list[int] = []
        self._early: dict[str, int] = {}  # unsettled early copies of this epoch: id -> number
        self._settled: dict[str, _Settled] = {}  # by id
        self._ack_ids: list[str] = []
        self._refused: dict[str, str] = {}  # id -> reason, until the server confirms the nack
        self._nacks: dict[str, None] = {}  # ids of them whose nack is to be sent
        self._frames: list[bytes] = []
        self._events: list[Event] = []
        self._reconnect = Reconnect()
        self._attempt = 0
        self._renew_at_once = False  # the token was rejected, and no attempt was made since
        self._retry_after_ms: int | None = None
        self._drain_at: int | None = None
        self._connected = False
        self._welcomed_ms: int | None = None
        self._heard_ms = 0
        self._ping_at: int | None = None
        self.heartbeat_ms = 0
        self._timeout_ms = WELCOME_TIMEOUT_MS

    # -- connections -------------------------------------------------------------------------------------------------
    def opened(
        self, now_ms: int, presented: str | None = None, transport: Transport = "websocket", timeout_ms: int = WELCOME_TIMEOUT_MS
    ) -> None:
        """A connection is open; `welcome` is its next frame.

        Args:
            presented: the cursor of its handshake. Messages settled since are acknowledged on the connection.
            timeout_ms: within which the `welcome` has to come.
        """
        self._connected = True
        self._presented = presented
        self._transport = transport
        self.closing = None
        self._heard_ms = now_ms
        self._timeout_ms = timeout_ms
        self._welcomed_ms = self._ping_at = self._drain_at = self._retry_after_ms = None
        self._frames.clear()

    @property
    def transport(self) -> Transport | None:
        """Of the open connection, once it has been welcomed."""
        return self._transport if self.welcomed else None

    @property
    def welcomed(self) -> bool:
        """The open connection has been welcomed."""
        return self._welcomed_ms is not None

    def closed(self, code: int, reason: str, now_ms: int, retry_after_s: float | None = None) -> None:
        """The connection ended; `code` is the WebSocket close code, 1006 when there was none."""
        self._end(now_ms)
        self._retry_after_ms = None if retry_after_s is None else round(retry_after_s * 1000)
        self._events.append(Disconnected(code, self.closing or reason))
        if code == CLOSE_TOKEN:
            self._reject_token(reason or "the token expired", code)
        elif code in _FATAL:
            self.failure = _FATAL[code](reason or "the engine closed the connection", code)

    def _end(self, now_ms: int) -> None:
        stable_ms = self._reconnect.delays_ms[-1]
        if self._welcomed_ms is not None and now_ms - self._welcomed_ms >= stable_ms:
            self._attempt = 0  # only after a stable connection, else a server that drops clients at once would get them every second
        self._connected = False
        self._welcomed_ms = None

    def refused(self, status: int, detail: str, retry_after_s: float | None = None, *, elsewhere: bool = False) -> None:
        """A handshake or poll was answered with this HTTP status. `elsewhere`: another transport is left, which may not be refused."""
        self._end(self._heard_ms)
        self._events.append(Disconnected(status, detail))
        if status == 401:
            self._reject_token(detail or "the token is missing or not valid", status)
        elif status == 403 and not elsewhere:
            self.failure = Forbidden(detail or "the token does not allow to connect", status)
        elif status in (408, 425, 429) or status >= 500:
            self._retry_after_ms = None if retry_after_s is None else round(retry_after_s * 1000)
        elif not elsewhere:
            self.failure = Refused(detail or "the engine refused the connection", status)

    def unreachable(self, reason: str) -> None:
        self._events.append(Disconnected(0, reason))

    def note(self, code: str, detail: str) -> None:
        """Report a `ServerError` event."""
        self._events.append(ServerError(code, detail))

    def _reject_token(self, detail: str, status: int) -> None:
        if self.token_rejected or not self._renewable:  # the fresh one was rejected too
            self.failure = Unauthorized(detail, status)
        self.token_rejected = self._renew_at_once = True

    def retry_in_ms(self, random: float, now_ms: int) -> int:
        """Delay before the next attempt, ms: as the server asked, else the next of `Reconnect.delays_ms` with jitter.

        None after a token was rejected, once: the issuer of tokens may be away for as long as an engine.

        Args:
            random: uniformly distributed in [0, 1).
        """
        if self._drain_at is not None:
            due, self._drain_at = self._drain_at, None
            return max(0, due - now_ms)
        if self._renew_at_once:
            self._renew_at_once = False
            return 0
        delays = self._reconnect.delays_ms
        delay = delays[min(self._attempt, len(delays) - 1)]
        self._attempt += 1
        if self._retry_after_ms:  # never earlier than asked
            asked, self._retry_after_ms = self._retry_after_ms, None
            return round(asked * (1 + self._reconnect.jitter * random))
        return round(delay * (1 + self._reconnect.jitter * (2 * random - 1)))

    # -- time --------------------------------------------------------------------------------------------------------
    @property
    def deadline_ms(self) -> int:
        """When `tick` is due at the latest."""
        due = self._heard_ms + self._timeout_ms
        if self._ping_at is not None:
            due = min(due, self._ping_at)
        if self._drain_at is not None:
            due = min(due, self._drain_at)
        return due

    def heard(self, now_ms: int) -> None:
        """The server has shown that it is there, without a frame."""
        self._heard_ms = now_ms

    def tick(self, now_ms: int) -> None:
        """Send a due heartbeat; set `closing` when the server is silent or draining."""
        if now_ms - self._heard_ms >= self._timeout_ms:
            self.closing = f"nothing from the server for {self._timeout_ms} ms"
        elif self._drain_at is not None and now_ms >= self._drain_at:
            self.closing = "the server is draining"
        elif self._ping_at is not None and now_ms >= self._ping_at:
            self._frames.append(b'{"type":"ping","ts":%d}' % now_ms)
            self._ping_at = now_ms + self.heartbeat_ms

    # -- from the server ---------------------------------------------------------------------------------------------
    def receive(self, text: str | bytes, now_ms: int) -> None:
        """Process one frame of the server. Frames after `closing` is set are ignored."""
        if self.closing is not None:
            return
        self._heard_ms = now_ms
        try:
            frame = parse(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._events.append(ServerError("malformed", f"a frame this client cannot read: {error}"))
            return
        if frame is not None:
            self._handle(frame, now_ms)

    def _handle(self, frame: Frame, now_ms: int) -> None:
        match frame:
            case MessagesFrame() | EarlyFrame():
                for message in frame.messages:
                    self._take(message, now_ms)
            case WelcomeFrame():
                self._welcome(frame, now_ms)
            case Digest() | Counts() | Part():
                self._events.append(frame)
            case RevokeFrame():
                self._revoke(frame.ids, now_ms)
            case GapFrame():
                self._events.append(Gap(frame.from_, frame.to))
                heapq.heappush(self._order, frame.to)
                self._advance()
            case DrainFrame():
                self._drain_at = now_ms + frame.after_ms
                self._events.append(Draining(frame.after_ms))
            case NackedFrame():
                self._confirm(frame.ids, now_ms)
            case ErrorFrame():
                self._events.append(ServerError(frame.code, frame.detail))

    def _welcome(self, frame: WelcomeFrame, now_ms: int) -> None:
        self.token_rejected = False
        self._welcomed_ms = now_ms
        self._timeout_ms = max(1, frame.timeout_ms)
        self.heartbeat_ms = max(1, frame.heartbeat_ms)
        self._unsettled_max = max(UNSETTLED_MAX, UNSETTLED_WINDOWS_MAX * frame.window)
        self._ping_at = now_ms + self.heartbeat_ms if self._transport == "websocket" else None
        if frame.reconnect is not None and frame.reconnect.delays_ms:
            self._reconnect = frame.reconnect
        if frame.epoch != self._epoch:
            # Storage lost data and sequence numbers start again: unsettled messages can only be acknowledged by id.
            self._open.clear()
            self._early.clear()
            self._order.clear()
            self._epoch, self._seq = frame.epoch, 0
        epoch, seq = split_cursor(self._presented) if self._presented else ("", 0)
        self._acked = seq if epoch == frame.epoch else 0
        if frame.resumed == "gap":
            self._seq = self._acked = max(0, frame.from_ - 1)
            self.cursor = f"{self._epoch}-{self._seq}"
        self._nacks = dict.fromkeys(self._refused)
        self._events.append(Connected(frame.connection, frame.user, frame.epoch, frame.seq, frame.resumed, frame.from_, self._transport))
        gone = [id_ for id_, one in self._unsettled.items() if one.seq < frame.from_ and id_ not in self._refused and self._is_here(one)]
        if gone:  # nothing before `from` is pending: another device has handled these meanwhile
            self._revoke(gone, now_ms)

    def _is_here(self, message: Message) -> bool:
        """Its number is one of this epoch."""
        return message.id in self._early or message.event_id == f"{self._epoch}-{message.seq}"

    def _take(self, message: Message, now_ms: int) -> None:
        if self.closing is not None:
            return
        known = self._settled.get(message.id)
        if message.id in self._unsettled:
            if not message.early:
                self._take_place(self._unsettled[message.id], message)
            if message.id in self._refused:
                self._nacks[message.id] = None
        elif message.id in self._refused:
            self._nacks[message.id] = None
        elif known is not None and self._repeats(message, known, now_ms):
            if known.reason is None:
                self._ack_ids.append(message.id)
            else:
                self._refuse(message.id, known.reason)
        elif message.seq <= self._seq:
            self._ack_ids.append(message.id)
        elif len(self._unsettled) >= self._unsettled_max:
            self.closing = f"the server sent more than {self._unsettled_max} messages without waiting for an acknowledgement"
        else:
            self._unsettled[message.id] = message
            self._open.add(message.seq)
            if message.early:
                self._early[message.id] = message.seq
            else:
                heapq.heappush(self._order, message.seq)
            self._queue.append(message)

    def _repeats(self, message: Message, known: _Settled, now_ms: int) -> bool:
        if known.epoch == self._epoch:
            return known.seq == message.seq
        return now_ms - known.at_ms < SETTLED_IDS_MS

    def _take_place(self, unsettled: Message, repeat: Message) -> None:
        """An unsettled message has come again: an early copy in its place, or one of a former epoch under its number in this one."""
        if unsettled.id in self._early:
            if self._early[unsettled.id] != repeat.seq:
                return
            del self._early[unsettled.id]
        elif unsettled.event_id == f"{self._epoch}-{unsettled.seq}":
            return
        unsettled.seq, unsettled.event_id = repeat.seq, repeat.event_id
        self._open.add(repeat.seq)
        heapq.heappush(self._order, repeat.seq)

    def _revoke(self, ids: list[str], now_ms: int) -> None:
        # What this client has acknowledged by a request is revoked on its own stream: the engine does not know which stream that was.
        news = [id_ for id_ in ids if id_ in self._unsettled or id_ not in self._settled]
        for id_ in ids:
            self._refused.pop(id_, None)
            message = self._unsettled.get(id_)
            if message is not None:
                self._close_out(message, now_ms, None)
        revoked = set(ids)
        self._queue = deque(message for message in self._queue if message.id not in revoked)
        if news:
            self._events.append(Revoked(news))

    def _confirm(self, ids: list[str], now_ms: int) -> None:
        """The nacks of these ids are durable, or the messages were settled before."""
        for id_ in ids:
            reason = self._refused.pop(id_, None)
            message = self._unsettled.get(id_)
            if reason is not None and message is not None:
                self._close_out(message, now_ms, reason)

    # -- from the application ----------------------------------------------------------------------------------------
    def next_message(self) -> Message | None:
        """The next message in sequence order; None when there is none."""
        return self._queue.popleft() if self._queue else None

    def settle(self, message: Message, reason: str | None, now_ms: int) -> None:
        """Acknowledge a message, or reject it with `reason`. Idempotent; a revoked message is ignored."""
        if self._unsettled.get(message.id) is not message or message.id in self._refused:
            return
        if reason is not None:
            said = reason[:REASON_CHARS_MAX].encode(errors="replace").decode()  # a lone surrogate, as in a name of a file, is no UTF-8
            self._refuse(message.id, said)
            return
        self._close_out(message, now_ms, None)
        if message.event_id != f"{self._epoch}-{message.seq}" or message.seq > self._seq:
            self._ack_ids.append(message.id)

    def _refuse(self, id_: str, reason: str) -> None:
        self._refused[id_] = reason
        self._nacks[id_] = None

    def _close_out(self, message: Message, now_ms: int, reason: str | None) -> None:
        del self._unsettled[message.id]
        self._settled.pop(message.id, None)
        here = self._is_here(message)
        self._early.pop(message.id, None)
        self._settled[message.id] = _Settled(now_ms, self._epoch if here else "", message.seq, reason)
        if len(self._settled) > SETTLED_IDS_MAX:
            del self._settled[next(iter(self._settled))]
        if not here:
            return
        self._open.discard(message.seq)
        self._advance()

    def _advance(self) -> None:
        """Move the cursor up to the first message that is open."""
        while self._order and self._order[0] not in self._open:
            self._seq = max(self._seq, heapq.heappop(self._order))
            self.cursor = f"{self._epoch}-{self._seq}"

    # -- for the shell -----------------------------------------------------------------------------------------------
    def authenticate(self, token: str) -> None:
        """Send a fresh token on the open connection, if it takes frames."""
        if self._connected and self._transport == "websocket":
            self._frames.append(msgspec.json.encode({"type": "auth", "token": token}))

    def data_to_send(self, now_ms: int) -> list[bytes]:
        """Frames to write now; takes them from the session.

        Empty before `welcome`; messages settled meanwhile are acknowledged after it.
        """
        if not self._connected or self._welcomed_ms is None:
            return []
        frames, self._frames = self._frames, []
        frames += [msgspec.json.encode({"type": "ack", "ids": some, "ts": now_ms}) for some in _chunks(self._ack_ids)]
        self._ack_ids.clear()
        if self._seq > self._acked:
            self._acked = self._seq
            # A request belongs to no connection, so it says of which epoch the number is.
            epoch = b"" if self._transport == "websocket" else b'"epoch":%b,' % msgspec.json.encode(self._epoch)
            frames.append(b'{"type":"ack","seq":%d,%b"ts":%d}' % (self._seq, epoch, now_ms))
        by_reason: dict[str, list[str]] = {}
        for id_ in self._nacks:
            if id_ in self._refused:  # else confirmed or revoked meanwhile
                by_reason.setdefault(self._refused[id_], []).append(id_)
        self._nacks.clear()
        for reason, ids in by_reason.items():
            frames += [msgspec.json.encode({"type": "nack", "ids": some, "reason": reason}) for some in _chunks(ids)]
        return frames

    def events(self) -> list[Event]:
        """Events since the last call, oldest first."""
        events, self._events = self._events, []
        return events
