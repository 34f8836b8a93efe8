"""The checks of `engine doctor` that ask this machine: Python, packages, clock, files, keys, ports and limits."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import stat
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Final

import psutil
from packaging.requirements import Requirement

from engine.actors.tcp_carrier import tls_contexts
from engine.auth.keyring import Keyring, weaknesses
from engine.auth.tokens import SECRET_FILE, load_secret
from engine.cli.finding import Finding
from engine.cli.state_file import running_state
from engine.config import Config
from engine.errors import EngineError
from engine.store.embedded_redis import memory_bytes
from engine.store.server_program import installed_servers

_PACKAGE: Final = "ray-notification-engine"
_OPTIMIZED: Final = "--enable-optimizations"
_DISTRIBUTION: Final = "/usr"
"""The prefix of a distribution's own Python; they optimise by other means than the option."""
_TIME_ERROR: Final = 5  # of adjtimex(2): no source of time has set the clock
_TIMEX_BYTES: Final = 512  # more than its struct has; zeros ask and set nothing
_DISK_FREE_BYTES_MIN: Final = 1 << 30
"""Redis rewrites its file into a second one, and Ray keeps its logs."""
_MEMORY_BYTES_MIN: Final = 2 << 30
"""Ray, Redis and six processes of some 150 MB, before the first message."""
_FILES_OTHER: Final = 1000
"""Files of an edge beside its clients' connections: links, logs, libraries."""
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OVERCOMMIT: Final = Path("/proc/sys/vm/overcommit_memory")


def interpreter() -> Iterator[Finding]:
    """Whether this Python was built with profile-guided optimisation."""
    told = f"Python {sys.version.split()[0]}, {sys.executable}"
    options = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    if _OPTIMIZED in options or sys.base_prefix == _DISTRIBUTION:
        yield Finding("Python", "ok", told)
    else:
        yield Finding(
            "Python",
            "warning",
            f"{told}: built without {_OPTIMIZED}, a message costs 10 to 20 % more CPU",
            "use your distribution's python3",
        )


def packages() -> Iterator[Finding]:
    """Whether the installed packages are the versions that this one requires."""
    wrong = []
    for text in requires(_PACKAGE) or ():
        required = Requirement(text)
        if required.marker is not None and not required.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(required.name)
        except PackageNotFoundError:
            found = "absent"
        if found == "absent" or not required.specifier.contains(found, prereleases=True):
            wrong.append(f"{required.name} is {found}, needed is {required.specifier}")
    if wrong:
        yield Finding("packages", "failed", "; ".join(wrong), f"pip install --upgrade {_PACKAGE}")
    else:
        yield Finding("packages", "ok", f"{_PACKAGE} {version(_PACKAGE)}, Ray {version('ray')}, redis-py {version('redis')}")


def clock() -> Iterator[Finding]:
    """Whether a source of time keeps the clock right: delays, lifetimes and tokens go by it."""
    if not sys.platform.startswith("linux"):
        return
    if ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)) == _TIME_ERROR:
        yield Finding("clock", "warning", "no source of time keeps it right; delays and tokens go by it", "run chrony or systemd-timesyncd")
    else:
        yield Finding("clock", "ok", "synchronised")


def files(config: Config) -> Iterator[Finding]:
    """The data directory, and the room on the disk."""
    folder = Path(config.data_dir).absolute()
    nearest = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        yield Finding("files", "failed", f"data_dir: {nearest} is no directory that you may write to", "choose another data_dir")
    elif nearest == folder and os.geteuid() not in (0, folder.stat().st_uid):
        yield Finding("files", "failed", f"data_dir: {folder} is another user's", "choose another data_dir")
    elif nearest == folder and folder.stat().st_mode & _OTHERS:
        yield Finding("files", "warning", f"data_dir: others may read {folder}", f"chmod 700 {folder}; `engine up` does it too")
    else:
        yield Finding("files", "ok", f"data_dir {folder}{'' if nearest == folder else ', made at the first start'}")
    free = shutil.disk_usage(nearest).free
    if free < _DISK_FREE_BYTES_MIN:
        yield Finding("disk", "warning", f"{free >> 20} MiB free at {nearest}", "leave room for Redis to write its file anew, and for logs")
    else:
        yield Finding("disk", "ok", f"{free >> 30} GiB free at {nearest}")


