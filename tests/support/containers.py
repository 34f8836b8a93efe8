"""Containers without Docker: each is a host of its own (`tests.support.hosts`), whose root has this machine's programs and its own files.

    /etc             a copy, in which the other containers have names
    /run, /data      empty at first
    all else         this machine's; `valkey-server` and `valkey-cli` are the Redis or Valkey that it has

A command runs as its container's file gives it: the same words, files, names and addresses; not the same image, user and limits.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.support.hosts import Host, Network
from tests.support.missing_programs import missing
from tests.support.redis_server import find_server

# No mount of it is seen outside the host.
_MAKE_ROOT: Final = """
mkdir -p "$1/run" "$1/data"
cp -a /etc "$1/etc"
for entry in /*; do
    case "$entry" in /etc|/run|/data) continue ;; esac
    if [ -L "$entry" ]; then cp -a "$entry" "$1$entry"
    elif [ -d "$entry" ]; then mkdir "$1$entry"; mount --rbind "$entry" "$1$entry"
    fi
done
"""


class Container:
    """One container, in which nothing runs at first."""

    def __init__(self, network: Network, name: str) -> None:
        self.host: Host = network.host(name)
        self._root = self.host.folder / "root"
        self._path = f"{_programs(network.folder / 'programs')}:{self.host.environment()['PATH']}"
        subprocess.run(self.host.command("sh", "-ec", _MAKE_ROOT, "sh", str(self._root)), check=True)
        self.write("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n")  # no DNS beyond `name`

    def write(self, path: str, text: str) -> None:
        """Put a file into it."""
        file = self._root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def name(self, addresses: Mapping[str, str]) -> None:
        """Give it the addresses of others by their names, as a DNS would."""
        self.write("/etc/hosts", "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in addresses.items()))

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a command in it; `host.output()` has what it prints."""
        return self.host.start(f"exec {shlex.join(self._inside(command))}", **{"PATH": self._path, **environment})

    def succeeds(self, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Whether a command ends in it with 0."""
        words = self.host.command(*self._inside(command))
        env = self.host.environment() | {"PATH": self._path, **environment}
        return subprocess.run(words, env=env, capture_output=True, check=False).returncode == 0

    def _inside(self, command: Sequence[str]) -> list[str]:
        return ["chroot", str(self._root), "env", "--chdir=/data", *command]


def _programs(folder: Path) -> Path:
    """A directory with the programs of Valkey's image, by their names there."""
    client = shutil.which("valkey-cli") or shutil.which("redis-cli") or missing("no redis-cli: apt install redis-tools")
    folder.mkdir(exist_ok=True)
    for name, program in (("valkey-server", find_server()), ("valkey-cli", client)):
        if not (folder / name).exists():
            (folder / name).symlink_to(program)
    return folder
