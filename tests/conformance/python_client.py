"""The Python client as a client under test.

python -m tests.conformance --client "python -m tests.conformance.python_client" --transports websocket,sse,poll
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys

from engine.client import Client
from engine.client.frames import Message
from engine.errors import ClientError
from tests.conformance.connections import TRANSPORTS

UPGRADE_AFTER_S = 0.3


class PythonClient:
    transports = TRANSPORTS

    def __init__(self) -> None:
        self._shown: list[Message] = []

    async def start(self, url: str, token: str, *, manual: bool = False) -> None:
        self._showing = asyncio.create_task(self._show(Client(url, token, auto_ack=not manual, upgrade_after_s=UPGRADE_AFTER_S)))

    async def _show(self, client: Client) -> None:
        async with client:
            async for message in client:
                self.show(message)

    def show(self, message: Message) -> None:
        """What an application does with a message."""
        self._shown.append(message)

    async def shown(self) -> list[int]:
        return [message.seq for message in self._shown]

    async def ack(self, message_id: str) -> None:
        await self._find(message_id).ack()

    async def nack(self, message_id: str, reason: str) -> None:
        await self._find(message_id).nack(reason)

    def _find(self, message_id: str) -> Message:
        return next(message for message in self._shown if message.id == message_id)

    async def stop(self) -> None:
        self._showing.cancel()
        with contextlib.suppress(asyncio.CancelledError, ClientError):  # ended by this program, or by the server
            await self._showing


class PrintingClient(PythonClient):
    """It, as a program that the kit runs."""

    def show(self, message: Message) -> None:
        super().show(message)
        print(json.dumps({"seq": message.seq, "id": message.id}), flush=True)


async def main() -> None:
    """Show what arrives, settle it when told to, until the input ends."""
    client = PrintingClient()
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    await client.start(os.environ["NOTIFY_URL"], os.environ["NOTIFY_TOKEN"], manual=os.environ["NOTIFY_ACK"] == "manual")
    while line := await commands.readline():
        command = json.loads(line)
        if "ack" in command:
            await client.ack(command["ack"])
        else:
            await client.nack(command["nack"], command["reason"])
    await client.stop()


if __name__ == "__main__":
    asyncio.run(main())
