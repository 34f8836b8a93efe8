"""`engine.json` in the data directory: where the running engine is, so that other commands find it without arguments.

It is there from when the engine is ready until it stops. A killed engine leaves it behind; whether the process is still that
engine is told by the process's start time, since a pid alone is given out again.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

import msgspec
import psutil

STATE_FILE: Final = "engine.json"


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one running engine."""

    url: str  # where the edges answer: http://host:port
    pid: int  # of `engine up`
    pid_started_s: float  # when that process started: makes the pid unambiguous
    version: str
    ray_address: str
    ray_logs: str  # directory of the actors' logs on the node of `engine up`
    namespace: str
    redis_url: str  # without a password

    def runs(self) -> bool:
        """Is this engine's process still there (on this machine)?"""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.pid_started_s) < 1
            return bool(same and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return False


def write_state(data_dir: str | Path, state: EngineState) -> None:
    """Put the file there, whole, mode 0600."""
    descriptor, draft = tempfile.mkstemp(prefix=f".{STATE_FILE}.", dir=data_dir)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")
    Path(draft).replace(Path(data_dir) / STATE_FILE)


def remove_state(data_dir: str | Path) -> None:
    """Remove the file, if it is there."""
    (Path(data_dir) / STATE_FILE).unlink(missing_ok=True)


def running_state(data_dir: str | Path) -> EngineState | None:
    """The engine that runs on the data directory; None when there is none."""
    state = read_state(data_dir)
    return state if state is not None and state.runs() else None


def read_state(data_dir: str | Path) -> EngineState | None:
    """The last engine of this data directory, whether it still `runs()` or not; None when there is no file, or an unreadable one."""
    try:
        return msgspec.json.decode((Path(data_dir) / STATE_FILE).read_bytes(), type=EngineState)
    except (OSError, msgspec.MsgspecError):
        return None
