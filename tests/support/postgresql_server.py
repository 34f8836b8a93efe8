"""A PostgreSQL server of its own, from the system's packages, in a temporary directory, on a Unix socket."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.missing_programs import missing

START_S = 60.0


def server_folder() -> Path | None:
    """Where the newest server's programs are; None when there is none."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if installed:
        return installed[-1].parent
    found = shutil.which("initdb")
    return None if found is None else Path(found).resolve().parent


class PostgresqlServer:
    """One server. It refuses to run as root, which tests in a container are: then it runs as the package's user."""

    def __init__(self) -> None:
        programs = server_folder()
        if programs is None:
            missing("no PostgreSQL server: apt install postgresql")
        self._programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # the path of a socket has at most 107 bytes
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
            self._user = {"user": "postgres", "group": owner.pw_gid}
        self._run("initdb", "--pgdata", self.data, "--username=engine", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    @property
    def url(self) -> str:
        """For `history_url`."""
        return f"postgresql://engine@/postgres?host={self.folder}"

    def start(self) -> None:
        """Start, also after `kill`; returns when it answers."""
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)
        log = (self.folder / "log").open("ab")
        command = [str(self._programs / "postgres"), "-D", self.data, "-k", str(self.folder), "-c", "listen_addresses="]
        self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **self._user)
        log.close()
        deadline = time.monotonic() + START_S
        while self._run("pg_isready", "--host", str(self.folder), check=False) != 0:
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        """End it at once, with all its processes, which notice that its first one is gone."""
        assert self._process is not None, "it runs"
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str, check: bool = True) -> int:
        path = str(self._programs / program)
        done = subprocess.run([path, *arguments], capture_output=True, cwd=self.folder, check=False, **self._user)
        assert not check or done.returncode == 0, done.stderr.decode()
        return done.returncode
