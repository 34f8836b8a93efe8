"""Messages that grow, from a publisher: their parts over HTTP, sent again from where the engine has them (docs/GROWING.md).

    append --> text in memory --one request for all messages of the publisher--> edge: `have`, and `stored` so much
                    ^---------- `have` is less than what was sent: send again from there --------------v

    a message    begun --append--> unsent --taken--> have == size --stored--> stored == size --`end`--> published
    an edge      dies: another one has only what was stored, says `behind`, and gets the rest once more

The whole text stays in memory until the end, so whatever an edge lost can be sent again. While something is not stored, the publisher asks
again, so it finds a dead edge also when its text pauses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from engine.client.loop_bound import OfLoop, Pump
from engine.client.publish_results import value_of
from engine.client.retried_requests import CLOSED, RetriedRequests, segment
from engine.errors import Refused

SEND_EACH_S: Final = 0.08
"""Between two requests with parts: each joins 2.4 of 30 tokens a second, and 12 changes a second look continuous."""

ASK_STORED_S: Final = 0.25
"""Without new text, until the engine is asked whether it has stored the last of it."""

KEEP_S: Final = 20.0
"""Without new text, until the engine is told that the message still grows."""

PART_BYTES_MAX: Final = 16 << 10
"""Of one part; the rest follows in the next request."""

REQUEST_PARTS_MAX: Final = 1000
"""Parts of one request: 20 bytes each, usually."""

UNSENT_BYTES_MAX: Final = 64 << 10
"""Of one message; then `append` waits, which is the back-pressure."""

_OF_SOME: Final = frozenset({413, 422})
"""Statuses of a request that is refused for some of its parts, or for their size together."""

_REPLACED: Final = "another writer has begun this message anew"
_LONGER: Final = "another run of this writer has written more"
_ENDED: Final = "this message has ended"
_FULL: Final = "the text is longer than a message may be (`growing_bytes_max`)"


class _Begun(Struct):
    id: str
    state: str
    generation: int
    have: int = 0
    stored: int = 0
    ended: str = ""
    type: str = ""


class _PartResult(Struct):
    state: str
    have: int = 0
    stored: int = 0


class _PartResults(Struct):
    parts: list[_PartResult]


class _Behind(Struct):
    have: int | UnsetType = UNSET


def _had(problem: bytes) -> int | UnsetType:
    """Up to where the engine has the text, by its answer to an end; UNSET where it does not say, or a proxy has answered."""
    try:
        return msgspec.json.decode(problem, type=_Behind).have
    except (ValueError, RecursionError):
        return UNSET


class _End(Struct):
    seq: int = 0
    ended: str = ""


class GrownText(Struct):
    """A message that grows, or grew within the last hour.

    Attributes:
        id: of the message.
        state: `growing` or `ended`.
        generation: grows when the message is begun anew.
        size: bytes of the whole text in UTF-8.
        offset: where `text` begins.
        text: from there on.
        message: its members.
        progress: `value`, `text` and `step`; None for none.
        ended: `idle` where the publisher fell silent.
        list: the text is a list of JSON values, one a line.
    """

    id: str
    state: str
    generation: int
    size: int
    offset: int
    text: str
    message: dict[str, Any]
    progress: dict[str, Any] | None = None
    ended: str = ""
    list: bool = False


class GrowingMessage:
    """A message that grows; `Publisher.stream` makes it. Leaving its block ends it, unless an exception leaves the block.

        async with publisher.stream(user="ann", type="llm.answer") as message:
            async for token in tokens:
                await message.append(token)

    After an exception the engine ends the message by itself when nothing has come for `growing_idle_s`; a stream under the same id begins
    it anew, or goes on with it under the same `writer`.

    Attributes:
        id: of the message.
        ended: it had ended before it began here: what is appended is dropped. Such a message was complete, so a program that was
            interrupted after the end runs again without a second answer.
        idle: the engine has ended it because its publisher was silent, also while it grew here; or another run of the writer has ended it.
        end_type: the type with which it had ended before it began here; "" where that end named none.
        seq: its number in the user's mailbox, after the end; 0 when it ended before.
    """

    def __init__(
        self, sender: PartSender, message: Mapping[str, Any], *, list: bool, writer: str = "", idle: Mapping[str, Any] | None = None
    ) -> None:
        self.id: str = message["id"]
        self.user: str = message["user"]
        self.ended = self.idle = False
        self.end_type = ""
        self.seq = 0
        self._sender = sender
        self._begin = {"message": message, "list": list} | ({"writer": writer} if writer else {}) | ({"idle": idle} if idle else {})
        self._list = list
        self._text = bytearray()
        self._generation = 0
        self._have = self._stored = 0
        self._progress: Raw | None = None  # not taken yet
        self._last_progress: Raw | None = None
        self._sent_s = 0.0
        self._failure: Exception | None = None

    async def __aenter__(self) -> Self:
        begun = await self._sender.begin(self._begin)
        self._generation, self.ended, self.idle, self.end_type = begun.generation, begun.state == "ended", bool(begun.ended), begun.type
        self._sent_s = time.monotonic()
        if not self.ended:
            self._sender.add(self)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            await self.end()
        else:
            self._sender.discard(self)

    async def append(self, value: Any) -> None:
        """Add text; to a list, any JSON value. Returns at once, unless the engine takes no more for now.

        Raises:
            Refused: the text is too long, another writer has begun the message anew, or it has ended.
            Unreachable: no engine answered within `retry_for_s`.
            TypeError: it is no text, and the message is no list.
        """
        self._check()
        if self.ended:
            return
        if self._list:
            self._text += msgspec.json.encode(value) + b"\n"
        elif isinstance(value, str):
            self._text += value.encode()
        else:
            raise TypeError("only text can be appended; a message with list=True takes any JSON value")
        self._sender.wake()
        while len(self._text) - self._have > UNSENT_BYTES_MAX:
            await self._sender.taken()
            self._check()

    async def progress(self, value: float | None = None, *, text: str = "", step: str = "") -> None:
        """Say how far the work is. Only the last one counts.

        Args:
            value: 0 to 1; None: not known.
            text: a line for people, "12 of 30 files".
            step: what it is at, "download".

        Raises:
            Refused: another writer has begun the message anew, or it has ended.
            Unreachable: no engine answered within `retry_for_s`.
        """
        self._check()
        if not self.ended:
            self._progress = self._last_progress = Raw(msgspec.json.encode({"value": value, "text": text, "step": step}))
            self._sender.wake()

    async def end(self, *, type: str | None = None, data: Mapping[str, Any] | None = None) -> None:
        """Publish the message with the whole text; durable on return. Leaving the block calls it.

        Args:
            type: in place of the one with which it began.
            data: members that are added to its data.

        Raises:
            Refused: another writer has begun the message anew or has written more, it has ended by itself (`idle`), its id belongs to
                another message, or the type or the data is not valid.
            Unreachable: no engine answered within `retry_for_s`.
        """
        if self.ended:
            return
        self._check()
        self._sender.add(self)  # an end that failed has taken it away
        try:
            while True:
                while self._have < len(self._text) or self._progress is not None:
                    self._check()
                    self._sender.wake()
                    await self._sender.taken()
                self._check()
                done, have = await self._sender.end(self, self._end_of(type, data))
                if done is not None and done.ended:
                    self.idle = True
                    raise Refused(_ENDED, 409)
                if done is not None:
                    self.seq, self.ended = done.seq, True
                    return
                if have > len(self._text):
                    raise Refused(_LONGER, 409)
                self._have = have  # an edge has died with the rest
        finally:
            self._sender.discard(self)

    def _end_of(self, type: str | None, data: Mapping[str, Any] | None) -> dict[str, Any]:
        """The request of the end. The edge that took the last progress may have died before it stored that, so it is sent again."""
        ending = {"type": type, "data": data, "progress": self._last_progress}
        given = {name: value for name, value in ending.items() if value is not None}
        return {"user": self.user, "generation": self._generation, "size": len(self._text), **given}

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    # -- Called by the sender. -----------------------------------------------------------------------------------------
    def due_s(self) -> float:
        """When there is something to send, on the monotonic clock."""
        if self._have < len(self._text) or self._progress is not None:
            return 0.0
        return self._sent_s + (ASK_STORED_S if self._stored < self._have else KEEP_S)

    def part(self) -> dict[str, Any]:
        """What the engine lacks."""
        self._sent_s = time.monotonic()
        text = self._text[self._have : self._have + PART_BYTES_MAX].decode(errors="ignore")  # a cut character comes with the next part
        part = {"user": self.user, "id": self.id, "generation": self._generation, "offset": self._have, "text": text}
        return part if self._progress is None else {**part, "progress": self._progress}

    def answered(self, part: Mapping[str, Any], result: _PartResult) -> None:
        """The engine has answered this part."""
        if result.state in ("ok", "behind"):
            self._have, self._stored = min(result.have, len(self._text)), result.stored
            if result.state == "ok" and part.get("progress") is self._progress:
                self._progress = None
        elif result.state == "full":
            self.failed(Refused(_FULL, 413))
        else:
            self.idle = result.state == "ended"
            self.failed(Refused(_ENDED if self.idle else _REPLACED, 409))

    def replaces(self, other: GrowingMessage) -> bool:
        """Whether this has begun that message anew."""
        return self._generation != other._generation

    def failed(self, error: Exception) -> None:
        """Nothing more can be sent: the next call raises the error."""
        self._failure = error
        self._sender.discard(self)


class PartSender:
    """Sends the parts of all messages of a publisher, in one request at a time.

    Args:
        requests: of the publisher.
        new_writer: makes an unguessable name.
    """

    def __init__(self, requests: RetriedRequests, new_writer: Any) -> None:
        self._requests = requests
        self._new_writer = new_writer
        self._messages: dict[tuple[str, str], GrowingMessage] = {}
        self._pump = OfLoop(Pump)

    async def begin(self, members: Mapping[str, Any]) -> _Begun:
        """Begin a message, by the members of the request. Raises Refused, Unreachable, Unauthorized, Forbidden."""
        body = msgspec.json.encode({"writer": self._new_writer(), **members})
        return value_of(_Begun, await self._requests.send("POST", "/v1/growing", body))

    async def end(self, message: GrowingMessage, members: Mapping[str, Any]) -> tuple[_End | None, int]:
        """End a message, by the members of the request.

        Returns the end, or None and up to where the engine has the text. Raises as `begin`.
        """
        answer = await self._requests.send("POST", f"/v1/growing/{segment(message.id)}/end", msgspec.json.encode(members))
        if answer.status == 409 and (have := _had(answer.body)) is not UNSET:
            return None, have
        if answer.status == 422 and "progress" in members:  # an engine of an earlier version knows no progress of an end
            return await self.end(message, {name: value for name, value in members.items() if name != "progress"})
        return value_of(_End, answer), members["size"]

    def add(self, message: GrowingMessage) -> None:
        """Send the parts of this message from now on. Another generation under its id is replaced by it."""
        other = self._messages.get((message.user, message.id), message)
        if message.replaces(other):
            other.failed(Refused(_REPLACED, 409))
        self._messages[message.user, message.id] = message
        pump = self._pump.get()
        if pump.task is None or pump.task.done():
            pump.task = asyncio.create_task(self._run(pump.arrived), name="engine-parts")

    def discard(self, message: GrowingMessage) -> None:
        """Send nothing more of this message."""
        if self._messages.get((message.user, message.id)) is message:
            del self._messages[message.user, message.id]
        self._pump.get().progress.set()

    def wake(self) -> None:
        """A message has something to send."""
        self._pump.get().arrived.set()

    async def taken(self) -> None:
        """Return after the next answer."""
        taken = self._pump.get().progress
        taken.clear()
        await taken.wait()

    async def close(self) -> None:
        """Stop. Whoever waits for an answer learns that there is none."""
        task = self._pump.get().task
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        for message in list(self._messages.values()):
            message.failed(RuntimeError(CLOSED))

    async def _run(self, arrived: asyncio.Event) -> None:
        while self._messages:
            due_s = min(message.due_s() for message in self._messages.values())
            if (left_s := due_s - time.monotonic()) > 0:
                arrived.clear()
                try:
                    async with asyncio.timeout(left_s):
                        await arrived.wait()
                except TimeoutError:
                    pass
                continue
            begun_s = time.monotonic()
            due = [message for message in self._messages.values() if message.due_s() <= begun_s][:REQUEST_PARTS_MAX]
            await self._send(due)
            await asyncio.sleep(max(begun_s + SEND_EACH_S - time.monotonic(), 0))

    async def _send(self, messages: list[GrowingMessage]) -> None:
        parts = [message.part() for message in messages]
        try:
            answer = await self._requests.send("POST", "/v1/parts", msgspec.json.encode({"parts": parts}), "did not take parts")
            results = value_of(_PartResults, answer).parts
        except Exception as error:
            if isinstance(error, Refused) and error.status in _OF_SOME and len(messages) > 1:  # halve until it must be this one
                await self._send(messages[: len(messages) // 2])
                await self._send(messages[len(messages) // 2 :])
                return
            for message in messages:
                message.failed(error)
        else:
            for message, part, result in zip(messages, parts, results, strict=True):
                message.answered(part, result)
        self._pump.get().progress.set()
