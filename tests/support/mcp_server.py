"""`engine mcp` over HTTP in the test's process, and the tools by name that the public conformance suite of MCP wants of a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from starlette.types import ASGIApp

from engine import Publisher
from engine.features.mcp.commands.mcp_tasks import takes_tasks, told
from tests.support.free_port import free_port
from tests.support.waiting import until


@asynccontextmanager
async def served(application: ASGIApp) -> AsyncIterator[str]:
    """The application on a server of its own; where its MCP is."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(application, port=port, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.should_exit = True
        await serving


def add_fixtures(server: MCPServer, url: str, token: str) -> None:
    """Add `greet`, and `slow_compute`: a question to a user whose deadline is over so many seconds later."""
    asked = 0

    @server.tool(description="Greet somebody.")  # the suite wants a description of each tool
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    @server.tool()
    async def slow_compute(context: Context, seconds: float, label: str = "") -> dict[str, Any]:
        """Ask, and get no answer for so many seconds."""
        nonlocal asked
        asked += 1
        id, ask = f"{label}{asked}", {"answers": [{"id": "yes", "label": "Yes"}], "deadline": max(seconds, 0.3)}
        async with Publisher(url, token) as publisher:
            await publisher.publish(type="agent.ask", user="u1", id=id, ask=ask)
            waited_s = 0 if takes_tasks(context.client_capabilities) else seconds + 5
            return told(id, "u1", await publisher.question(id, user="u1", wait_s=waited_s))
