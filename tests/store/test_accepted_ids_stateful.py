"""Publishing again under the same id is safe, whatever failed before: ids of immediate and delayed messages against a book.

The real `TimerStore` and `Journal` run their scripts on the simulator's server. Storage fails before or after any command; a caller that
gets no answer gives up, and may repeat later, at once or with a delay.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.exceptions import ConnectionError as RedisConnectionError

from engine.config import Config
from engine.core.commit.first_result import packed_result, unpacked_result
from engine.core.commit.group import Group
from engine.core.model.envelope import Envelope
from engine.core.model.routing import TIMER_PARTITIONS, partition_of, slot_of, timer_id
from engine.core.scheduler.scheduler_events import StoreRequest, StoreWork
from engine.core.wire.records import CONFLICT, DUPLICATE, SCHEDULED, Cancel, Reschedule, Schedule, Timer, TimerAnswer
from engine.errors import StorageUnavailable
from engine.store.journal import Journal
from engine.store.keys import timer_key
from engine.store.timer_store import TimerStore
from tests.support.simulated_client import SimulatedClient

NOW = 1_790_000_000_000
HOUR_MS = 3_600_000
KEY = "default:ann"
PARTITION = partition_of(KEY)
DIGESTS = (b"payload1", b"payload2")


class Unreliable(SimulatedClient):
    """Fails at the n-th command from now on, before or after it was applied."""

    def __init__(self) -> None:
        super().__init__(NOW)
        self.left = -1  # none fails
        self.applied = False

    async def execute_command(self, *command: Any) -> Any:
        if self.left == 0 and not self.applied:
            self.left = -1
            raise RedisConnectionError("gone")
        reply = await super().execute_command(*command)
        self.left -= self.left >= 0
        if self.left < 0 and self.applied:
            self.applied = False
            raise RedisConnectionError("gone before the reply")
        return reply


class Book:
    """What callers were told, and what exists."""

    def __init__(self) -> None:
        self.client = Unreliable()
        self.store = TimerStore(self.client, Config(), range(TIMER_PARTITIONS), "scheduler-0")  # type: ignore[arg-type]
        self.journal = Journal(self.client, 0, 24 * HOUR_MS)  # type: ignore[arg-type]
        self.groups = 0
        self.timers = 0
        self.of: dict[str, tuple[str, bytes]] = {}  # scheduled id -> id and digest of what was tried
        self.ended: set[str] = set()  # scheduled ids that have fired or were cancelled
        self.messages: dict[str, bytes] = {}  # id -> digest: in the journal

    async def begin(self) -> None:
        await self.store.take_over()
        await self.journal.take_over([slot_of(KEY)])

    def armed(self) -> list[str]:
        return [sid for sid in self.of if self.client.server.execute("HEXISTS", timer_key(PARTITION), sid)]

    def exists(self, sid: str) -> bool:
        return sid in self.ended or sid in self.armed()

    def check(self) -> None:
        """Each id stands for one message at most."""
        effects = [*self.messages, *(self.of[sid][0] for sid in (*self.armed(), *self.ended))]
        assert len(effects) == len(set(effects)), effects

    async def turn(self, *requests: Any, fired: dict[str, str] | None = None) -> list[TimerAnswer]:
        work = StoreWork(PARTITION, 0, fired or {}, [StoreRequest(request) for request in requests])
        return (await self.store.apply([work], self.client.now_ms))[0].answers

    async def schedule(self, id: str, digest: bytes, delay_ms: int) -> None:
        self.timers += 1
        now_ms = self.client.now_ms
        sid = timer_id(KEY, f"t{self.timers}")
        self.of[sid] = (id, digest)
        timer = Timer(sid, KEY, now_ms + delay_ms, now_ms, HOUR_MS, Envelope(id, digest, 1, True, b"x"))
        (answer,) = await self.turn(Schedule(1, True, timer))
        if answer.status == CONFLICT:
            assert self.digest_of(id) not in {None, digest}
        elif answer.status == DUPLICATE and answer.detail.startswith("seq="):
            assert self.messages[id] == digest
        else:
            assert answer.status in {SCHEDULED, DUPLICATE}
            first = answer.detail or sid
            assert self.exists(first), "a duplicate of nothing"
            assert self.of[first] == (id, digest)

    async def post(self, id: str, digest: bytes) -> None:
        """As a shard does: a group is appended until it is known whether it was."""
        self.groups += 1
        group = Group(self.groups, {slot_of(KEY): b"p"}, [(KEY, id)], [packed_result(digest, self.groups, "")], [], [], [], [])
        try:
            known = await self.journal.append(group)
        except StorageUnavailable:
            await self.journal.rollback(group)  # then it is answered 503
            return
        if not known:
            self.messages[id] = digest
            return
        stored, seq, sid = unpacked_result(known[0])
        assert stored == self.digest_of(id)
        assert seq > 0 or self.exists(sid), "a duplicate of nothing"

    def digest_of(self, id: str) -> bytes | None:
        of_timers = [self.of[sid][1] for sid in (*self.armed(), *self.ended) if self.of[sid][0] == id]
        return self.messages.get(id) or (of_timers[0] if of_timers else None)

    async def end(self, number: int, *, fire: bool) -> None:
        armed = self.armed()
        if armed:
            sid = armed[number % len(armed)]
            try:
                await (self.turn(fired={sid: KEY}) if fire else self.turn(Cancel(1, "default", sid)))
            finally:
                if sid not in self.armed():
                    self.ended.add(sid)

    async def move(self, number: int, delay_ms: int) -> None:
        armed = self.armed()
        if armed:
            await self.turn(Reschedule(1, "default", armed[number % len(armed)], self.client.now_ms + delay_ms))


IDS = st.sampled_from("abc")
DELAYS = st.integers(1, 200 * HOUR_MS)
STEPS = st.one_of(
    st.tuples(st.just("schedule"), IDS, st.sampled_from(DIGESTS), DELAYS),
    st.tuples(st.just("post"), IDS, st.sampled_from(DIGESTS)),
    st.tuples(st.just("end"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("move"), st.integers(0, 9), DELAYS),
    st.tuples(st.just("fail"), st.integers(0, 2), st.booleans()),
)


async def _live(steps: list[tuple[Any, ...]]) -> None:
    book = Book()
    await book.begin()
    for name, *given_to in steps:
        if name == "fail":
            book.client.left, book.client.applied = given_to
            continue
        try:
            if name == "end":
                await book.end(given_to[0], fire=given_to[1])
            else:
                await getattr(book, name)(*given_to)
        except StorageUnavailable:
            book.client.left, book.client.applied = -1, False  # the caller gives up
        book.check()


@given(st.lists(STEPS, max_size=30))
@settings(max_examples=200)
def test_publishing_again_under_the_same_id_is_safe_whatever_failed(steps: list[tuple[Any, ...]]) -> None:
    pytest.importorskip("lupa")
    asyncio.run(_live(steps))
