"""What must stay true of a running engine while anybody sends it anything: processes, their memory, their logs, other users' messages."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import httpx

from tests.support.process_tree import role_of, tree
from tests.support.running_engine import RunningEngine

ROLES = ("controller", "edge", "scheduler", "shard")
GROWTH_MIB_MAX = 150
"""Of any process of the engine. The users that strangers invent are some 2 KB each until they are evicted."""
SOCKETS_MAX = 200
"""Open at an edge when everybody has left."""
_COMPLAINT = re.compile(rb"Traceback \(most recent call last\)|\b(?:ERROR|CRITICAL)\b.*")
_WITHIN_S = 30.0
"""A hundred times what a message takes here."""


class EngineWatch:
    """Compares an engine with what it was when this object was made."""

    def __init__(self, engine: RunningEngine) -> None:
        self._engine = engine
        self._pids = self._processes()
        self._read = {path: path.stat().st_size for path in self._logs()}
        self.rss_mib_before = self.rss_mib()

    def _processes(self) -> dict[int, str]:
        assert self._engine.process is not None
        found = {pid: role_of(pid) for pid in tree(self._engine.process.pid)}
        return {pid: role for pid, role in found.items() if role in ROLES}

    def _logs(self) -> list[Path]:
        return sorted(Path(str(self._engine.state["ray_logs"])).glob("worker-*.*"))

    def rss_mib(self) -> dict[str, float]:
        """Resident memory of the engine's processes by role, the largest of each."""
        found: dict[str, float] = {}
        for pid, role in self._pids.items():
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            found[role] = max(found.get(role, 0.0), round(pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20), 1))
        return found

    def check_processes(self) -> None:
        """Every process of the engine is the one that it was, and has not grown beyond `GROWTH_MIB_MAX`."""
        assert self._processes() == self._pids, f"processes ended or began: {self._pids} -> {self._processes()}"
        for role, now in self.rss_mib().items():
            grown = now - self.rss_mib_before[role]
            assert grown < GROWTH_MIB_MAX, f"{role} grew by {grown:.0f} MiB to {now:.0f}"

    def check_log(self) -> None:
        """Nothing in the logs of the engine's processes is an error: a client's mistake is none."""
        for path in self._logs():
            read = self._read.get(path, 0)
            if path.stat().st_size == read:
                continue
            with path.open("rb") as file:
                file.seek(read)
                text = file.read()
            self._read[path] = read + len(text)
            found = _COMPLAINT.search(text)
            assert found is None, f"{path}: {text[max(0, found.start() - 200) : found.start() + 4000].decode(errors='replace')}"

    def check_sockets(self) -> None:
        """The edges hold few sockets once everybody has left."""
        deadline = time.monotonic() + _WITHIN_S
        while (held := self._sockets()) > SOCKETS_MAX:
            assert time.monotonic() < deadline, f"{held} sockets are open at the edges"
            time.sleep(0.2)

    def _sockets(self) -> int:
        held = 0
        for pid in (pid for pid, role in self._pids.items() if role == "edge"):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                try:
                    held += os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith("socket:")
                except OSError:
                    continue  # closed meanwhile
        return held

    async def check_service(self, user: str) -> None:
        """A message for this user is accepted, delivered and acknowledged, and the engine is ready."""
        deadline = time.monotonic() + _WITHIN_S
        async with self._engine.connect(user) as socket:
            await self._engine.receive(socket, "welcome", _WITHIN_S)
            (result,) = await self._engine.publish({"user": user, "type": "still.here"})
            frame = await self._engine.receive(socket, "messages", _WITHIN_S)
            assert [message["id"] for message in frame["messages"]] == [result["id"]]
            await socket.send(json.dumps({"type": "ack", "seq": result["seq"]}))
        async with httpx.AsyncClient(base_url=self._engine.url, timeout=_WITHIN_S, trust_env=False, verify=False) as client:
            ready = await client.get("/readyz")
            assert ready.status_code == 200, ready.text
        assert time.monotonic() < deadline
