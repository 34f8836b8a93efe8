"""Users' devices: they connect over all transports, acknowledge well or badly, vanish, and come back with all kinds of cursors.

A wire between a device and an edge keeps order and loses nothing until it breaks, as TCP does. When it breaks silently, each end
goes on sending into nothing until its own heartbeat notices. While the two are cut off from each other, what is sent waits.
The edge's ends are the real WebSocketSession, EventStream and Poll.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Final
from zlib import crc32

import msgspec

from engine.auth.tokens import Principal
from engine.core.wire.records import POLL, SSE_EXPLICIT, WEBSOCKET
from engine.errors import EngineError
from engine.gateway.connection import Connection, Cursor
from engine.http.problems import Problem
from engine.transports.long_poll import Poll
from engine.transports.sse import EventStream
from engine.transports.websocket_protocol import WebSocketSession
from tests.sim.books import Books
from tests.sim.broadcastbook import TEAM
from tests.sim.cluster import DATA_EPOCH, Cluster
from tests.sim.cuts import OUTSIDE, Cuts, Place
from tests.sim.faults import Faults
from tests.sim.known import Receiving
from tests.sim.loop import Process, SimLoop

_WIRE_S: Final = 0.002
_SILENCE_S: Final = 1.5
"""A client that has heard nothing for so long reconnects, like a real one after `timeout_ms`."""

_EXPIRES_S: Final = 4_000_000_000
_POLL_WAIT_S: Final = 0.5

_ACK_AGAIN_S: Final = 0.2

_REPEAT_S: Final = 3.0
"""A message that is not acknowledged must have come again after this, in a world without faults: some retries and a restart."""

decode: Final = msgspec.json.decode


class Wire:
    """Both directions between a device and its end at an edge, each in order."""

    def __init__(self, loop: SimLoop, rng: Random, process: Process, place: Place, cuts: Cuts) -> None:
        self._loop = loop
        self._rng = rng
        self._process = process
        self._place = place
        self._cuts = cuts
        self._last = [0.0, 0.0]
        self._held: tuple[deque[Callable[[], None]], ...] = (deque(), deque())  # what waits for the end of a cut
        self.whole = True  # False: whatever is sent vanishes

    def _at(self, way: int) -> float:
        self._last[way] = max(self._last[way], self._loop.time() + _WIRE_S * (0.3 + self._rng.random()))
        return self._last[way]

    def to_client(self, act: Callable[..., None], *args: Any) -> None:
        if self.whole and self._process.alive:
            self._loop.call_at(self._at(0), self._arrive, 0, partial(act, *args), context=self._loop.outside)

    def to_edge(self, act: Callable[..., None], *args: Any) -> None:
        """Runs as the edge's code: not while it is frozen, not when it is dead."""
        if self.whole and self._process.alive:
            self._loop.call_at(self._at(1), self._arrive, 1, partial(act, *args), context=self._process.context)

    def _arrive(self, way: int, act: Callable[[], None]) -> None:
        if not self.whole:
            return
        held = self._held[way]
        if held or self._wait_s(way) > 0:
            held.append(act)
            if len(held) == 1:
                self._send_again(way)
        else:
            act()

    def _wait_s(self, way: int) -> float:
        ends = (self._place, self._process.place) if way else (self._process.place, self._place)
        return self._cuts.open_at(*ends) - self._loop.time()

    def _send_again(self, way: int) -> None:
        context = self._process.context if way else self._loop.outside
        wait_s = max(self._wait_s(way), 0.0) + 0.1 * self._rng.random()
        self._loop.call_later(wait_s, self._sent_again, way, context=context)

    def _sent_again(self, way: int) -> None:
        if self._wait_s(way) > 0:
            self._send_again(way)
            return
        held = self._held[way]
        while held and self.whole:
            held.popleft()()


