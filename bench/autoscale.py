"""Autoscaling: a load that rises tenfold and falls again, and nobody who scales; what the engine decides, when, and who notices.

An engine with `--least` to `--most` shards. Its windows are shorter than by default and its thresholds far lower (`--up-ms`, `--up-share`
and so on): messages that come alone cost a shard most, so few of them make the difference between shares that two cores can bear; six
shards at 70 % would need more cores than a laptop has. Decisions, moves, starts and ends are those of a larger load. The load is `--low`
messages a second, then `--high` until there are `--most` shards, then `--after` until there are `--rest`; each for some seconds longer, in
which no other number must be wanted. `waited_s` is from the change of the load to the last slot in its place, `share_then` the mean of the
shards' CPU afterwards; latency is of the whole time, moves of slots included.

Then, on another engine, all messages are for users of one of two shards, until the policy has moved slots to the other; `of_first_then` is
the first shard's part of the messages afterwards.

What it leaves out: machines that have to be started first, for which tests/cluster has a test with Ray's autoscaler.
"""

from __future__ import annotations

import asyncio
import contextlib
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Iterator
from statistics import fmean
from typing import Any, Final

import uvloop
from redis.asyncio import Redis

from bench.books import Books, Listener, now_s
from bench.figures import latency_ms
from bench.progress import Phases
from bench.server import Engine, engine
from bench.system import Measurement, Sender
from bench.workloads import PUBLISHERS, connect_all, open_loop, senders
from engine.core.model.routing import mailbox_key, slot_of
from engine.store.slot_map import require_slot_map

USERS: Final = 500
_LOOK_S: Final = 1.0  # between two looks at the status; the engine measures as often
_SLICE_S: Final = 1.0  # of the load, after which it may change
_PATIENCE_S: Final = 120.0  # for a decision to be carried out
THRESHOLDS: Final = ("up_ms", "down_ms", "up_share", "down_share", "target_share")


class _Watch:
    """What the status says while the load goes on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.began_s = now_s()
        self.shards = 0
        self.settled = False
        self.shares: list[float] = []  # mean of the shards, since it was cleared
        self.decisions: dict[int, dict[str, Any]] = {}  # by their time
        self.moved = 0
        self.published: list[int] = []  # by each shard

    @contextlib.asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Look again and again while the block runs."""
        task = asyncio.ensure_future(self._repeat())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _repeat(self) -> None:
        while True:
            status: Any = await self._engine.status()
            scaling = status["scaling"]
            self.shards, self.settled, self.moved = scaling["have"]["shards"], scaling["settled"], scaling["slots_moved"]
            self.shares.append(fmean(row["cpu_pct"] for row in status["shards"] if row["ready"]) / 100)
            self.published = [row.get("published", 0) for row in status["shards"]]
            for decision in scaling["decisions"]:
                self.decisions.setdefault(decision["at_ms"], {"after_s": round(now_s() - self.began_s, 1), **decision})
            await asyncio.sleep(_LOOK_S)

    def reached(self, shards: int) -> bool:
        return self.settled and self.shards == shards


async def _load(sending: list[Sender], books: Books, rate: float, watch: _Watch, shards: int, more_s: float) -> dict[str, Any]:
    """This load until there are so many shards, and for some seconds more."""
    began_s = now_s()
    books.latencies_s.clear()
    watch.shares.clear()
    reached_s = None
    while reached_s is None or now_s() < reached_s + more_s:
        if now_s() > began_s + _PATIENCE_S:
            break
        await open_loop(sending, books, rate, _SLICE_S)
        if reached_s is None and watch.reached(shards):
            reached_s = now_s()
            watch.shares.clear()
    return {
        "per_s": rate,
        "shards": watch.shards,
        "waited_s": None if reached_s is None else round(reached_s - began_s, 1),
        "share_then": round(fmean(watch.shares), 3) if watch.shares else None,
        "latency_ms": latency_ms(books.latencies_s),
    }


async def measure(running: Engine, args: Namespace, phases: Phases) -> dict[str, Any]:
    """The result of a load that rises and falls."""
    books = Books(USERS)
    with phases.phase("connecting"):
        listeners, _ = await connect_all(running, books, books.ledgers)
    sending = await senders(running, books, PUBLISHERS)
    watch, times = _Watch(running), {}
    measurement = await Measurement(running, books).begin()
    async with watch.going_on():
        for name, rate, shards in (("low", args.low, args.least), ("high", args.high, args.most), ("after", args.after, args.rest)):
            with phases.phase(f"{rate} messages/s until there are {shards} shards"):
                times[name] = await _load(sending, books, rate, watch, shards, args.seconds)
    figures = await measurement.end()
    _close(sending, listeners)
    return {"bench": "autoscale", "case": {"load": "rises and falls", **_settings(args)}, **_found(watch, figures), **times}


