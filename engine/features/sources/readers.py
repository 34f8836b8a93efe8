"""The port of a source's storage, and the readers that implement it by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple, Protocol

from engine.errors import ConfigError
from engine.features.sources.core import KafkaSource, NatsSource, PostgresqlSource, RedisSource, Source, SourceRow


class SourceLag(NamedTuple):
    """What waits in a source: rows, when the oldest came (ms since the epoch; 0: none waits), and dead rows."""

    waiting: int
    oldest_ms: int
    dead: int


class DeadRow(NamedTuple):
    """A row that the engine refused."""

    id: str
    reason: str
    body: str


class SourceReader(Protocol):
    """One connection to a source. Every method raises StorageUnavailable while the server does not answer."""

    async def read(self, limit: int) -> list[SourceRow]:
        """The oldest rows that nobody has settled. Between `read` and `settle` no other reader gets them."""

    async def settle(self, accepted: Sequence[SourceRow], dead: Sequence[tuple[SourceRow, str]]) -> None:
        """Delete accepted rows and set dead ones aside, at once. Other rows that were read are free again."""

    async def wait(self) -> None:
        """Return when there may be rows."""

    async def lag(self) -> SourceLag:
        """What waits."""

    async def dead_rows(self, limit: int) -> list[DeadRow]:
        """The oldest dead rows."""

    async def redrive(self) -> int:
        """Move all dead rows back; returns how many."""

    async def close(self) -> None:
        """End the connection."""


_MODULES: Final[Mapping[type[Source], tuple[str, str, str, str]]] = {
    PostgresqlSource: ("engine.features.sources.postgresql_outbox", "PostgresqlOutbox", "psycopg", "postgresql"),
    RedisSource: ("engine.features.sources.redis_stream", "RedisStream", "redis", ""),
    NatsSource: ("engine.features.sources.nats_stream", "NatsStream", "nats", "nats"),
    KafkaSource: ("engine.features.sources.kafka_topics", "KafkaTopics", "aiokafka", "kafka"),
}
"""Kind -> module, class, the library that it needs, and the extra that brings the library."""


def require_library(source: Source) -> None:
    """Raise ConfigError when the library for this kind of source is not installed."""
    *_, library, extra = _MODULES[type(source)]
    try:
        import_module(library)
    except ImportError as error:
        raise ConfigError(
            f"sources: {source.name} needs the extra {extra!r}: pip install 'ray-notification-engine[{extra}]' ({error})"
        ) from error


def reader_of(source: Source) -> SourceReader:
    """A reader, which connects when it is first used. Raises ConfigError: its library is missing, or its connection is no URL."""
    require_library(source)
    module, name, *_ = _MODULES[type(source)]
    try:
        made: Any = getattr(import_module(module), name)(source)
    except ValueError:  # which may quote a password
        raise ConfigError(f"sources: connection of {source.name}: a host, a port or an option of the URL is malformed") from None
    reader: SourceReader = made
    return reader
