"""A peer under measurement: its programs, started on loopback with a Redis of their own, and their processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from bench.books import now_s
from bench.processes import Processes
from bench.system import System
from tests.support.free_port import free_port
from tests.support.redis_server import find_server

PROGRAMS: Final = Path(__file__).parent / "programs"
_START_S: Final = 30.0
_STOP_S: Final = 5.0
_PROBE_S: Final = 0.05


class Programs:
    """Processes and the folder for their output; all ended at the end of the block."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bench-peer-", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        self.redis_url = ""
        self._processes: list[tuple[subprocess.Popen[bytes], str]] = []
        self._logs: list[IO[bytes]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process, _ in reversed(self._processes):
            process.terminate()
        for process, _ in reversed(self._processes):
            try:
                await asyncio.to_thread(process.wait, _STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        for log in self._logs:
            log.close()
        self._folder.cleanup()

    def start(self, role: str, *argv: str, env: Mapping[str, str] | None = None, pipes: bool = False) -> subprocess.Popen[bytes]:
        """Start a program. `role` is what it counts as; empty: it belongs to the generator. `pipes`: to its stdin and stdout."""
        log = (self.folder / f"{role or 'publisher'}.log").open("ab")
        self._logs.append(log)
        process = subprocess.Popen(
            argv,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(PROGRAMS), "REDIS_URL": self.redis_url, "FIRED_DIR": str(self.folder), **(env or {})},
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else log,
            stderr=log,
        )
        self._processes.append((process, role))
        return process

    async def start_redis(self) -> None:
        """A Redis that keeps nothing on disk, as these peers are usually run."""
        port = free_port()
        options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
        self.start("redis", str(find_server()), *options)
        await self.listening(port)
        self.redis_url = f"redis://127.0.0.1:{port}/0"

    async def start_site(self, application: str) -> int:
        """uvicorn with one worker; returns its port once it listens."""
        port = free_port()
        self.start("web", sys.executable, "-m", "uvicorn", application, "--port", str(port), "--log-level", "warning", "--backlog", "4096")
        await self.listening(port)
        return port

    async def listening(self, port: int) -> None:
        """Wait until somebody listens. Raises RuntimeError with the programs' output when nobody does for long."""
        give_up_s = now_s() + _START_S
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                if now_s() > give_up_s or any(process.poll() is not None for process, _ in self._processes):
                    raise RuntimeError(f"it does not start:\n{self.output()}") from None
                await asyncio.sleep(_PROBE_S)
            else:
                writer.close()
                return

    def check(self) -> None:
        """Raises RuntimeError with the programs' output when one that serves has ended: its figures would be those of a corpse."""
        if any(role and process.poll() is not None for process, role in self._processes):
            raise RuntimeError(f"a program has ended:\n{self.output()}")

    def output(self) -> str:
        """The last that every program has said."""
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-2000:]}" for log in sorted(self.folder.glob("*.log")))

    @property
    def served(self) -> Processes:
        """Those that count as the peer's."""
        return Processes({process.pid: role for process, role in self._processes if role})


class Peer(System):
    """A peer that delivers messages; use with `async with`."""

    recovers = ""
    needs_redis = True

    def __init__(self) -> None:
        self.programs = Programs()

    @classmethod
    def absence(cls) -> str:
        """What is missing here to start it, and where to get it; empty where nothing is."""
        return ""

    @classmethod
    def version(cls) -> str:
        """Of its program, such as `2.0.11`; empty where there is none, and of a peer that is Python packages."""
        return ""

    @abstractmethod
    async def start(self) -> None:
        """Start the programs; returns when they serve."""

    async def __aenter__(self) -> Self:
        await self.programs.__aenter__()
        try:
            if self.needs_redis:
                await self.programs.start_redis()
            await self.start()
        except BaseException:
            await self.programs.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.programs.__aexit__(*error)

    @property
    def processes(self) -> Processes:
        return self.programs.served
