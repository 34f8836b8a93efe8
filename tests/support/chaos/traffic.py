"""Steady traffic with books: what was accepted, what each user saw, how late; an independent checker decides whether it was right.

Publishers give every message an id and repeat a request until it is answered 202, as careful publishers do. Receivers are an
independent WebSocket library; they acknowledge what they get and come back with their cursor. Some users are away until the end.
Latency counts from when a message was first meant to be sent, so an outage is in it.

Its own CPU is kept low: on a small machine it would be taken from the processes that come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise, zip_longest
from typing import Any, Final

from picows import WSError, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from engine.check import Checker, Recorder
from tests.support.load.poster import Poster

RATE: Final = 600  # messages per second
ONLINE: Final = 34
AWAY: Final = 6  # 15 % of all
BATCH: Final = 12
PUBLISHERS: Final = 6
RECONNECT_S: Final = 0.1

_OPEN_S: Final = 5.0  # for a connection
_ANSWER_S: Final = 10.0  # for a request
_TOKEN_S: Final = 1800.0  # a token is used so long, which a soak outlives

now_s = time.monotonic


class Receiver:
    """One user's device."""

    def __init__(self, traffic: Traffic, user: str) -> None:
        self.user = user
        self.came: set[str] = set()  # ids
        self.newest = 0
        self.repeated = self.connects = 0
        self.arrivals: list[tuple[float, float]] = []  # (when, how late in seconds), first deliveries only
        self.newest_sent_s = 0.0  # when the newest message it has was sent
        self._traffic = traffic
        self._cursor: str | None = None
        self._connection = 0  # its number in the history

    async def run(self) -> None:
        while True:
            with contextlib.suppress(OSError, WSError, TimeoutError):
                await self._once()
            await asyncio.sleep(RECONNECT_S * random.uniform(0.7, 1.3))

    async def _once(self) -> None:
        query = f"?last_event_id={self._cursor}" if self._cursor else ""
        url = self._traffic.url.replace("http", "ws", 1) + "/v1/ws" + query
        headers = {"Authorization": f"Bearer {self._traffic.token(self.user, 'connect')}", "Sec-WebSocket-Protocol": "notify.v1.json"}
        opening = asyncio.ensure_future(
            ws_connect(partial(_Frames, self._told), url, extra_headers=headers, websocket_handshake_timeout=_OPEN_S, enable_auto_ping=True)
        )
        try:
            async with asyncio.timeout(_OPEN_S):
                transport, _ = await asyncio.shield(opening)
        except (asyncio.CancelledError, TimeoutError):  # the socket would stay open
            opening.add_done_callback(_abort)
            raise
        try:
            await transport.wait_disconnected()
        finally:
            transport.underlying_transport.abort()

    def _told(self, frame: dict[str, Any]) -> bytes:
        """Take a frame; returns what it is answered with."""
        recorder, kind = self._traffic.recorder, frame["type"]
        if kind == "welcome":
            self.connects += 1
            self._connection = recorder.connected(self.user, self._cursor, frame)
            self._traffic.told_epoch(frame["epoch"])
            if self._cursor and not self._cursor.startswith(f"{frame['epoch']}-"):  # storage has lost data: numbers begin anew
                self.newest, self._cursor = 0, None
            return b""
        recorder.received(self._connection, frame)
        if kind == "gap":
            self._traffic.gaps.append(f"a gap of {self.user}, and nothing expired or was trimmed: {frame}")
        if kind != "messages":
            return b""
        for message in frame["messages"]:
            self._take(message)
        recorder.acknowledged(self.user, self._cursor or "")
        return b'{"type":"ack","seq":%d}' % self.newest

    def _take(self, message: dict[str, Any]) -> None:
        now, sent_s = now_s(), message["data"]["sent"]
        self.came.add(message["id"])
        if message["seq"] <= self.newest:
            self.repeated += 1
            return
        self.newest = message["seq"]
        self._cursor = message["event_id"]
        self.arrivals.append((now, now - sent_s))
        self.newest_sent_s = max(self.newest_sent_s, sent_s)


class _Frames(WSListener):
    """A connection: hands its frames on, and sends the answers."""

    def __init__(self, told: Callable[[dict[str, Any]], bytes]) -> None:
        self._told = told

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.TEXT:
            if answer := self._told(json.loads(frame.get_payload_as_bytes())):
                transport.send(WSMsgType.TEXT, answer)
        elif frame.msg_type == WSMsgType.CLOSE:
            transport.disconnect()