async def measure_hot(running: Engine, args: Namespace, phases: Phases) -> dict[str, Any]:
    """The result of a load on one shard."""
    books = Books(USERS)
    with phases.phase("connecting"):
        listeners, _ = await connect_all(running, books, books.ledgers)
    hot = await _users_of_first(running)
    sending = [Sender(await running.publisher(len(hot)), books, hot[n::PUBLISHERS]) for n in range(PUBLISHERS)]
    watch, began_s = _Watch(running), now_s()
    measurement = await Measurement(running, books).begin()
    async with watch.going_on():
        with phases.phase("all messages for users of one shard"):
            while not (watch.moved and watch.settled) and now_s() < began_s + _PATIENCE_S:
                await open_loop(sending, books, args.hot, _SLICE_S)
            before, moved_s = watch.published, now_s()
            while now_s() < moved_s + args.seconds:
                await open_loop(sending, books, args.hot, _SLICE_S)
    figures = await measurement.end()
    _close(sending, listeners)
    waited_s = round(moved_s - began_s, 1) if watch.moved else None
    then = [after - count for after, count in zip(watch.published, before, strict=True)]
    shares = {"of_first_before": round(before[0] / sum(before), 3), "of_first_then": round(then[0] / sum(then), 3)}
    case = {"load": "on one shard", "per_s": args.hot, **_settings(args)}
    return {"bench": "autoscale", "case": case, **_found(watch, figures), "waited_s": waited_s, **shares}


async def _users_of_first(running: Engine) -> list[int]:
    """Who is on shard 0."""
    async with Redis.from_url(running.redis_url) as client:
        slots = await require_slot_map(client)
    return [user for user in range(USERS) if slots.owners[slot_of(mailbox_key("default", running.user_name(user)))] == 0]


def _settings(args: Namespace) -> dict[str, Any]:
    return {name: getattr(args, name) for name in ("least", "most", *THRESHOLDS)}


def _found(watch: _Watch, figures: dict[str, Any]) -> dict[str, Any]:
    decisions = sorted(watch.decisions.values(), key=lambda decision: decision["at_ms"])
    kept = ("messages", "lost", "out_of_order", "repeated", "refused", "disconnects")
    return {"decisions": decisions, "slots_moved": watch.moved, **{name: figures[name] for name in kept}}


def _close(sending: list[Sender], listeners: list[Listener]) -> None:
    for sender in sending:
        sender.close()
    for listener in listeners:
        listener.drop()


def arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--least", type=int, default=2, help="shards at the start, and at least (default %(default)s)")
    add("--most", type=int, default=6, help="shards at most (default %(default)s)")
    add("--rest", type=int, default=3, help="shards that `--after` needs (default %(default)s)")
    add("--low", type=float, default=50, help="messages a second at first (default %(default)s)")
    add("--high", type=float, default=500, help="then (default %(default)s)")
    add("--after", type=float, default=60, help="and at last (default %(default)s)")
    add("--hot", type=float, default=200, help="messages a second on one shard (default %(default)s)")
    add("--seconds", type=float, default=20, help="each load goes on for after its number of shards is reached (default %(default)s)")
    add("--up-ms", type=int, default=4000, help="autoscale_up_ms (default %(default)s)")
    add("--down-ms", type=int, default=10_000, help="autoscale_down_ms (default %(default)s)")
    add("--up-share", type=float, default=0.07, help="autoscale_up_share (default %(default)s)")
    add("--down-share", type=float, default=0.034, help="autoscale_down_share (default %(default)s)")
    add("--target-share", type=float, default=0.058, help="autoscale_target_share (default %(default)s)")


def run(args: Namespace) -> Iterator[dict[str, Any]]:
    """Start an engine, load it, stop it, twice; two dictionaries."""
    settings = {f"autoscale_{name}": getattr(args, name) for name in THRESHOLDS} | {"health_ms": 1000}
    for measured, most in ((measure, args.most), (measure_hot, args.least)):
        with engine(shards=args.least, autoscale_shards=f"{args.least}-{most}", **settings) as running:
            yield uvloop.run(measured(running, args, args.phases))
