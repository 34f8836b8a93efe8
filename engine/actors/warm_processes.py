"""How many processes of this node have loaded what an actor needs and have no actor yet, as its actors tell the controller.

Ray says of no process whether it is idle. So one that is warm (`engine.actors.spare_process`) leaves a file named after its job and itself
in the directory of Ray's session, and counts for as long as Ray names it idle. A process that has got an actor, or has ended, is never idle
again: whoever finds its file removes it.
"""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path
from typing import Final

import ray

_FOLDER: Final = "engine-spares"
_IDLE_NAME: Final = b"ray::IDLE"
_ANY_JOB: Final = "ffffffff"
"""Of a process that Ray has started for whichever job needs one."""


def is_idle(pid: int | str = "self", proc: Path = Path("/proc")) -> bool:
    """Whether it runs and nothing was given to it: Ray names a process after what it runs."""
    try:
        return (proc / str(pid) / "cmdline").read_bytes().startswith(_IDLE_NAME)
    except OSError:
        return False


def announce(pid: int) -> None:
    """This process is warm."""
    folder, job = _folder(), _job()
    folder.mkdir(exist_ok=True)
    (folder / f"{job}-{pid}").touch()


def count() -> int:
    """Of those that Ray may give to an actor of this process's job; some 50 us. None where there is no Ray."""
    if not ray.is_initialized():
        return 0
    return len(warm(_folder(), _job()))


def warm(folder: Path, job: str, proc: Path = Path("/proc")) -> set[int]:
    """Their ids."""
    found = set()
    with contextlib.suppress(FileNotFoundError):  # nobody has announced itself
        for mark in folder.iterdir():
            of_job, _, pid = mark.name.partition("-")
            if not is_idle(pid, proc):
                mark.unlink(missing_ok=True)
            elif of_job in (job, _ANY_JOB):
                found.add(int(pid))
    return found


@cache
def _folder() -> Path:
    context = ray.get_runtime_context()
    return Path(context.get_temp_dir()) / context.get_session_name() / _FOLDER


@cache
def _job() -> str:
    return str(ray.get_runtime_context().get_job_id())
