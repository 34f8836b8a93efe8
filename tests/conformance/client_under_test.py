"""How the kit runs a client: it is started, says what it shows, and is told what to acknowledge.

Any program can be one. It is run with these variables and lines of JSON:

    NOTIFY_URL     where the server is, http://127.0.0.1:PORT
    NOTIFY_TOKEN   its token
    NOTIFY_ACK     `auto`: it acknowledges each message when it has shown it; `manual`: when it is told to
    stdout         {"seq": 7, "id": "m7"} for each message that it shows, at once (flush!)
    stdin          {"ack": "m7"}  or  {"nack": "m7", "reason": "why"};  at the end of the input the program ends
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
from collections.abc import Collection
from typing import Any, Protocol

from tests.conformance.connections import Transport

STOP_TIMEOUT_S = 10


class ClientUnderTest(Protocol):
    """A client that a promise is checked with. Each promise starts it once."""

    transports: Collection[Transport]
    """Those that it falls back to, best first."""

    async def start(self, url: str, token: str, *, manual: bool = False) -> None: ...

    async def shown(self) -> list[int]:
        """The numbers of the messages that its application was shown, in order."""
        ...

    async def ack(self, message_id: str) -> None: ...

    async def nack(self, message_id: str, reason: str) -> None: ...

    async def stop(self) -> None: ...


class CommandClient:
    """A program that speaks the lines above."""

    def __init__(self, command: str, transports: Collection[Transport] = ("websocket",)) -> None:
        self.command = shlex.split(command)
        self.transports = transports
        self._shown: list[int] = []

    async def start(self, url: str, token: str, *, manual: bool = False) -> None:
        env = os.environ | {"NOTIFY_URL": url, "NOTIFY_TOKEN": token, "NOTIFY_ACK": "manual" if manual else "auto"}
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*self.command, env=env, stdin=pipe, stdout=pipe)
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self._shown.append(json.loads(line)["seq"])

    async def shown(self) -> list[int]:
        return list(self._shown)

    async def ack(self, message_id: str) -> None:
        await self._tell({"ack": message_id})

    async def nack(self, message_id: str, reason: str) -> None:
        await self._tell({"nack": message_id, "reason": reason})

    async def _tell(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        await self._process.stdin.drain()

    async def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        await self._reading
