"""Storage of messages that grow, in memory: for tests of an edge that has no Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from engine.features.growing.core import ENDED, OK, REPLACED, Growth, Head
from engine.features.growing.store import GONE, GrowingStore, GrowthBehind, StoredGrowth


class FakeGrowths(GrowingStore):
    """One store, whose messages never fall due and never expire."""

    def __init__(self, config: Any) -> None:
        super().__init__([], config)
        self.growths: dict[tuple[str, str], StoredGrowth] = {}
        self.writers: dict[tuple[str, str], str] = {}

    @property
    def stores(self) -> int:
        return 1

    def place(self, key: str) -> int:
        return 0

    async def begin(self, key: str, id: str, writer: str, head: Head, now_ms: int) -> tuple[str, int, int, tuple[str, bytes]]:
        known = self.growths.get((key, id))
        if known is not None and known.reason is not None:
            return "ENDED", known.generation, len(known.text), (known.reason, known.ending)
        if known is not None and self.writers[key, id] == writer:
            return "KNOWN", known.generation, len(known.text), ("", b"")
        generation = now_ms if known is None else max(now_ms, known.generation + 1)
        self.writers[key, id] = writer
        self.growths[key, id] = StoredGrowth(generation, head, b"", b"", None, b"", False)
        return OK.upper(), generation, 0, ("", b"")

    async def store(
        self, store: int, growths: Sequence[Growth], chunks: Sequence[tuple[int, bytes, bytes]], clock_ms: int, now_ms: int
    ) -> list[int | str]:
        return [self._store(growth, *chunk) for growth, chunk in zip(growths, chunks, strict=True)]

    def _store(self, growth: Growth, offset: int, chunk: bytes, progress: bytes) -> int | str:
        known = self.growths.get((growth.key, growth.id))
        if known is None or known.reason is not None:
            return ENDED
        if known.generation != growth.generation:
            return REPLACED
        text = known.text + chunk[len(known.text) - offset :]
        self.growths[growth.key, growth.id] = replace(known, text=text, progress=progress or known.progress)
        return len(text)

    async def close(
        self,
        key: str,
        id: str,
        generation: int | None,
        size: int,
        reason: str,
        ending: bytes,
        now_ms: int,
        lease_ms: int,
        progress: bytes = b"",
    ) -> StoredGrowth | str:
        known = self.growths.get((key, id))
        if known is None:
            return GONE
        if known.generation != generation:
            return REPLACED
        if known.ended:
            return ENDED
        if len(known.text) != size:
            raise GrowthBehind(len(known.text))
        closed = self.growths[key, id] = replace(known, reason=reason, ending=ending, progress=progress or known.progress)
        return closed

    async def end(self, key: str, id: str, now_ms: int, *, refused: bool = False) -> None:
        self.growths[key, id] = replace(self.growths[key, id], ended=True)

    async def read_many(self, names: Sequence[tuple[str, str]]) -> list[StoredGrowth | None]:
        return [self.growths.get(name) for name in names]

    async def states(self, names: Sequence[tuple[str, str]]) -> list[tuple[int, int, bytes, str | None] | None]:
        found = await self.read_many(names)
        return [None if one is None else (one.generation, len(one.text), one.progress, one.reason) for one in found]

    async def ids_of(self, key: str, *, ended: bool) -> list[str]:
        return [id for (user, id), one in self.growths.items() if user == key and (ended or not one.ended)]

    async def take(self, server: int, now_ms: int, lease_ms: int) -> list[tuple[str, str]]:
        return []

    async def erase(self, key: str) -> None:
        for id in await self.ids_of(key, ended=True):
            del self.growths[key, id]
