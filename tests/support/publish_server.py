"""A publish endpoint that follows a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

Items = list[dict[str, Any]]
Step = Callable[["Engine", asyncio.StreamWriter, Items], Awaitable[None]]


async def reply(writer: asyncio.StreamWriter, status: int, body: object, **headers: str) -> None:
    text = json.dumps(body).encode()
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(text)}\r\n{lines}\r\n".encode() + text)
    await writer.drain()


class Engine:
    """Accepts, and remembers ids as an engine does; `steps` come first, one per request."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.requests: list[Items] = []
        self.tokens: list[str] = []
        self.connections = 0
        self.accepted: dict[str, dict[str, Any]] = {}
        self.url = ""

    def accept(self, items: Items) -> dict[str, Any]:
        results = []
        for item in items:
            for user in item.get("users", [item.get("user")]):
                known = item["id"] in self.accepted
                self.accepted.setdefault(item["id"], item)
                results.append(
                    {
                        "id": item["id"],
                        "user": user,
                        "status": "duplicate" if known else "accepted",
                        "seq": list(self.accepted).index(item["id"]) + 1,
                    }
                )
        return {"accepted": len(results), "results": results}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                assert head[0] == "POST /v1/notifications HTTP/1.1"
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
                items = json.loads(await reader.readexactly(int(headers["content-length"])))
                self.tokens.append(headers["authorization"].removeprefix("bearer "))
                self.requests.append(items)
                step = self.steps.pop(0) if self.steps else accepts
                await step(self, writer, items)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client left, or the test is over
        finally:
            writer.close()


async def accepts(engine: Engine, writer: asyncio.StreamWriter, items: Items) -> None:
    await reply(writer, 202, engine.accept(items))


def refuses(status: int, body: object = None, **headers: str) -> Step:
    async def step(engine: Engine, writer: asyncio.StreamWriter, items: Items) -> None:
        await reply(writer, status, body if body is not None else {"detail": f"because {status}"}, **headers)

    return step


async def accepts_and_loses_the_answer(engine: Engine, writer: asyncio.StreamWriter, items: Items) -> None:
    engine.accept(items)
    writer.transport.abort()


async def resets(engine: Engine, writer: asyncio.StreamWriter, items: Items) -> None:
    writer.transport.abort()


async def never_answers(engine: Engine, writer: asyncio.StreamWriter, items: Items) -> None:
    await asyncio.sleep(3600)


def rejects(*bad: str, status: int = 422, tell: bool = True) -> Step:
    async def step(engine: Engine, writer: asyncio.StreamWriter, items: Items) -> None:
        engine.steps.insert(0, step)
        errors = [
            {"index": index, "path": f"$[{index}].type", "detail": "not a type"} for index, item in enumerate(items) if item["type"] in bad
        ]
        if not errors:
            await accepts(engine, writer, items)
            return
        await reply(writer, status, {"detail": "items are not valid", **({"errors": errors} if tell else {})})

    return step


@asynccontextmanager
async def running(*steps: Step) -> AsyncIterator[Engine]:
    engine = Engine(*steps)
    tasks: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks[writer] = asyncio.create_task(engine.serve(reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        for socket in server.sockets:  # a connection that is accepted, and has no transport yet, would be lost with its server, unclosed
            asyncio.get_running_loop().remove_reader(socket.fileno())
        await _turns()  # who was accepted just now gets a task
        server.close()
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        for writer in tasks:
            writer.transport.abort()  # a task that was cancelled before its first step closes nothing
        await _turns()
        await server.wait_closed()


async def _turns() -> None:
    """What was about to happen in the loop has happened."""
    for _ in range(5):
        await asyncio.sleep(0)
