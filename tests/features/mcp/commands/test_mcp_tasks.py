"""A question as a task of MCP, with the SDK's own client: it asks, goes away, comes back with the id of the task, and reads the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Literal

import httpx2
import pytest
from mcp.client.client import Client as McpClient
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, Request, RequestParams, Result
from mcp_types.jsonrpc import HEADER_MISMATCH, INTERNAL_ERROR, INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY
from redis.asyncio import Redis

from engine import Client
from engine.features.mcp.commands.mcp_tasks import EXTENSION
from engine.features.mcp.commands.mcp_tools import BearerNeeded, tools
from tests.support.edge_world import EdgeWorld, edge_world
from tests.support.mcp_server import served

ASK: dict[str, Any] = {
    "id": "q1",
    "user": "u1",
    "title": "Deploy?",
    "answers": [{"id": "yes", "label": "Approve"}, {"id": "no", "label": "Deny"}],
    "default": "no",
}


class Task(Result):
    """What a client gets of a task, when it is created and later."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: str
    created_at: str
    last_updated_at: str
    ttl_ms: int
    poll_interval_ms: int


class Looked(Task):
    result_type: Literal["complete"] = "complete"  # type: ignore[assignment]
    result: dict[str, Any] | None = None


class TaskParams(RequestParams):
    task_id: str


class TaskRequest(Request[TaskParams, str]):
    name_param: ClassVar[str | None] = "taskId"


async def kept(_task: Task, _context: ClaimContext) -> CallToolResult:
    """Of a client that keeps the id, and goes on."""
    raise AssertionError


class Tasks(ClientExtension):
    identifier = EXTENSION

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Task, resolve=kept)]


@pytest.fixture
async def world(redis_client: Redis) -> AsyncIterator[EdgeWorld]:
    async with edge_world(storage=redis_client, question_poll_ms=20) as world:
        yield world


@asynccontextmanager
async def agent(world: EdgeWorld, *extensions: ClientExtension, scope: str = "publish", **headers: str) -> AsyncIterator[McpClient]:
    """An agent and a process of its own that serves it."""
    async with served(BearerNeeded(tools(world.url(), None).streamable_http_app())) as url:
        sent = {"Authorization": f"Bearer {world.token('agent', scope)}", **headers}
        async with (
            httpx2.AsyncClient(headers=sent, trust_env=False) as http,
            McpClient(streamable_http_client(url, http_client=http), extensions=list(extensions)) as client,
        ):
            yield client


async def begun(client: McpClient, **members: Any) -> Task:
    task = await client.session.call_tool("ask", ASK | members, allow_claimed=True)
    assert isinstance(task, Task), task
    return task


async def asked_about(client: McpClient, method: str, task_id: str) -> Any:
    kind: Any = Looked if method == "tasks/get" else Result
    return await client.session.send_request(TaskRequest(method=method, params=TaskParams(task_id=task_id)), kind)


async def test_a_task_outlives_agent_and_server_and_has_the_answer(world: EdgeWorld) -> None:
    async with agent(world, Tasks()) as client:
        task = await begun(client)
        assert (task.status, task.created_at, round(task.ttl_ms / 1000)) == ("working", task.last_updated_at, 90_000)
        looked = await asked_about(client, "tasks/get", task.task_id)
        assert (looked.status, looked.result, looked.task_id) == ("working", None, task.task_id)
        assert (await begun(client)).task_id == task.task_id, "asking again asks nothing twice"
    async with Client(world.url(), world.token("u1", "connect")) as user:
        assert (await anext(user)).data["title"] == "Deploy?"
        given = await user.answer("q1", "yes")
    async with agent(world, Tasks()) as client:
        looked = await asked_about(client, "tasks/get", task.task_id)
        assert looked.status == "completed"
        told = looked.result["structuredContent"]
        assert (told["state"], told["answer"], told["by"], told["at"]) == ("answered", "yes", "u1", given.at)
        assert looked.last_updated_at > task.created_at
        direct = await client.session.call_tool("ask", ASK, allow_claimed=True)
        assert isinstance(direct, CallToolResult)
        assert direct.structured_content == told, "what has an answer is no task"


async def test_a_cancelled_task_is_a_withdrawn_question(world: EdgeWorld) -> None:
    async with agent(world, Tasks()) as client:
        task = await begun(client)
        await asked_about(client, "tasks/cancel", task.task_id)
        assert (await asked_about(client, "tasks/get", task.task_id)).status == "cancelled"
        await asked_about(client, "tasks/cancel", task.task_id)
        await asked_about(client, "tasks/update", task.task_id)
        answered = await begun(client, id="q2")
        async with Client(world.url(), world.token("u1", "connect")) as user:
            await user.answer("q2", "yes")
        await asked_about(client, "tasks/cancel", answered.task_id)
        assert (await asked_about(client, "tasks/get", answered.task_id)).status == "completed", "an answer is not withdrawn"


async def test_an_agent_without_tasks_waits_and_may_withdraw(world: EdgeWorld) -> None:
    async with agent(world) as client:
        result = await client.call_tool("ask", {**ASK, "wait_s": 0.05})
        assert result.structured_content == {"id": "q1", "user": "u1", "state": "open"}
        withdrawn = await client.call_tool("withdraw", {"id": "q1", "user": "u1"})
        assert (withdrawn.structured_content or {})["state"] == "withdrawn"
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            with pytest.raises(MCPError) as refused:
                await asked_about(client, method, "any")
            assert refused.value.code == MISSING_REQUIRED_CLIENT_CAPABILITY


@pytest.mark.parametrize("id", ["", "any", "WyJ1MSIsIm5vbmUiXQ", "WzEsMl0", "ü"])
async def test_a_task_that_is_not_known_is_an_invalid_parameter(world: EdgeWorld, id: str) -> None:
    async with agent(world, Tasks()) as client:
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            with pytest.raises(MCPError) as refused:
                await asked_about(client, method, id)
            assert refused.value.code == INVALID_PARAMS


async def test_the_token_of_each_request_decides_about_a_task(world: EdgeWorld) -> None:
    async with agent(world, Tasks()) as client:
        task = await begun(client)
    async with agent(world, Tasks(), scope="metrics") as client:
        for method in ("tasks/get", "tasks/cancel"):
            with pytest.raises(MCPError) as refused:
                await asked_about(client, method, task.task_id)
            assert refused.value.code == INTERNAL_ERROR
            assert "403" in str(refused.value)


async def test_a_header_that_names_another_task_is_refused(world: EdgeWorld) -> None:
    async with agent(world, Tasks()) as client:
        task = await begun(client)
        request = TaskRequest(method="tasks/get", params=TaskParams(task_id=task.task_id))
        TaskRequest.name_param = None
        try:
            with pytest.raises(MCPError) as refused:
                await client.session.send_request(request, Looked)
        finally:
            TaskRequest.name_param = "taskId"
        assert refused.value.code == HEADER_MISMATCH
