"""The one place where errors of Redis and of its connections become `StorageUnavailable`. Scripts have their own (`engine.store.lua`)."""

from __future__ import annotations

from types import TracebackType

from redis.exceptions import RedisError

from engine.errors import StorageUnavailable


class StorageCalls:
    """Surrounds calls of redis-py: raises StorageUnavailable, which names what was asked, where storage does not answer or refuses."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, (RedisError, OSError)):
            raise StorageUnavailable(f"{self._what}: {error}") from error