class Socket(WebSocketSession):
    """The edge's end of a simulated WebSocket."""

    __slots__ = ("device", "link")

    def __init__(self, gateway: Any, owner: Principal, cursor: Cursor, link: Link) -> None:
        super().__init__(gateway, owner, cursor, link.device.name, lambda _token: owner)
        self.link = link
        self.wants_counts = True

    def write(self, text: bytes) -> None:
        if not self.ended:
            self.link.wire.to_client(self.link.frame, text)

    def ping(self, payload: bytes) -> None:
        self.link.wire.to_client(self.link.pinged, payload)

    def ponged(self, payload: bytes) -> None:
        self.heartbeat.pong(payload, self.gateway.clock())

    def close(self, code: int, reason: str) -> None:
        if not self.ended:
            self.gateway.detach(self, code)
            self.link.wire.to_client(self.link.closed, code)

    def check_backlog(self, now_ms: int) -> int:
        self.gateway.backlog.discard(self)
        return 0


class Link:
    """One connection, the device's end of it."""

    def __init__(self, device: Device, process: Process, kind: int, cursor: tuple[str, int]) -> None:
        self.device = device
        self.process = process
        self.kind = kind
        self.cursor = cursor
        self.wire = Wire(device.loop, device.rng, process, device.place, device.cluster.cuts)
        self.over = False
        self.peer: Any = None
        self.gateway: Any = None
        self.leave: Any = None  # tells a stream's or a poll's end that the client has left
        device.links += 1
        name = f"{device.name}/{('ws', 'sse', 'sse-explicit', 'poll')[kind]}{device.links}"
        self.receiving = Receiving(device.book, name, kind in {WEBSOCKET, SSE_EXPLICIT})
        self.heard_at = device.loop.time()
        self._recorded = 0

    # -- At the edge. -------------------------------------------------------------------------------------------------
    def open(self, gateway: Any) -> None:
        """The request has arrived."""
        self.gateway = gateway
        device = self.device
        tenant, _, user = device.book.key.partition(":")
        owner = Principal(tenant, user, frozenset(("connect",)), _EXPIRES_S, device.topics)
        cursor = Cursor(*self.cursor)
        try:
            if self.kind == POLL:
                gateway.require_capacity()
            else:
                gateway.admit(device.book.key)
        except EngineError:
            self.wire.to_client(self.closed, 4429)
            return
        loop = device.loop
        if self.kind == WEBSOCKET:
            self.peer = Socket(gateway, owner, cursor, self)
            gateway.attach(self.peer)
        elif self.kind == POLL:
            self.leave = loop.create_future()
            loop.create_task(self._poll(Poll(gateway, owner, cursor, device.name)))
        else:
            self.leave = loop.create_future()
            stream = EventStream(gateway, owner, cursor, device.name, explicit=self.kind == SSE_EXPLICIT)
            stream.wants_counts = True
            loop.create_task(self._stream(stream))

    async def _receive(self) -> dict[str, Any]:
        await self.leave
        return {"type": "http.disconnect"}

    async def _stream(self, stream: EventStream) -> None:
        async def send(message: dict[str, Any]) -> None:
            body = message.get("body")
            if body:
                self.wire.to_client(self.events, body)

        await stream.run({"type": "http"}, self._receive, send)  # type: ignore[arg-type]
        self.wire.to_client(self.closed, 1000)

    async def _poll(self, poll: Poll) -> None:
        try:
            answer = await poll.run(self._receive, _POLL_WAIT_S)  # type: ignore[arg-type]
        except Problem:
            self.wire.to_client(self.closed, 503)
        else:
            self.wire.to_client(self.polled, answer)

    def left(self) -> None:
        """The edge notices that the client is gone."""
        if isinstance(self.peer, Connection):
            self.gateway.detach(self.peer, 1006)
        elif self.leave is not None and not self.leave.done():
            self.leave.set_result(None)

    # -- At the device. -----------------------------------------------------------------------------------------------
    def pinged(self, payload: bytes) -> None:
        self.heard_at = self.device.loop.time()
        self.wire.to_edge(lambda: self.peer.ponged(payload))

    def frame(self, text: bytes) -> None:
        if not self.over:
            self.heard_at = self.device.loop.time()
            self.take(decode(text))

    def events(self, chunk: bytes) -> None:
        self.heard_at = self.device.loop.time()
        for event in chunk.split(b"\n\n"):
            if self.over or b"\ndata: " not in event:
                continue
            data = decode(event.partition(b"\ndata: ")[2])
            self.take(data if "seq" not in data or data.get("type") == "welcome" else {"type": "messages", "messages": [data]})

    def polled(self, answer: bytes) -> None:
        if self.over:
            return
        data = decode(answer)
        books, receiving = self.device.books, self.receiving
        first = min([message["seq"] for message in data["messages"]] + [gap["from"] for gap in data.get("gaps", ())], default=0)
        last = int(data["last_event_id"].rpartition("-")[2])
        # An answer says where it begins only by its first message: nothing before it may be pending.
        recorder, recorded = books.history, self._welcomed(data["last_event_id"].rpartition("-")[0], data["resumed"])
        receiving.high = (first or last + 1) - 1
        books.poll_begins(receiving, first or last + 1)
        parts = [(gap["from"], gap) for gap in data.get("gaps", ())] + [(message["seq"], message) for message in data["messages"]]
        for _, part in sorted(parts, key=lambda entry: entry[0]):
            if "to" in part:
                recorder.received(recorded, {"type": "gap", **part})
                books.gap(receiving, part["from"], part["to"])
            else:
                recorder.received(recorded, {"type": "messages", "messages": [part]})
                books.received(receiving, part["seq"], part["attempt"], part["id"])
        recorder.received(recorded, {"type": "early", "messages": data.get("early", ())})
        self.copies(data.get("early", ()))
        self.device.polled(self, last, [message["seq"] for message in data["messages"]])

    def _welcomed(self, epoch: str, resumed: str) -> int:
        cursor = "-".join(map(str, self.cursor)) if any(self.cursor) else None
        return self.device.books.history.connected(self.device.book.key, cursor, {"epoch": epoch, "resumed": resumed})

    def copies(self, messages: Sequence[dict[str, Any]]) -> None:
        """Early copies have arrived."""
        for message in messages:
            self.device.books.copied(self.receiving, message["seq"], message["id"])
            self.device.copied(self, message["seq"], message["id"])

    def take(self, frame: dict[str, Any]) -> None:
        kind = frame["type"]
        books = self.device.books
        if kind == "welcome":
            self._recorded = self._welcomed(frame["epoch"], frame["resumed"])
        else:
            books.history.received(self._recorded, frame)
        if kind == "messages":
            for message in frame["messages"]:
                books.received(self.receiving, message["seq"], message["attempt"], message["id"])
            self.device.got(self, [(message["seq"], message["id"]) for message in frame["messages"]])
        elif kind == "early":
            self.copies(frame["messages"])
        elif kind == "welcome":
            books.welcomed(self.receiving, frame["seq"], frame["from"], frame["resumed"], self.cursor)
            self.device.welcomed(self, frame["from"] - 1)
        elif kind == "gap":
            books.gap(self.receiving, frame["from"], frame["to"])
            self.device.passed(self, frame["to"])
        elif kind == "revoke":
            books.revoked(self.receiving, frame["ids"])
        elif kind == "counts":
            books.counted(self.receiving, frame["unread"], frame["unseen"], frame["revision"])
        elif kind == "nacked":
            books.nacked(self.receiving, frame["ids"])
        elif kind == "close":
            self.closed(frame["code"])
        elif kind == "error" and self.device.honest:
            books.fail(f"{self.receiving.name} is told {frame}", self.device.book.key)

    def closed(self, code: int) -> None:
        """The connection ended, and the device knows."""
        if not self.over:
            self.over = True
            self.device.ended(self, code)


