"""Python calls and bytecode instructions of a message, by leg and package, without noise.

One process has the engine's own edge, links, shard and scheduler on virtual time (`tests.sim.http_world`). The tracer counts each call of a
Python function, also each resumption of a coroutine, and each bytecode instruction that runs inside. It leaves out the stubs for
sockets, Redis and Ray, the event loop, and all C code. So the figures repeat exactly, and they are no measure of time.

Legs, each from the first byte that reaches the edge:
    publish     one message: until the 202 and the frame are written
    ack         its acknowledgement: until the journal has it
    batch       250 messages in one request, for as many connected users: per message
    batch_ack   their acknowledgements: per message
    broadcast   one message for 1 000 connected users: per frame
    timer       a delayed message: until the 202, its frame, and the removal of its timer
    timer_batch 250 delayed messages in one request, for as many connected users: per message
    reconnect   a WebSocket with a cursor and one missed message: until the welcome and the frame
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from tests.sim.cluster import DATA_EPOCH
from tests.sim.http_world import World, ack_frame

BATCH: Final = 250
AUDIENCE: Final = 1000
RUNS: Final = 9
"""Of a leg with one message. The median leaves out the runs that meet a task of an irregular period."""

_REST_S: Final = 5.0
"""Before a leg, so that checkpoints and whatever else the last one left are over."""

_PHASE_S: Final = 0.1
"""A leg begins this long after a whole second, between the wake-ups of periodic tasks (`engine.core.model.period`)."""

_LATE: Final = "late"
"""The user who comes back again and again."""

_DELAY_S: Final = 0.3
_ROOT: Final = Path(__file__).parent.parent


class Counted(NamedTuple):
    """What ran during a leg."""

    calls: Counter[str]
    instructions: Counter[str]
    """Both by package."""

    @property
    def total(self) -> tuple[int, int]:
        return self.calls.total(), self.instructions.total()


class Tracer:
    """Counts what runs inside a `with` block.

    It sees only frames that begin or resume inside the block. A frame counts for the package of its file; files of `tests`, `bench` and
    asyncio count for nothing.
    """

    def __init__(self) -> None:
        self._counters: dict[CodeType, Callable[..., Any] | None] = {}
        self._of_package: dict[str, tuple[list[int], Callable[..., Any]]] = {}
        self._outer: Any = None  # the trace function outside

    def __enter__(self) -> Tracer:
        for cells, _ in self._of_package.values():
            cells[:] = [0, 0]
        self._outer = sys.gettrace()
        sys.settrace(self._begin)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.settrace(self._outer)

    def unseen(self, look: Callable[[], bool]) -> Callable[[], bool]:
        """A condition of the measurement itself, which counts for nothing."""

        def looked() -> bool:
            trace = sys.gettrace()
            sys.settrace(None)
            try:
                return look()
            finally:
                sys.settrace(trace)

        return looked

    @property
    def counted(self) -> Counted:
        """Of the last block."""
        cells = {package: cells for package, (cells, _) in self._of_package.items() if cells[0]}
        return Counted(
            Counter({package: calls for package, (calls, _) in cells.items()}),
            Counter({package: instructions for package, (_, instructions) in cells.items()}),
        )

    def _begin(self, frame: FrameType, _event: str, _arg: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        try:
            counter = self._counters[code]
        except KeyError:
            counter = self._counters[code] = self._counter(package_of(code.co_filename))
        if counter is None:
            frame.f_trace_lines = False
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counter(frame, "call", None)
        return counter

    def _counter(self, package: str) -> Callable[..., Any] | None:
        if not package:
            return None
        if package not in self._of_package:
            cells = [0, 0]

            def count(_frame: FrameType, event: str, _arg: Any) -> Callable[..., Any]:
                if event == "opcode":
                    cells[1] += 1
                elif event == "call":
                    cells[0] += 1
                return count

            self._of_package[package] = cells, count
        return self._of_package[package][1]


def package_of(filename: str) -> str:
    """`core.mailbox`, `gateway`, ... of the engine; `(name)` of a library; empty for what is not counted."""
    path = Path(filename)
    if path.is_relative_to(_ROOT / "engine"):
        folders = path.relative_to(_ROOT / "engine").parts[:-1]
        return ".".join(folders[: 2 if folders[:1] in {("core",), ("features",), ("kernel",)} else 1]) or path.stem
    if "site-packages" in path.parts:
        library = path.parts[path.parts.index("site-packages") + 1]
        return f"({library.removesuffix('.py')})"
    if path.is_relative_to(_ROOT) or "asyncio" in path.parts or path.suffix != ".py":  # generated code has no file
        return ""
    return f"({path.parent.name if path.stem == '__init__' else path.stem})"


class Legs:
    """Measures the legs of one world, each after the engine has come to rest."""

    def __init__(self, batch: int = BATCH, audience: int = AUDIENCE) -> None:
        self._tracer = Tracer()
        self._users = [f"user-{number}" for number in range(audience)]
        self._lone, self._batch = self._users[0], self._users[:batch]
        self._world = World([*self._users, _LATE])
        self._publisher = self._world.open()
        self._clients = {user: self._world.connect(user) for user in self._users}
        self._seq: Counter[str] = Counter()  # the newest number of each user

    def end(self) -> None:
        self._world.end()

    def measure(self) -> dict[str, tuple[Counted, int]]:
        """What ran in each leg, and for how many messages."""
        singles = [self._messages([self._lone]) for _ in range(RUNS)]
        batch, batch_ack = self._messages(self._batch)
        timers = [self._timers([self._lone]) for _ in range(RUNS)]
        timer_batch = self._timers(self._batch)
        reconnects = [self._reconnect() for _ in range(RUNS)]  # before the broadcast, which this user would get too
        return {
            "publish": (_median([publish for publish, _ in singles]), 1),
            "ack": (_median([ack for _, ack in singles]), 1),
            "batch": (batch, len(self._batch)),
            "batch_ack": (batch_ack, len(self._batch)),
            "timer": (_median(timers), 1),
            "timer_batch": (timer_batch, len(self._batch)),
            "reconnect": (_median(reconnects), 1),
            "broadcast": (self._broadcast(), len(self._users)),
        }

    def _rest(self) -> None:
        """Wait until the last leg is over, and for a moment at which a leg may begin."""
        self._world.rest(_REST_S + 1 - (self._world.loop.time() - _PHASE_S) % 1)

    def _count(self, begin: Callable[[], None], done: Callable[[], bool], what: str) -> Counted:
        begin()
        with self._tracer:
            self._world.run_until(self._tracer.unseen(done), what)
        return self._tracer.counted

    def _publish(self, items: Any, users: list[str], what: str) -> Counted:
        """Until the 202, and a frame for each of these users."""
        publisher, clients = self._publisher, [self._clients[user] for user in users]
        self._rest()
        for client in (publisher, *clients):
            client.written.clear()
        request = self._world.request(items)
        waiting = set(clients)

        def done() -> bool:
            waiting.difference_update([client for client in waiting if client.written])
            return not waiting and b" 202 " in publisher.written

        counted = self._count(lambda: self._world.send(publisher, request), done, what)
        self._seq.update(users)
        return counted

    def _ack(self, users: list[str], what: str) -> Counted:
        """Until no message of these users is pending and the journal says so."""
        world = self._world
        mailboxes = [world.mailbox(user) for user in users]
        newest = 0

        def begin() -> None:
            nonlocal newest
            newest = world.newest_group()
            for user in users:
                world.send(self._clients[user], ack_frame(self._seq[user]))

        def done() -> bool:
            return not any(mailbox.pending_count() for mailbox in mailboxes) and world.newest_group() != newest

        return self._count(begin, done, what)

    def _messages(self, users: list[str]) -> tuple[Counted, Counted]:
        """One for each user in one request, and their acknowledgements."""
        items = [{"user": user, "type": "post.liked", "data": {"by": "bob", "post": 17}} for user in users]
        return self._publish(items, users, "frames for all"), self._ack(users, "all acknowledgements")

    def _broadcast(self) -> Counted:
        item = {"broadcast": True, "type": "news.published", "data": {"title": "hello"}}
        counted = self._publish(item, self._users, "frames of a broadcast")
        self._ack(self._users, "the acknowledgements of a broadcast")
        return counted

    def _timers(self, users: list[str]) -> Counted:
        """One delayed message for each user in one request."""
        world, publisher, clients = self._world, self._publisher, [self._clients[user] for user in users]
        self._rest()
        for client in (publisher, *clients):
            client.written.clear()
        request = world.request([{"user": user, "type": "reminder.due", "delay": _DELAY_S} for user in users])

        def done() -> bool:
            return b" 202 " in publisher.written and all(client.written for client in clients) and not world.timers()

        counted = self._count(lambda: world.send(publisher, request), done, "timers that fire and are removed")
        self._seq.update(users)
        self._ack(users, "the acknowledgements of timers' messages")
        return counted

    def _reconnect(self) -> Counted:
        """The message is published while the user is away."""
        world, publisher = self._world, self._publisher
        publisher.written.clear()
        world.send(publisher, world.request({"user": _LATE, "type": "post.liked", "data": {"by": "bob"}}))
        world.run_until(lambda: b" 202 " in publisher.written, "a message for a user who is away")
        self._seq[_LATE] += 1
        self._rest()
        client = world.open()
        handshake = world.handshake(_LATE, f"{DATA_EPOCH}-{self._seq[_LATE] - 1}")
        counted = self._count(
            lambda: world.send(client, handshake),
            lambda: b'"welcome"' in client.written and b'"messages"' in client.written,
            "a reconnect",
        )
        world.send(client, ack_frame(self._seq[_LATE]))
        world.run_until(lambda: not world.mailbox(_LATE).pending_count(), "the acknowledgement of a missed message")
        world.leave(client)
        return counted


def _median(counted: list[Counted]) -> Counted:
    return sorted(counted, key=lambda each: each.total)[len(counted) // 2]


def figures(counted: Counted, messages: int, *, packages: bool) -> dict[str, Any]:
    """Of one message."""
    calls, instructions = counted.total
    row: dict[str, Any] = {"calls": round(calls / messages, 1), "instructions": round(instructions / messages)}
    if packages:
        rows = [
            (package, round(count / messages, 1), round(counted.instructions[package] / messages))
            for package, count in counted.calls.items()
        ]
        row["packages"] = {package: [calls, instructions] for package, calls, instructions in sorted(rows, key=lambda row: -row[1])}
    return row


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--packages", action="store_true", help="by package too")


def run(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    legs = Legs()
    for leg, (counted, messages) in legs.measure().items():
        yield {"bench": "calls", "system": "engine", "case": leg, **figures(counted, messages, packages=args.packages)}
    legs.end()