class _Posting:
    """One publisher's requests, over a connection that lasts while it can: a new one for another edge, or before the token expires."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._poster: Poster | None = None
        self._url = ""
        self._until_s = 0.0

    async def __aenter__(self) -> _Posting:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._poster is not None:
            self._poster.close()
            self._poster = None

    async def post(self, body: bytes) -> tuple[int, bytes]:
        """Publish; returns the status and the body of the answer. Raises OSError, EOFError, TimeoutError."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                status, headers, answer = await (await self._connected()).request("POST", "/v1/notifications", body)
        except BaseException:
            self._leave()
            raise
        if headers.get("connection") == "close":
            self._leave()
        return status, answer

    async def _connected(self) -> Poster:
        traffic, old = self._traffic, self._poster
        if old is None or old.ended or self._url != traffic.url or now_s() > self._until_s:
            self._leave()
            self._url, self._until_s = traffic.url, now_s() + _TOKEN_S
            host, _, port = traffic.url.rpartition("//")[2].rpartition(":")
            head = f"Authorization: Bearer {traffic.token('app', 'publish')}\r\nContent-Type: application/json\r\n"
            self._poster = await Poster.open(int(port), head, host)
        assert self._poster is not None
        return self._poster


def _abort(opening: asyncio.Future[tuple[WSTransport, WSListener]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].underlying_transport.abort()


class Traffic:
    """Publishes at a rate, messages per second, until `finish`, which brings in those who were away and closes the books.

    Args:
        url: `http://host:port` of an edge.
        token: (user, scopes) -> a token.
        name: begins the names of its users.
        store_of: a user -> what fails by itself of the storage: the users of a publisher share it, so that an outage stops no other's.
        members: of every message, beside those that the books need.
    """

    def __init__(
        self, url: str, token: Callable[[str, str], str], name: str, *, online: int = ONLINE, away: int = AWAY, rate: int = RATE,
        store_of: Callable[[str], int] = lambda _user: 0, **members: Any,
    ) -> None:  # fmt: skip
        self.url = url
        self.token = token
        self.online = [Receiver(self, f"{name}-{n}") for n in range(online)]
        self.away = [Receiver(self, f"{name}-away-{n}") for n in range(away)]
        self.accepted = 0
        self.owed: dict[str, set[str]] = {}  # user -> ids that were accepted since clients were last told that storage has lost data
        self.checker = Checker()
        self.recorder = Recorder(self.checker.take_next)
        self.gaps: list[str] = []  # sentences
        self.epochs: set[str] = set()  # that clients were told of
        self.retries = 0  # requests that had to be repeated
        self.refused = 0  # those of them that were answered
        self.unavailable = 0  # those of these with 503; a 429 tells of the load, and this machine may be doing anything else
        self.rate = rate
        self.store_of = store_of
        self._members = members
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._publishing: list[asyncio.Task[None]] = []
        self._numbers = iter(range(10**9))

    async def __aenter__(self) -> Traffic:
        self._tasks = [asyncio.create_task(receiver.run()) for receiver in self.online]
        self._publishing = [asyncio.create_task(self._publish(n)) for n in range(PUBLISHERS)]
        await self.flowing(now_s())
        self.recorder.disturbed()  # by whoever entered
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in [*self._tasks, *self._publishing]:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._publishing, return_exceptions=True)

    async def _publish(self, publisher: int) -> None:
        dice = random.Random(publisher)
        by_store: dict[int, list[str]] = {}
        for receiver in (*self.online, *self.away):
            by_store.setdefault(self.store_of(receiver.user), []).append(receiver.user)
        users = by_store[sorted(by_store)[publisher % len(by_store)]]
        due_s = now_s() + BATCH * publisher / self.rate
        async with _Posting(self) as posting:
            while not self._stop.is_set():
                await asyncio.sleep(max(0.0, due_s - now_s()))
                items = []
                for _ in range(BATCH):
                    user = dice.choice(users)
                    id = f"{user}:{next(self._numbers)}"
                    items.append({"user": user, "type": "test.message", "id": id, "data": {"sent": due_s}, **self._members})
                await self._until_accepted(posting, items)
                for item in items:
                    self.owed.setdefault(item["user"], set()).add(item["id"])
                self.accepted += len(items)
                period_s = BATCH * PUBLISHERS / self.rate
                due_s = max(due_s + period_s, now_s() - period_s)  # what an outage held up is not sent in a burst

    async def _until_accepted(self, posting: _Posting, items: list[dict[str, Any]]) -> None:
        while True:
            calls = [self.recorder.published(item["user"], item["id"], item["data"]) for item in items]
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                status, body = await posting.post(json.dumps(items).encode())
                for call, result in zip_longest(calls, json.loads(body).get("results", ())):
                    self.recorder.answered(call, status, result)
                if status == 202:
                    return
                assert status in (429, 503), body
                self.refused += 1
                self.unavailable += status == 503
            self.retries += 1
            await asyncio.sleep(RECONNECT_S)

    def told_epoch(self, epoch: str) -> None:
        """A client was told of it: a new one tells that storage has lost data."""
        if self.epochs and epoch not in self.epochs:
            self.owed.clear()
        self.epochs.add(epoch)

    async def flowing(self, since_s: float, within_s: float = 110) -> float:
        """Wait until every online user has received something sent since then; returns how long after `since_s` that was."""
        while any(receiver.newest_sent_s < since_s for receiver in self.online):
            for task in self._publishing:
                assert not task.done(), task.exception()
            assert now_s() - since_s < within_s, "service does not come back"
            await asyncio.sleep(0.01)
        return now_s() - since_s

    def reconnect(self, receivers: Iterable[int]) -> None:
        """These of the online ones leave their connections, and come back."""
        for at in receivers:
            self._tasks[at].cancel()
            self._tasks[at] = asyncio.create_task(self.online[at].run())

    async def move(self, url: str) -> None:
        """Everybody goes to another edge: a client leaves its connection, which may be dead without a sign, and resumes there."""
        self.url = url
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = [asyncio.create_task(receiver.run()) for receiver in self.online]

    def latency_ms(self, from_s: float, to_s: float, q: float = 0.99) -> float:
        """Quantile of the latency of what arrived in between (nearest rank); 0 when nothing did."""
        samples = [late_s * 1000 for receiver in self.online for at_s, late_s in receiver.arrivals if from_s <= at_s < to_s]
        if not samples:
            return 0.0
        return round(sorted(samples)[max(math.ceil(q * len(samples)), 1) - 1], 1)

    def silence_s(self, from_s: float, to_s: float) -> float:
        """The longest that any online user went without a message in between."""
        return round(max(end - begin for begin, end, _ in self._pauses(from_s, to_s)), 2)

    def silence_of_others_s(self, from_s: float, to_s: float, touched: Sequence[tuple[float, float, Collection[int]]]) -> float:
        """The longest pause of an online user whose store was not being touched: `touched` has (begin, end, stores)."""
        pauses = [
            (begin, end)
            for begin, end, user in self._pauses(from_s, to_s)
            if not any(begin < until and end > since and self.store_of(user) in stores for since, until, stores in touched)
        ]
        return round(max(end - begin for begin, end in pauses), 2)

    def silences(self, from_s: float, to_s: float, above_s: float) -> list[tuple[float, float, int]]:
        """Pauses above `above_s`, the longest first: (begin, end, how many online users had one that overlaps it).

        Those that overlap one begin none of their own.
        """
        found: list[tuple[float, float, int]] = []
        left = [pause for pause in self._pauses(from_s, to_s) if pause[1] - pause[0] > above_s]
        while left:
            begin, end, _ = max(left, key=lambda pause: pause[1] - pause[0])
            within = {pause for pause in left if pause[0] < end and pause[1] > begin}
            found.append((begin, end, len({user for *_, user in within})))
            left = [pause for pause in left if pause not in within]
        return found

    def _pauses(self, from_s: float, to_s: float) -> Iterator[tuple[float, float, str]]:
        """Between two messages of each online user, with that user."""
        for receiver in self.online:
            moments = [from_s, *(at_s for at_s, _ in receiver.arrivals if from_s <= at_s < to_s), to_s]
            yield from ((begin, end, receiver.user) for begin, end in pairwise(moments))

    async def finish(self, within_s: float = 110) -> dict[str, Any]:
        """Stop publishing, bring in who was away, wait for what is missing; returns the books.

        {"accepted", "lost", "repeated", "out_of_order", "wrong", "publisher_retries", "refused", "unavailable", "reconnects"}; `wrong` are
        sentences about whatever else is not as PROTOCOL.md has it, and about gaps where no new epoch told that storage has lost data.
        """
        self._stop.set()
        await asyncio.wait_for(asyncio.gather(*self._publishing), within_s)
        self._tasks += [asyncio.create_task(receiver.run()) for receiver in self.away]
        everyone = [*self.online, *self.away]
        deadline = now_s() + within_s
        while any(not receiver.came >= self.owed.get(receiver.user, set()) for receiver in everyone) and now_s() < deadline:
            await asyncio.sleep(0.02)
        self.recorder.complete()
        found = Counter(one.reason for one in self.checker.violations)
        disorder = ("order", "hole")
        gaps = self.gaps if len(self.epochs) == 1 else ()
        return {
            "accepted": self.accepted,
            "lost": found["lost"],
            "repeated": sum(receiver.repeated for receiver in everyone),
            "out_of_order": sum(found[reason] for reason in disorder),
            "wrong": [*gaps, *(str(one) for one in self.checker.violations if one.reason != "lost")],
            "publisher_retries": self.retries,
            "refused": self.refused,
            "unavailable": self.unavailable,
            "reconnects": sum(max(receiver.connects - 1, 0) for receiver in everyone),
        }