class Device:
    """One device of a user: at most one connection at a time, over whatever transport it fancies. It stays away for up to `away_s`.

    With `names_team` its token may name TEAM.
    """

    def __init__(
        self,
        cluster: Cluster,
        books: Books,
        faults: Faults,
        key: str,
        number: int,
        seed: int,
        kinds: Sequence[int],
        tell: Callable[..., None],
        away_s: float,
        names_team: bool,
    ) -> None:
        self.cluster = cluster
        self.config = cluster.config
        self.loop = cluster.loop
        self.books = books
        self.book = books.user(key)
        self.book.devices += 1
        self.name = f"{key}/d{number}"
        self.place = Place(self.name, OUTSIDE)
        self.rng = Random(f"{seed}:{self.name}")
        self.links = 0
        self.link: Link | None = None
        self.honest = True
        self._faults = faults
        self._kinds = kinds
        self._tell = tell
        self._away_s = away_s
        self._handled = 0  # everything up to here is handled, on this device or elsewhere
        self._unacked: dict[int, str] = {}  # received, not acknowledged yet
        self._healed = False
        self._rests = False
        self._settles_early = Random(f"{seed}:takes early").random() < 0.25
        self._early_rng = Random(f"{seed}:{self.name}:early")
        self.topics: frozenset[str] | None = None  # of its token
        if names_team and Random(f"{seed}:{self.name}:token").random() < 0.5:
            self.topics = frozenset((TEAM,))
            self.book.taken.has_tokens = True
        self._later(self.rng.random() * 0.3, self._connect)

    def _later(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        self.loop.call_later(delay_s, act, *args, context=self.loop.outside)

    # -- Connecting. --------------------------------------------------------------------------------------------------
    def _connect(self) -> None:
        if self.link is not None or self._rests:
            return
        edges = self.cluster.edges()
        if not edges:
            self._later(0.05 + 0.1 * self.rng.random(), self._connect)
            return
        process, edge = self.rng.choice(edges)
        cursor = self._cursor()
        kind = self.rng.choice(self._kinds)
        self.link = link = Link(self, process, kind, cursor)
        self._unacked.clear()
        self._tell(self.book.key, f"{link.receiving.name} connects to {process} with {cursor}")
        if cursor[0] == DATA_EPOCH and cursor[1] <= self.book.head:  # one from the future acknowledges nothing
            self.books.acknowledges(self.book.key, cursor[1])
            self.books.history.acknowledged(self.book.key, f"{DATA_EPOCH}-{cursor[1]}")
        link.wire.to_edge(lambda: link.open(edge.gateway))
        self._later(_SILENCE_S, self._check_silence, link)
        if kind != POLL and not self._healed:
            self._later(self.rng.expovariate(0.7), self._leave, link)

    def _cursor(self) -> tuple[str, int]:
        if self._faults.strikes("client-cursor", 0.2):
            rng = self._faults.rng("client-cursor")
            self.books.seen["odd cursors"] += 1
            return rng.choice((("", 0), ("e0", 5), ("?", 0), (DATA_EPOCH, self.book.head + 1000), (DATA_EPOCH, self._handled // 2)))
        return (DATA_EPOCH, self._handled) if self._handled or self.links else ("", 0)

    def _check_silence(self, link: Link) -> None:
        if link is not self.link:
            return
        if self.loop.time() - link.heard_at >= _SILENCE_S:
            self._end(link, silent=True)
        else:
            self._later(_SILENCE_S / 2, self._check_silence, link)

    def _leave(self, link: Link) -> None:
        """The user closes the app, or the train enters a tunnel."""
        if link is self.link and not self._healed:
            self._end(link, silent=self._faults.strikes("client-silent", 0.5))

    def _end(self, link: Link, *, silent: bool) -> None:
        self._tell(self.book.key, f"{link.receiving.name} {'vanishes' if silent else 'leaves'}")
        self.books.seen["vanished" if silent else "left"] += 1
        if silent:
            wire, left = link.wire, link.left
            wire.whole = False
            if link.kind != WEBSOCKET:  # a kernel notices, sooner or later; a WebSocket has heartbeats
                self.loop.call_later(0.5, left, context=link.process.context)
        else:
            link.wire.to_edge(link.left)
        link.over = True
        self.ended(link, 0)

    def ended(self, link: Link, code: int) -> None:
        """Reconnect, after a while."""
        self.books.ended(link.receiving)
        if code:
            self._tell(self.book.key, f"{link.receiving.name} is closed with {code}")
        if self.link is link:
            self.link = None
            self._later(0.02 + self.rng.random() * (0.1 if self._healed else self._away_s), self._connect)

    def rest(self) -> None:
        """Stay away until `heal`."""
        self._rests = True
        if self.link is not None:
            self._leave(self.link)

    def heal(self) -> None:
        """From now on a good client. What it has not acknowledged yet must come again first."""
        self._healed = True
        if self._rests:
            self._rests = False
            self._connect()
            return
        link = self.link
        if link is not None and self._unacked:
            seq = min(self._unacked)
            wait_s = _REPEAT_S if link.kind in {WEBSOCKET, SSE_EXPLICIT} and link.wire.whole else 0.0
            self._later(wait_s, self._expect_repeat, link, seq, link.receiving.times[seq])

    def _expect_repeat(self, link: Link, seq: int, times: int) -> None:
        if link is not self.link or link.over:
            return
        receiving = link.receiving
        stays = seq in self._unacked and not self.books.is_accounted(self.book, seq) and link.wire.whole
        if receiving.repeats and stays and receiving.times[seq] == times < self.config.retry_tries:
            self.books.fail(f"retry: {seq} is not acknowledged on {receiving.name}, and nobody sent it again", self.book.key)
        self._acknowledge(link)

    def edge_died(self, process: Process) -> None:
        link = self.link
        if link is not None and link.process is process and self.cluster.reaches(process.place, self.place):
            self._later(0.001 + 0.02 * self.rng.random(), link.closed, 1006)

    # -- Receiving. ---------------------------------------------------------------------------------------------------
    def welcomed(self, link: Link, through: int) -> None:
        if self.topics:
            self.books.joined(link.receiving)
        self._handled = max(self._handled, through)

    def passed(self, link: Link, through: int) -> None:
        """Nothing comes up to here any more."""
        if not self._unacked:
            self._handled = max(self._handled, through)
        if link.kind == WEBSOCKET and self.rng.random() < 0.5:
            self._later(self.rng.random() * 0.02, self._acknowledge, link)

    def got(self, link: Link, messages: Sequence[tuple[int, str]]) -> None:
        self._tell(self.book.key, f"{link.receiving.name} receives {[seq for seq, _ in messages]}")
        for seq, id in messages:
            self._unacked[seq] = id
        delay_s = 0.001
        if self._healed and self._unacked.keys() - {seq for seq, _ in messages}:
            return  # it waits for a repeat
        if self._faults.strikes("client-slow", 0.12):
            delay_s = self._faults.rng("client-slow").choice((0.05, 0.3, 1.0, 30.0))
        elif self.rng.random() < 0.4:
            delay_s = self.rng.random() * 0.03
        self._later(delay_s, self._acknowledge, link)

    def copied(self, link: Link, seq: int, id: str) -> None:
        """An early copy: in some worlds it is acknowledged or refused by its id, or left to come in its place."""
        way = self._early_rng.random()
        if self._settles_early and way < 0.75:
            delay_s = 0.0 if link.kind == POLL else self._early_rng.choice((0.001, 0.01, 0.3))
            self._later(delay_s, self._settle_copy, link, seq, id, way > 0.6 and link.kind == WEBSOCKET)

    def _settle_copy(self, link: Link, seq: int, id: str, refused: bool) -> None:
        if link.kind != POLL and (link is not self.link or link.over):
            return
        if refused:
            self.books.refuses(self.book.key, [seq])
            self.books.history.acknowledged(self.book.key, ids=[id])
            self.books.seen["early copies refused"] += 1
            frame = msgspec.json.encode({"type": "nack", "ids": [id], "reason": "simulated"})
            link.wire.to_edge(lambda: link.peer.text(frame))
        else:
            self.books.acknowledges(self.book.key, 0, [seq])
            self.books.seen["early copies acked"] += 1
            self._say_ids(link, [id])

    def polled(self, link: Link, last: int, seqs: Sequence[int]) -> None:
        """A poll is answered: the next one presents its cursor. Every other device keeps its own until there is a message, as it may."""
        self._tell(self.book.key, f"{link.receiving.name} is answered with {list(seqs)}, cursor {last}")
        if seqs or crc32(self.name.encode()) % 2:
            self._handled = max(self._handled, last)
        link.over = True
        self.link = None
        self._later(0.002 + self.rng.random() * 0.05, self._connect)

    def _acknowledge(self, link: Link) -> None:
        if link is not self.link or link.over or (not self._unacked and not self._handled):
            return
        rng, key, books = self.rng, self.book.key, self.books
        way = rng.random()
        seqs = sorted(self._unacked)
        if self._healed or way < 0.6 or not seqs:
            through = max(seqs[-1] if seqs else 0, self._handled)
            self._say_through(link, through)
            if way < 0.05:
                books.seen["acked twice"] += 1
                self._say_through(link, through)
        elif way < 0.7:
            through = rng.choice(seqs)
            self._say_through(link, through)
            self._later(0.02, self._acknowledge, link)
        elif way < 0.9:
            some = [seq for seq in seqs if rng.random() < 0.7]
            ids = [self._unacked[seq] for seq in some]
            # Who acknowledges a later number knows of the gaps before it: for the user's other devices they are settled too.
            gone = [seq for first, last in link.receiving.gaps for seq in range(first, last + 1) if seq < max(some, default=0)]
            books.acknowledges(key, 0, [*some, *gone])
            books.seen["acked by ids"] += 1
            self._drop(some)
            if ids:
                self._say_ids(link, ids)
            self._later(0.02, self._acknowledge, link)
        elif link.kind == WEBSOCKET:
            refused = seqs[-1:]
            books.refuses(key, refused)
            books.seen["refused"] += 1
            refused_ids = [self._unacked[seq] for seq in refused]
            books.history.acknowledged(key, ids=refused_ids)
            frame = msgspec.json.encode({"type": "nack", "ids": refused_ids, "reason": "simulated"})
            self._drop(refused)
            link.wire.to_edge(lambda: link.peer.text(frame))
            self._later(0.02, self._acknowledge, link)

    def _drop(self, seqs: Sequence[int]) -> None:
        for seq in seqs:
            self._unacked.pop(seq, None)
        self._handled = max(self._handled, min(self._unacked, default=max(seqs, default=1) + 1) - 1) if seqs else self._handled

    def _say_through(self, link: Link, through: int) -> None:
        self._tell(self.book.key, f"{link.receiving.name} acknowledges through {through}")
        self.books.acknowledges(self.book.key, through)
        self.books.history.acknowledged(self.book.key, f"{DATA_EPOCH}-{through}")
        self._handled = max(self._handled, through)
        for seq in [seq for seq in self._unacked if seq <= through]:
            del self._unacked[seq]
        if link.kind == WEBSOCKET:
            frame = b'{"type":"ack","seq":%d}' % through
            link.wire.to_edge(lambda: link.peer.text(frame))
        else:
            self._post_ack(link, through, [])

    def _say_ids(self, link: Link, ids: list[str]) -> None:
        self._tell(self.book.key, f"{link.receiving.name} acknowledges {ids}")
        self.books.history.acknowledged(self.book.key, ids=ids)
        if link.kind == WEBSOCKET:
            frame = msgspec.json.encode({"type": "ack", "ids": ids})
            link.wire.to_edge(lambda: link.peer.text(frame))
        else:
            self._post_ack(link, -1, ids)

    def _post_ack(self, link: Link, seq: int, ids: list[str]) -> None:
        """POST /v1/ack: streams have no other way to speak."""

        async def post() -> None:
            try:
                await link.gateway.shard_client.settle(self.book.key, seq, ids, 0, DATA_EPOCH)
            except EngineError:
                self._later(_ACK_AGAIN_S, self._repeat_ack, link, seq, ids)

        link.wire.to_edge(lambda: self.loop.create_task(post()))

    def _repeat_ack(self, link: Link, seq: int, ids: list[str]) -> None:
        """It was answered 503, and no message may come whose acknowledgement says the same. A new connection's cursor does."""
        if link is self.link and not link.over:
            self._post_ack(link, seq, ids)
