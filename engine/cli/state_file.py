"""`engine.json` in the data directory: where the running engine is, so that other commands find it without arguments.

It exists from when the engine is ready until it stops. A killed engine leaves it behind; the start time of the process shows whether a
process of that pid is still that engine, since pids are reused.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

import msgspec
import psutil

from engine.errors import ConfigError

STATE_FILE: Final = "engine.json"


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one running engine."""

    url: str  # where the edges answer: http://host:port
    pid: int  # of `engine up`
    pid_started_s: float  # start time of that process: with it the pid is unambiguous
    version: str
    ray_address: str
    ray_logs: str  # directory of the actors' logs on the node of `engine up`
    namespace: str
    redis_url: str  # without a password

    def runs(self) -> bool:
        """Whether the engine's process runs, on this machine."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.pid_started_s) < 1
            return bool(same and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return False


def write_state(data_dir: str | Path, state: EngineState) -> None:
    """Write the file, atomically, with mode 0600. Raises OSError; nothing is left of the attempt then."""
    descriptor, draft = tempfile.mkstemp(prefix=f".{STATE_FILE}.", dir=data_dir)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")
        Path(draft).replace(Path(data_dir) / STATE_FILE)
    except OSError:
        Path(draft).unlink(missing_ok=True)
        raise


def remove_state(data_dir: str | Path) -> None:
    """Remove the file, if it exists. Raises OSError."""
    (Path(data_dir) / STATE_FILE).unlink(missing_ok=True)


def running_state(data_dir: str | Path) -> EngineState | None:
    """The engine that runs on the data directory; None when there is none. Raises as `check_readable`."""
    check_readable(data_dir)
    state = read_state(data_dir)
    return state if state is not None and state.runs() else None


def check_readable(data_dir: str | Path) -> None:
    """Raises ConfigError: the directory is another user's, and closed, so that nothing can be said of its engine."""
    try:
        (Path(data_dir) / STATE_FILE).stat()
    except PermissionError as error:
        raise ConfigError(f"data_dir: you may not read {data_dir}; run this as the user of its engine") from error
    except OSError:
        return


def read_state(data_dir: str | Path) -> EngineState | None:
    """The last engine of this data directory, running or not; None when there is no file, or an unreadable one."""
    try:
        return msgspec.json.decode((Path(data_dir) / STATE_FILE).read_bytes(), type=EngineState)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