def keys(config: Config) -> Iterator[Finding]:
    """What tokens are verified with, and the certificates of links."""
    own = not (config.jwt_secret or config.jwt_public_key or config.jwt_jwks_url)
    try:
        if not own:
            Keyring(config)
        elif os.path.exists(Path(config.data_dir) / SECRET_FILE):
            load_secret(config.data_dir)
        tls_contexts(config)
    except EngineError as error:
        yield Finding("keys", "failed", str(error))
        return
    for weakness in weaknesses(config):
        yield Finding("keys", "warning", f"{weakness}; on another host than loopback the engine refuses to start")
    if not weaknesses(config):
        yield Finding("keys", "ok", f"a secret of its own, in {config.data_dir}" if own else "as configured")


def ports(config: Config) -> Iterator[Finding]:
    """Whether the edges can listen on their port."""
    from engine.cli.up import reserved_port

    running = running_state(config.data_dir)
    if running is not None:
        yield Finding("port", "ok", f"an engine runs on this data directory, at {running.url} (pid {running.pid})")
    elif config.address:
        yield Finding("port", "ok", f"{config.port} on the nodes of the edges; not looked at from here")
    else:
        try:
            with reserved_port(config) as port:
                yield Finding("port", "ok", f"{config.host}:{port} is free")
        except EngineError as error:
            yield Finding("port", "failed", str(error))


def storage_program(config: Config) -> Iterator[Finding]:
    """The server program of the engine's own Redis, and what the kernel lets it do."""
    if config.redis_url or config.address:
        return
    try:
        server = installed_servers()[0]
    except EngineError as error:
        yield Finding("Redis", "failed", str(error))
        return
    if lacking := server.lacking_fixes:
        yield Finding("Redis", "warning", f"{server} lacks the fixes of {lacking}", "install a newer redis-server or valkey-server")
    else:
        yield Finding("Redis", "ok", f"its own: {server}")
    if _OVERCOMMIT.exists() and _OVERCOMMIT.read_text("ascii").strip() == "2":
        yield Finding(
            "Redis",
            "warning",
            "vm.overcommit_memory is 2: Redis may be unable to fork and write its file anew",
            "sysctl vm.overcommit_memory=1",
        )


def memory(config: Config) -> Iterator[Finding]:
    """What this process may use, against what an engine needs and what its own Redis is allowed."""
    total, free = memory_bytes(), psutil.virtual_memory().available
    told = f"{min(free, total) / (1 << 30):.1f} of {total / (1 << 30):.1f} GiB free"
    if not config.redis_url and config.redis_memory_bytes_max > total // 2:
        yield Finding(
            "memory", "warning", f"redis_memory_bytes_max is {config.redis_memory_bytes_max >> 20} MiB, of {total >> 20} MiB",
            "leave it half of the memory at most: writing its file anew may take as much again",
        )  # fmt: skip
    elif free < _MEMORY_BYTES_MIN and running_state(config.data_dir) is None:
        yield Finding("memory", "warning", told, f"an engine takes {_MEMORY_BYTES_MIN >> 30} GiB before its first message")
    else:
        yield Finding("memory", "ok", told)


def open_files(config: Config) -> Iterator[Finding]:
    """The limit of open files, which a connection counts against."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = config.connections_max + _FILES_OTHER
    if hard != resource.RLIM_INFINITY and hard < needed:
        yield Finding(
            "open files", "warning", f"at most {hard} of a process; connections_max is {config.connections_max}",
            f"raise it to {needed} (ulimit -Hn, LimitNOFILE=), or lower connections_max",
        )  # fmt: skip
    else:
        yield Finding("open files", "ok", "no limit" if hard == resource.RLIM_INFINITY else f"{hard} of a process")
