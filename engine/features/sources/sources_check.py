"""The checks of the sources: of their settings, before the engine starts, and of their servers, by `engine doctor`."""

from __future__ import annotations

import asyncio

from engine.config import Config
from engine.errors import StorageUnavailable
from engine.features.sources.core import Source, sources_of
from engine.features.sources.readers import SourceLag, reader_of

_ANSWER_S = 10.0


def look(config: Config) -> str:
    """The names of the sources, "" where there are none. Raises ConfigError: a source cannot be used."""
    sources = sources_of(config.sources)
    for source in sources:
        reader_of(source)
    return f"sources: {', '.join(source.name for source in sources)}" if sources else ""


def reach(config: Config) -> str:
    """What waits in each source, "" where there are none.

    Raises:
        ConfigError: a source cannot be used.
        StorageUnavailable: a server does not answer, or lacks the table, stream or topic.
    """
    told = []
    for source in sources_of(config.sources):
        lag = asyncio.run(_lag(source))
        told.append(f"{source.name}: {lag.waiting} rows wait, {lag.dead} are dead")
    return "; ".join(told)


async def _lag(source: Source) -> SourceLag:
    reader = reader_of(source)
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await reader.lag()
    except TimeoutError:
        raise StorageUnavailable(f"source {source.name}: no answer within {_ANSWER_S:g} s") from None
    finally:
        await reader.close()
