"""`engine doctor`: every check, and none that keeps another from being made.

A check is a function of the configuration that yields `Finding`s. It changes nothing: no file is made, no server started.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from engine.cli.feature_checks import of_features
from engine.cli.finding import Finding
from engine.cli.machine_checks import clock, files, interpreter, keys, memory, open_files, packages, ports, storage_program
from engine.cli.service_checks import key_list, ray_cluster, redis_servers
from engine.cli.settings import load_with_sources, remark
from engine.config import Config
from engine.errors import EngineError

_OF_MACHINE: Final[tuple[Callable[[Config], Iterator[Finding]], ...]] = (files, keys, ports, storage_program, memory, open_files)
_OF_SERVICES: Final[tuple[Callable[[Config], AsyncIterator[Finding]], ...]] = (redis_servers, ray_cluster, key_list, of_features)


def examine() -> list[Finding]:
    """All findings. Where the settings cannot be used, only those that need none."""
    found = [*interpreter(), *packages(), *clock()]
    try:
        loaded = load_with_sources()
    except EngineError as error:
        return [Finding("settings", "failed", str(error), "correct it; `engine config` lists all settings"), *found]
    left_alone = remark(loaded.left_alone)
    given = f"{len(loaded.sources)} set: {', '.join(sorted(loaded.sources))}" if loaded.sources else "all defaults"
    found.insert(0, Finding("settings", "warning" if left_alone else "ok", left_alone or given))
    for check in _OF_MACHINE:
        try:
            found += check(loaded.config)
        except EngineError as error:
            found.append(Finding(check.__name__.replace("_", " "), "failed", str(error)))
    return found + asyncio.run(_of_services(loaded.config))


async def _of_services(config: Config) -> list[Finding]:
    return [finding for check in _OF_SERVICES async for finding in check(config)]
