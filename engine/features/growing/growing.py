"""Messages that grow, on one edge: taken from publishers by offset, rolled up for devices, stored in chunks, and published at the end.

    publisher --parts--> edge --each `growing_rollup_ms`--> shard of the user --> devices      lost with the edge, or while they are slow
                              --each `growing_chunk_ms`---> Redis                              kept; late readers read it there
              --end----> edge --the whole text, one message--> the way of every message        inbox, ACK, history

Any edge takes any part: the first part of a message that an edge does not know makes it read what storage has. Two edges that both have
a message cannot disagree about it: an offset has one text (`engine.features.growing.core`).

    killed ...                          what is left                        who goes on
    an edge, before a chunk is stored   the text up to `stored`, devices    its publisher, which learns `have` from the next edge and
                                        have more                           sends the rest again; devices know it by its offset
    the publisher                       the text that was taken             the engine: the message ends after `growing_idle_s`
    both                                the text up to `stored`             likewise; the message is shorter than what devices had
    an edge, after the message is       a message that is due               an edge that takes it when the lease is over
    closed, before it is published
    after that, before it has ended     the same                            likewise: the id makes it a repeat
    the shard of the user               all of it                           devices ask for what they missed; the end waits for the shard
    Redis, for a while                  what edges have in memory, up to    the edges; beyond that parts get 429
                                        `growing_buffer_bytes_max`
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from engine.api.publish_endpoint import drafts_of, post_drafts
from engine.auth.tokens import Principal
from engine.config import Config
from engine.core.model.defined_categories import DefinedCategories
from engine.core.model.period import until_next
from engine.core.model.routing import NOBODY, split_key
from engine.errors import EngineError, StorageUnavailable
from engine.features.growing.core import ENDED, IDLE, OK, REPLACED, Growth, Head, item_at_end, without_category
from engine.features.growing.store import GONE, REFUSED, GrowingStore, GrowthBehind, StoredGrowth, TooManyGrow
from engine.gateway.gateway import Gateway
from engine.gateway.waiters import Waiters
from engine.http.problems import RETRY_AFTER_S, Problem, conflict, not_found, too_many_requests, unavailable
from engine.publish.drafts import Draft
from engine.publish.media_types import Content
from engine.publish.results import ItemResult

log = logging.getLogger(__name__)

BEHIND_PROBLEM: Final = "urn:engine:problem:behind"
"""The type of the problem of an end whose text is not here; `have` says up to where it is."""

KIND: Final = "part"
"""The type of a frame with a part."""

_LOOK_S: Final = 1.0
"""Between two looks at what is due, and at what is idle in memory."""

_LEASE_MS: Final = 10_000
"""An edge publishes a message within a second, or has a fault."""

_ENDING_MAX: Final = 500
"""Messages that an edge ends by itself at once: what a shard that is away may hold up."""

_RETRY_S: Final = 0.25
"""Before text is stored again while Redis is away."""

_FORGET_MS: Final = 30_000
"""A message without a part for so long is read again when one comes."""

_STORED_TOGETHER: Final = 1000
"""Messages in one script: some 5 ms of Redis."""

_FLUSH_S: Final = 5.0
"""For what is in memory to be stored before a message ends."""

_REFUSED: Final = frozenset((409, 413, 422))
"""Statuses of a message that is never published: its id belongs to another one, or the settings have changed since it began."""

_FULL_RETRY_S: Final = 60
"""`Retry-After` for a user or tenant with too many messages that grow."""

_WAITS_MAX: Final = 1000
"""Readers that wait for text at one edge, which looks for all of them at once."""

_ENGINE: Final = "engine"
_NAME = tuple[str, str]
"""Mailbox key and id of a message."""


class GrownPart(Struct, frozen=True):
    """A part of a publisher. `progress` in JSON; b"" for none."""

    name: _NAME
    generation: int
    offset: int
    text: str
    progress: bytes


class PartResult(Struct):
    """What became of a part: its state, up to where the edge has the text, and up to where storage does."""

    state: str
    have: int = 0
    stored: int = 0


class Growing:
    """Messages that grow, on one edge."""

    def __init__(self, config: Config, gateway: Gateway, store: GrowingStore) -> None:
        self._config = config
        self._gateway = gateway
        self._store = store
        self._growths: dict[_NAME, Growth] = {}
        self._unshown: dict[_NAME, Growth] = {}
        self._show_armed = False
        self._shown_ms = 0
        self._unstored: list[dict[_NAME, Growth]] = [{} for _ in range(store.stores)]
        self._since_ms = [0] * store.stores  # of the oldest of these
        self._wanted = [asyncio.Event() for _ in range(store.stores)]  # there is something to store
        self._urgent = [asyncio.Event() for _ in range(store.stores)]  # ... without waiting for more
        self._ending: set[_NAME] = set()  # messages that this edge ends by itself
        self._was_away = [False] * store.stores  # the last look at what is due failed
        self._flushing: dict[_NAME, set[asyncio.Future[None]]] = {}
        self._bytes = 0  # unstored
        self._waiters = Waiters(gateway, _WAITS_MAX, "as many readers wait for messages that grow as may")
        self._parts = self._frames = self._chunks = 0

    # -- From publishers. ----------------------------------------------------------------------------------------------
    async def begin(self, key: str, id: str, writer: str, head: Head) -> tuple[str, Growth, tuple[str, bytes]]:
        """Begin a message, or go on with it. Returns OK or ENDED, the message, and the reason and the ending of one that has ended.

        Raises Problem 429 or 503, Unavailable.
        """
        self._gateway.transient_frames.check()
        try:
            word, generation, size, ended = await self._store.begin(key, id, writer, head, self._gateway.wall_ms())
            known = self._growths.get((key, id))
            if word == "KNOWN" and (known is None or known.generation != generation or known.size < size):
                known = await self._load(key, id)
        except TooManyGrow as error:
            limit = "growing_per_user_max" if error.args[0] == "user" else "growing_per_tenant_max"
            detail = f"{limit}: as many messages of this {error.args[0]} grow as may"
            raise too_many_requests(detail, _FULL_RETRY_S) from None
        if word == "KNOWN" and known is not None:
            return OK, known, ended
        growth = Growth(key, id, generation, body=head.body, store=self._store.place(key), lines=head.list)
        if word != "OK":
            return ENDED, growth, ended
        self._forget((key, id))
        self._growths[key, id] = growth
        growth.active_ms = growth.due_ms = self._gateway.clock()
        self._show_soon(growth, (key, id))
        return OK, growth, ended

    async def _load(self, key: str, id: str) -> Growth | None:
        """The message as storage has it, unless it has ended; this edge goes on with it. Raises StorageUnavailable."""
        (stored,) = await self._store.read_many([(key, id)])
        return self._loaded((key, id), stored)

    def _loaded(self, name: _NAME, stored: StoredGrowth | None) -> Growth | None:
        if stored is None or stored.reason is not None:
            self._forget(name)
            return None
        known = self._growths.get(name)
        if known is not None and known.generation == stored.generation and known.size >= len(stored.text):
            return known
        self._forget(name)
        growth = self._growths[name] = Growth(
            *name, stored.generation, stored.text, stored.progress, store=self._store.place(name[0]), lines=stored.head.list
        )
        growth.active_ms = self._gateway.clock()
        return growth

    def _forget(self, name: _NAME) -> None:
        growth = self._growths.pop(name, None)
        if growth is None:
            return
        self._bytes -= growth.unstored
        self._unshown.pop(name, None)
        self._unstored[growth.store].pop(name, None)
        self._flushed(name)

    async def take(self, parts: Sequence[GrownPart]) -> list[PartResult]:
        """Take parts of any messages; one result for each. Raises Problem 429, StorageUnavailable: none was taken."""
        if self._bytes > self._config.growing_buffer_bytes_max:
            raise too_many_requests("storage has not taken what was sent before (`growing_buffer_bytes_max`)", RETRY_AFTER_S)
        unknown = {part.name for part in parts if not self._knows(part)}
        if unknown:
            names = list(unknown)
            found = await self._store.read_many(names)
            for name, stored in zip(names, found, strict=True):
                self._loaded(name, stored)
        self._parts += len(parts)
        now_ms = self._gateway.clock()
        return [self._take(part, now_ms) for part in parts]

    def _knows(self, part: GrownPart) -> bool:
        """Whether the part can be taken without a look at storage."""
        growth = self._growths.get(part.name)
        return growth is not None and growth.generation >= part.generation and growth.size >= part.offset

    def _take(self, part: GrownPart, now_ms: int) -> PartResult:
        growth = self._growths.get(part.name)
        if growth is None:
            return PartResult(ENDED)
        if growth.generation != part.generation:
            return PartResult(REPLACED)
        before = growth.size
        state = growth.take(part.offset, part.text, part.progress, self._config.growing_bytes_max)
        growth.active_ms = now_ms
        self._bytes += growth.size - before
        if growth.waits_for_devices:
            self._show_soon(growth, part.name)
        if growth.waits_for_storage or self._store.moves_due(growth, now_ms):
            self._store_soon(growth, part.name, now_ms)
        return PartResult(state, growth.size, growth.stored)

    # -- To devices. ---------------------------------------------------------------------------------------------------
    def _show_soon(self, growth: Growth, name: _NAME) -> None:
        self._unshown[name] = growth
        if not self._show_armed:
            self._show_armed = True
            due_ms = self._shown_ms + self._config.growing_rollup_ms - self._gateway.clock()
            asyncio.get_running_loop().call_later(max(due_ms, 0) / 1000, self._show)

    def _show(self) -> None:
        """Send what has grown to the shards, but to those that still have the last of it."""
        self._shown_ms, self._show_armed = self._gateway.clock(), False
        frames, growths, self._unshown = self._gateway.transient_frames, self._unshown, {}
        by_shard: dict[int, list[tuple[str, bytes]]] = {}
        later = []
        for name, growth in growths.items():
            shard = frames.shard_of(growth.key)
            if shard == NOBODY:
                later.append((name, growth))
            elif shard in by_shard:
                by_shard[shard].append((growth.key, growth.part()))
            else:
                by_shard[shard] = [(growth.key, growth.part())]
        self._frames += len(growths) - len(later)
        frames.show(KIND, by_shard)
        for name, growth in later:
            self._show_soon(growth, name)

    # -- To storage. ---------------------------------------------------------------------------------------------------
    def _store_soon(self, growth: Growth, name: _NAME, now_ms: int) -> None:
        store = growth.store
        waiting = self._unstored[store]
        if not waiting:
            self._since_ms[store] = now_ms
            self._wanted[store].set()
        waiting[name] = growth
        if growth.unstored >= self._config.growing_chunk_bytes:
            self._urgent[store].set()

    async def _store_chunks(self, store: int) -> None:
        """Store what this edge has for a store, again and again. One script is under way: what comes meanwhile is joined."""
        wanted, urgent = self._wanted[store], self._urgent[store]
        while True:
            await wanted.wait()
            left_ms = self._since_ms[store] + self._config.growing_chunk_ms - self._gateway.clock()
            if left_ms > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_ms / 1000):
                        await urgent.wait()
            waiting = self._unstored[store]
            names = list(waiting)[:_STORED_TOGETHER]
            growths = [waiting.pop(name) for name in names]
            if not waiting:
                urgent.clear()
                wanted.clear()
            await self._store_some(store, growths)

    async def _store_some(self, store: int, growths: Sequence[Growth]) -> None:
        if not growths:
            return
        chunks = [growth.chunk() for growth in growths]
        now_ms = self._gateway.clock()
        try:
            sizes = await self._store.store(store, growths, chunks, now_ms, self._gateway.wall_ms())
        except StorageUnavailable as error:
            log.warning("%d messages that grow wait for storage: %s", len(growths), error)
            for growth in growths:
                growth.chunk_failed()
                if self._growths.get(name := (growth.key, growth.id)) is growth:
                    self._store_soon(growth, name, now_ms)
            await asyncio.sleep(_RETRY_S)
            return
        self._chunks += len(growths)
        for growth, size in zip(growths, sizes, strict=True):
            name = growth.key, growth.id
            if self._growths.get(name) is not growth:
                continue  # begun anew meanwhile
            before = growth.stored
            if self._store.moves_due(growth, now_ms):
                growth.due_ms = now_ms
            if isinstance(size, str) or not growth.chunk_stored(size):
                self._forget(name)
                continue
            self._bytes -= growth.stored - before
            if growth.waits_for_storage:
                self._store_soon(growth, name, now_ms)
            elif name in self._flushing:
                self._flushed(name)
            self._waiters.wake(name)

    async def _flush(self, name: _NAME) -> None:
        """Return when all that this edge has of the message is stored. Raises Problem 503."""
        growth = self._growths.get(name)
        if growth is None or growth.is_stored:
            return
        done = asyncio.get_running_loop().create_future()
        self._flushing.setdefault(name, set()).add(done)
        self._urgent[growth.store].set()
        try:
            async with asyncio.timeout(_FLUSH_S):
                await done
        except TimeoutError:
            raise unavailable("storage does not take the text", RETRY_AFTER_S) from None
        finally:
            if (waiting := self._flushing.get(name)) is not None:
                waiting.discard(done)

    def _flushed(self, name: _NAME) -> None:
        for done in self._flushing.pop(name, ()):
            if not done.done():
                done.set_result(None)

    async def drain(self) -> None:
        """Store what only this edge has, as far as storage takes it."""
        flushed = await asyncio.gather(*map(self._flush, list(self._growths)), return_exceptions=True)  # each may wait for `_FLUSH_S`
        if lost := sum(isinstance(one, Problem) for one in flushed):
            log.warning("%d messages that grow lose what storage has not taken, unless their publishers send it again", lost)

    # -- The end. ------------------------------------------------------------------------------------------------------
    async def end(self, key: str, id: str, generation: int, size: int, ending: bytes, progress: bytes) -> ItemResult | str:
        """Publish the message, whose text has this size, with this ending. Returns the result; of one that has ended before ENDED or IDLE.

        `progress`: the last one, which another edge may have on its way to storage; b"" for none.

        Raises:
            Problem: 404, there is no such message; 409, another writer has begun it anew, its id belongs to another message, or the text
                is shorter (`have`); 429 or 503.
        """
        await self._flush((key, id))
        try:
            stored = await self._store.close(key, id, generation, size, "", ending, self._gateway.wall_ms(), _LEASE_MS, progress)
            if isinstance(stored, StoredGrowth):
                result = await self._finish(key, id, stored)
                return IDLE if stored.reason == IDLE else result  # taken for lost just before: it has another ending
        except GrowthBehind as error:
            detail = f"the text has {error.args[0]} bytes here, not {size}: send the rest again"
            raise conflict(detail, type=BEHIND_PROBLEM, have=error.args[0]) from None
        self._forget((key, id))
        if stored == GONE:
            raise not_found("no message with this id grows")
        if stored == REPLACED:
            raise conflict("another writer has begun this message anew")
        if stored == REFUSED:
            raise conflict("this message was refused when it ended")
        return stored

    async def _finish(self, key: str, id: str, stored: StoredGrowth) -> ItemResult:
        """Publish a message that is closed, and end it. Raises EngineError: it is tried again after the lease."""
        gateway = self._gateway
        tenant = split_key(key)[0]
        ending = stored.head.idle if stored.reason == IDLE else stored.ending
        item = item_at_end(stored.head, stored.text, stored.progress, stored.reason or "", self._config, ending)
        defined = gateway.category_book.in_use(tenant)
        try:
            (result,) = await post_drafts(gateway, self._drafts(tenant, item, defined), defined)
        except Problem as problem:
            if problem.status in _REFUSED:
                await self._ended(key, id, refused=True)
            raise
        await self._ended(key, id)
        return result

    def _drafts(self, tenant: str, item: bytes, defined: DefinedCategories) -> list[Draft]:
        """The draft of an item. The rules may define its category no more: then it has none. Raises Problem, Unavailable."""
        publisher = Principal(tenant, _ENGINE, frozenset({"publish"}), 0)
        try:
            return drafts_of(self._gateway, self._config, item, Content(), publisher, defined)
        except Problem as problem:
            if problem.status != 422 or (other := without_category(item)) is None:
                raise
            log.warning("a message that grew is published without its category: %s", problem)
            return drafts_of(self._gateway, self._config, other, Content(), publisher, defined)

    async def _ended(self, key: str, id: str, *, refused: bool = False) -> None:
        await self._store.end(key, id, self._gateway.wall_ms(), refused=refused)
        self._forget((key, id))
        self._waiters.wake((key, id))

    async def _sweep(self, tasks: asyncio.TaskGroup) -> None:
        """End the messages whose publisher is silent, and those whose edge died on the way."""
        while True:
            await asyncio.sleep(until_next(time.monotonic(), _LOOK_S))
            for store in range(self._store.stores):
                try:
                    await self._take_due(store, tasks)
                except StorageUnavailable as error:
                    self._was_away[store] = True
                    log.warning("messages that grow wait for storage: %s", error)
            old_ms = self._gateway.clock() - _FORGET_MS
            for name, growth in list(self._growths.items()):
                if growth.active_ms < old_ms and growth.is_stored and not growth.waits_for_devices:
                    self._forget(name)

    async def _take_due(self, store: int, tasks: asyncio.TaskGroup) -> None:
        """Begin to end what is due, each by itself: one whose shard is away holds up no other."""
        while self._was_away[store]:  # edges have text for what became due meanwhile: they store it before the lease is over
            self._was_away[store] = bool(await self._store.take(store, self._gateway.wall_ms(), _LEASE_MS))
        if len(self._ending) >= _ENDING_MAX:
            return
        for name in await self._store.take(store, self._gateway.wall_ms(), _LEASE_MS):
            if name not in self._ending:
                self._ending.add(name)
                tasks.create_task(self._end_due(name))

    async def _end_due(self, name: _NAME) -> None:
        key, id = name
        try:
            stored = await self._store.close(key, id, None, -1, IDLE, b"", self._gateway.wall_ms(), _LEASE_MS)
            if isinstance(stored, StoredGrowth):
                await self._finish(key, id, stored)
            else:
                await self._ended(key, id)
        except (EngineError, ValueError) as error:  # likewise when it is due again
            log.warning("message %s of %s ends later: %s", id, key, error)
        finally:
            self._ending.discard(name)

    # -- For readers. --------------------------------------------------------------------------------------------------
    async def look(self, key: str, id: str, generation: int, offset: int, wait_s: float) -> tuple[StoredGrowth, int]:
        """The message, and the offset from which the reader lacks its text: as soon as there is some, or after `wait_s`.

        `generation` of the text that the reader has, 0 for any. Raises Problem 404 or 429; StorageUnavailable.
        """
        deadline_ms = self._gateway.clock() + wait_s * 1000
        first: tuple[Any, ...] | None = None
        while True:
            (stored,) = await self._store.read_many([(key, id)])
            if stored is None:
                raise not_found("no message with this id grows")
            begins = 0 if generation and generation != stored.generation else offset
            seen = stored.generation, len(stored.text), stored.progress, stored.reason
            first = first or seen
            left_ms = deadline_ms - self._gateway.clock()
            news = len(stored.text) > begins or stored.reason is not None or seen != first
            if news or left_ms <= 0 or self._gateway.draining:
                return stored, _boundary(stored.text, begins)
            await self._waiters.wait((key, id), seen, left_ms / 1000)

    async def all_of(self, key: str, *, ended: bool = False) -> list[tuple[str, StoredGrowth]]:
        """The user's messages that grow, by id; `ended`: and those that have. Raises StorageUnavailable."""
        ids = await self._store.ids_of(key, ended=ended)
        found = await self._store.read_many([(key, id) for id in ids])
        return [(id, stored) for id, stored in zip(ids, found, strict=True) if stored is not None and (ended or stored.reason is None)]

    async def kept_rows(self, key: str) -> AsyncIterator[bytes]:
        """Every message of a user that grows or grew, in JSON. Raises StorageUnavailable."""
        for id, stored in await self.all_of(key, ended=True):
            yield msgspec.json.encode({"id": id, "message": msgspec.Raw(b"{%b}" % stored.head.body), "text": stored.text.decode()})

    # -- The feature. --------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Store, watch and end. Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for store in range(self._store.stores):
                tasks.create_task(self._store_chunks(store))
            tasks.create_task(self._waiters.watch(self._store.states, self._config.growing_poll_ms))
            tasks.create_task(self._sweep(tasks))

    def stats(self) -> dict[str, int]:
        """Messages that grow here, bytes that storage lacks, and counts since the start: parts taken, frames shown, chunks stored."""
        return {
            "messages": len(self._growths),
            "unstored_bytes": self._bytes,
            "parts": self._parts,
            "frames": self._frames,
            "chunks": self._chunks,
        }


def _boundary(text: bytes, offset: int) -> int:
    """The beginning of the character at this offset."""
    while 0 < offset < len(text) and text[offset] & 0xC0 == 0x80:
        offset -= 1
    return offset
