"""Long polling: one request is one short connection to the gateway, for clients that cannot keep a response open.

A request attaches with its cursor, waits for the first messages or a gap, answers and detaches. What was answered stays pending until
the next request presents it as its cursor, which acknowledges it.

A gap does not end the wait while the shard has announced something behind it. A shard adopts broadcasts, and reads what is only in
storage, while a connection is there. A client that asks again with its old cursor is sent the gap first each time, and would never stay
for what follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.types import Receive

from engine.auth.tokens import Principal
from engine.core.model.message import early_bytes, object_bytes
from engine.core.wire import records as wire
from engine.gateway.connection import Connection, Cursor
from engine.gateway.gateway import GOING_AWAY, TOKEN_REFUSED, Gateway
from engine.http.problems import too_many_requests, unauthorized, unavailable
from engine.transports.asgi import until_disconnected

_TOO_MANY_CONNECTIONS: Final = 4409

_FRAMES_WAIT_S: Final = 0.2
"""From the first frame to the answer: five requests a second are as smooth as polling gets."""


class Poll(Connection):
    """One long-polling request, for as long as it waits."""

    __slots__ = ("_closed", "_early", "_expecting", "_frames", "_gaps", "_head", "_messages", "_ready", "_resumed", "_seq", "_waited")

    def __init__(self, gateway: Gateway, owner: Principal, cursor: Cursor, device: str) -> None:
        super().__init__(gateway, owner, wire.POLL, cursor, device)
        self._messages: list[bytes] = []
        self._early: dict[int, bytes] = {}  # by number
        self._gaps: list[dict[str, int]] = []
        self._frames: list[bytes] = []  # of features
        self._expecting = True
        self._waited = False  # the requested time has passed
        self._resumed = ""
        self._head = 0
        self._seq = 0
        self._closed: tuple[int, str] | None = None
        self._ready = asyncio.Event()

    async def run(self, receive: Receive, wait_s: float) -> bytes:
        """Wait up to `wait_s` for messages or a gap, or until the client disconnects; return the body of the response.

        When the shard has not answered by then, or has announced messages that are not here yet, `poll_grace_ms` more are waited: a
        short `wait` must not make a mailbox look empty.

        Raises:
            Problem: 401, the token has expired or was revoked; 429 or 503, the shard closed the connection; 503, it did not welcome it in
                time.
        """
        self.gateway.attach(self)
        leaving = asyncio.ensure_future(until_disconnected(receive))
        ready = asyncio.ensure_future(self._ready.wait())
        try:
            await asyncio.wait((ready, leaving), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if self._expecting and not self._ready.is_set() and not leaving.done():
                self._waited = True
                grace_s = self.gateway.config.poll_grace_ms / 1000
                await asyncio.wait((ready, leaving), timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            leaving.cancel()
            self.gateway.detach(self, 0)
        return self._answer()

    def _answer(self) -> bytes:
        if self._closed is not None:
            code, reason = self._closed
            if code == TOKEN_REFUSED:
                raise unauthorized(reason)
            raise too_many_requests(reason, 1) if code == _TOO_MANY_CONNECTIONS else unavailable(reason, 1)
        if not self.welcomed:
            raise unavailable("no answer in time", 1)
        gaps = b"" if not self._gaps else b',"gaps":%b' % msgspec.json.encode(self._gaps)
        copies = [body for seq, body in self._early.items() if seq > self._seq]  # others were sent in their place meanwhile
        early = b"" if not copies else b',"early":[%b]' % b",".join(copies)
        frames = b"" if not self._frames else b',"frames":[%b]' % b",".join(self._frames)
        return b'{"messages":[%b],"last_event_id":"%b-%d","resumed":"%b","user":%b%b%b%b}' % (
            b",".join(self._messages),
            self.epoch.encode(),
            self._seq,
            self._resumed.encode(),
            msgspec.json.encode(self.owner.user),
            gaps,
            early,
            frames,
        )

    def on_welcome(self, record: wire.Welcome) -> None:
        """Take `from_seq - 1` as the cursor of an empty answer: nothing before `from_seq` needs delivery."""
        self._resumed = record.resumed
        self._seq = max(record.from_seq - 1, 0)
        self._head = record.head
        self._expecting = record.head >= record.from_seq
        if self._waited and not self._expecting:
            self._ready.set()

    def on_messages(self, messages: Sequence[tuple[int, int, bytes]]) -> None:
        for seq, attempt, body in messages:
            self._messages.append(object_bytes(self.epoch, seq, attempt, body))
            self._seq = max(self._seq, seq)
        self._ready.set()

    def on_early(self, messages: Sequence[tuple[int, int, bytes]]) -> None:
        """Keep early copies for the answer. They do not end the wait: a message or gap before them follows."""
        self._early.update((message[0], early_bytes(*message)) for message in messages)

    def on_transient(self, kind: str, frame: bytes) -> None:
        """Answer with the frame, and with those of the next moment: the client asks again for each answer."""
        self._frames.append(frame)
        if len(self._frames) == 1:
            asyncio.get_running_loop().call_later(_FRAMES_WAIT_S, self._ready.set)

    def on_gap(self, first: int, last: int) -> None:
        """Answer with the gap and the messages of its batch, for which the waiting task comes later. Wait for those announced behind it."""
        self._gaps.append({"from": first, "to": last})
        self._seq = max(self._seq, last)
        if self._seq >= self._head:
            self._ready.set()
        elif len(self._gaps) == 1:
            asyncio.get_running_loop().call_later(self.gateway.config.poll_grace_ms / 1000, self._ready.set)

    def drain(self, after_ms: int) -> None:
        """Answer with what has arrived, or with 503."""
        self.close(GOING_AWAY, "going away")

    def close(self, code: int, reason: str) -> None:
        """Answer with what has arrived, or with the reason."""
        if not self.ended:
            if not (self._messages or self._gaps):
                self._closed = (code, reason)
            self.gateway.detach(self, code)
            self._ready.set()

    def check(self, now_ms: int, wall_ms: int) -> int:
        """Answer when the token expires. Returns when to check again, in ms: then or, by the end of the request, never."""
        left_ms = self.expires_ms - wall_ms
        if left_ms <= 0:
            self.close(TOKEN_REFUSED, "the token has expired")
        return now_ms + min(max(left_ms, 0), self.gateway.config.heartbeat_max_ms)
