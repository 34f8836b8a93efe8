"""`engine mcp` with the SDK's own client: an agent asks, goes away, comes back and reads the answer; over stdio and over HTTP."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp import StdioServerParameters
from mcp.client.client import Client as McpClient
from mcp.client.streamable_http import streamable_http_client
from redis.asyncio import Redis

from engine import Client, __version__
from engine.features.mcp.commands.mcp_tools import BearerNeeded, tools
from tests.support.edge_world import EdgeWorld, edge_world
from tests.support.mcp_server import served

ASK: dict[str, Any] = {
    "id": "q1",
    "user": "u1",
    "title": "Deploy?",
    "answers": [{"id": "yes", "label": "Approve"}, {"id": "no", "label": "Deny"}],
    "wait_s": 0.05,
}


@pytest.fixture
async def world(redis_client: Redis) -> AsyncIterator[EdgeWorld]:
    async with edge_world(storage=redis_client, question_poll_ms=20) as world:
        yield world


async def call(agent: McpClient, tool: str, **arguments: Any) -> Any:
    result = await agent.call_tool(tool, arguments)
    assert not result.is_error, result
    return result.structured_content


@asynccontextmanager
async def over_http(world: EdgeWorld, token: str) -> AsyncIterator[McpClient]:
    """An agent on a server of its own."""
    async with (
        served(BearerNeeded(tools(world.url(), None).streamable_http_app())) as url,
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, trust_env=False) as http,
        McpClient(streamable_http_client(url, http_client=http)) as agent,
    ):
        yield agent


async def test_an_agent_asks_goes_away_comes_back_and_reads_the_answer(world: EdgeWorld) -> None:
    arguments = ["-m", "engine", "mcp", "--url", world.url(), "--token", world.token("agent", "publish")]
    stdio = StdioServerParameters(command=sys.executable, args=arguments)
    async with McpClient(stdio) as agent:
        assert agent.server_info.version == __version__
        assert {tool.name for tool in (await agent.list_tools()).tools} == {"publish", "ask", "withdraw", "explain", "history", "inbox"}
        assert await call(agent, "ask", **ASK) == {"id": "q1", "user": "u1", "state": "open"}
    async with Client(world.url(), world.token("u1", "connect")) as client:
        message = await anext(client)
        assert message.data["title"] == "Deploy?"
        await client.answer(message.id, "yes")
    async with over_http(world, world.token("agent", "publish")) as agent:
        answer = await call(agent, "ask", **ASK)
        assert (answer["state"], answer["answer"], answer["by"]) == ("answered", "yes", "u1")
        assert (await call(agent, "publish", type="build.done", user="u1", data={"title": "Done"}))["status"] == "accepted"
        page = await call(agent, "inbox", user="u1")
        assert "build.done" in [one["type"] for one in page["messages"]]
        assert (await call(agent, "history", user="u1", id="none"))["state"] == "unknown"
        assert (await call(agent, "explain", type="build.done", user="u1"))["result"][0]["decision"] == "deliver"


async def test_a_token_without_the_scope_may_nothing(world: EdgeWorld) -> None:
    async with over_http(world, world.token("agent", "connect")) as agent:
        result = await agent.call_tool("publish", {"type": "a.b", "user": "u1"})
        assert result.is_error
        assert "publish" in str(result.content)


async def test_http_is_closed_without_a_token(world: EdgeWorld) -> None:
    application = BearerNeeded(tools(world.url(), None).streamable_http_app())
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(application), base_url="http://127.0.0.1") as http:
        assert (await http.post("/mcp", json={})).status_code == 401
