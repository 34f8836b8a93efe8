"""The storage of rules in memory: versions, which may be away or changed by somebody else, and the sample of recorded events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence

from engine.errors import CorruptRecord, StorageUnavailable
from engine.features.rules.core.versions import VersionState
from engine.features.rules.recorded_events import RecordedEvent
from engine.features.rules.rules_store import StoredState


class FakeRulesStore:
    """`engine.features.rules.rules_store.RulesStore` without Redis. It counts `changes` that were stored, and `reads`."""

    def __init__(self) -> None:
        self.stored = StoredState()
        self.kept: dict[int, str] = {}
        self.away = False
        self.corrupt = False
        self.loses_answer = False
        self.reads = 0

    async def stamp(self) -> str:
        self._check()
        return self.stored.stamp

    async def read(self) -> StoredState:
        self._check()
        self.reads += 1
        if self.corrupt:
            raise CorruptRecord("the stored versions of the rules cannot be read")
        return self.stored

    async def recovered(self) -> StoredState:
        self._check()
        return StoredState(self.stored.stamp, VersionState(last=max(self.kept, default=0)))

    async def texts(self, versions: Iterable[int]) -> dict[int, str]:
        self._check()
        return {number: self.kept[number] for number in versions if number in self.kept}

    async def change(self, read: StoredState, state: VersionState, text: str | None = None) -> StoredState | None:
        self._check()
        if read.stamp != self.stored.stamp:
            return None
        if text is not None:
            self.kept[state.last] = text
        for number in set(self.kept) - {info.version for info in state.versions}:
            del self.kept[number]
        self.corrupt = False
        self.stored = StoredState(f"{int(read.stamp.partition('-')[0] or 0) + 1}-x", state)
        if self.loses_answer:
            raise StorageUnavailable("rules_change: no reply")
        return self.stored

    def _check(self) -> None:
        if self.away:
            raise StorageUnavailable("rules: away")


class FakeSampleStore:
    """`engine.features.rules.recorded_events.RecordedEvents` as a list."""

    def __init__(self) -> None:
        self.events: list[RecordedEvent] = []
        self.away = False

    async def add(self, events: Sequence[RecordedEvent]) -> None:
        if self.away:
            raise StorageUnavailable("recorded events: away")
        self.events += events

    async def newest(self, limit: int, since_ms: int) -> list[RecordedEvent]:
        if self.away:
            raise StorageUnavailable("recorded events: away")
        return [event for event in reversed(self.events) if event.at_ms >= since_ms][:limit]

    async def of_user(self, key: str) -> AsyncIterator[RecordedEvent]:
        if self.away:
            raise StorageUnavailable("recorded events: away")
        for event in self.events:
            if key.partition(":")[2].encode() in event.body:
                yield event

    async def erase(self, key: str) -> None:
        gone = [event async for event in self.of_user(key)]
        self.events = [event for event in self.events if event not in gone]
