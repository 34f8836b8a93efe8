"""The engine as the manifests run it: by a user without rights, with a root that nobody can write to."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import engine
from tests.support.missing_programs import untried
from tests.support.running_engine import PROGRAM, RunningEngine

pytestmark = [pytest.mark.engine, pytest.mark.slow]

_NOBODY: Final = 65534
_AS_NOBODY: Final = ("setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--no-new-privs", "--bounding-set=-all")
_STARTS: Final = "import engine, subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
"""Fails where nobody may not read the interpreter or the code."""

_TMP: Final = Path("/tmp")
_NEEDED: Final = [
    Path(sys.prefix),
    Path(sys.base_prefix),
    *(Path(engine.__file__).parents[1] / name for name in ("engine", "ray_notifications")),
]


def _hidden_by(path: Path) -> Path | None:
    """The topmost folder that hides it from the user: /tmp, which is to be empty, or one that others may not enter."""
    if path.is_relative_to(_TMP):
        return _TMP
    return next((folder for folder in reversed(path.parents) if not folder.stat().st_mode & stat.S_IXOTH), None)


def _read_only(folder: Path) -> str:
    """The program of a shell in a mount namespace of its own: it makes the mounts, and goes on with the command that it is given.

    What the engine runs from stays where it is. It is put aside, into the folder, while the folders that hide it are emptied.
    """
    needed = {path: hidden_by for path in _NEEDED if (hidden_by := _hidden_by(path))}
    made = [["mount", "--make-rprivate", "/"], ["mount", "-t", "tmpfs", "tmpfs", folder]]
    for number, path in enumerate(needed):
        made += [["mkdir", folder / str(number)], ["mount", "--bind", path, folder / str(number)]]
    for path in {_TMP, *needed.values()}:
        made.append(["mount", "-t", "tmpfs", "-o", f"mode={1777 if path == _TMP else 755}", "tmpfs", path])
    for number, path in enumerate(needed):
        made += [["mkdir", "-p", path], ["mount", "--move", folder / str(number), path], ["mount", "-o", "remount,ro,bind", path]]
    made += [["mount", "-o", "remount,ro", path] for path in {*needed.values()} - {_TMP}]
    made += [["umount", folder], ["mount", "--bind", folder, folder], ["mount", "-o", "remount,ro,bind", "/"]]
    return " && ".join(shlex.join(map(str, command)) for command in made) + ' || exit 90; exec "$@"'


@pytest.fixture
def folder() -> Iterator[Path]:
    """The only directory that is left, beside /tmp, which is empty: it cannot be below that."""
    made = Path(tempfile.mkdtemp(prefix="engine-", dir="/var/tmp"))
    os.chown(made, _NOBODY, _NOBODY)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def confined(folder: Path) -> Iterator[RunningEngine]:
    place = ("unshare", "--mount", "sh", "-c", _read_only(folder), "sh")
    try:
        subprocess.run([*place, *_AS_NOBODY, sys.executable, "-c", _STARTS], check=True, capture_output=True, cwd=folder)
    except (OSError, subprocess.CalledProcessError) as error:
        untried(f"a read-only root was not tried: {getattr(error, 'stderr', error)}")
    running = RunningEngine(folder, env={"HOME": "/nonexistent"}, program=(*place, *_AS_NOBODY, *PROGRAM))
    try:
        running.start()
        yield running
        running.stop()
    finally:
        if running.process is not None and running.process.poll() is None:
            running.process.kill()


async def test_an_engine_of_nobody_serves_with_a_read_only_root(confined: RunningEngine) -> None:
    await confined.publish({"user": "reader", "type": "test.event", "id": "read-only"})
    async with confined.connect("reader") as socket:
        frame = await confined.receive(socket, "messages")
    assert [message["id"] for message in frame["messages"]] == ["read-only"]
    owners = {os.stat(f"/proc/{process.pid}").st_uid for process in confined.descendants() if process.is_running()}
    assert owners == {_NOBODY}
