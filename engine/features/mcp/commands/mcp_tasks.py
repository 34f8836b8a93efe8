"""Tasks of the Model Context Protocol (SEP-2663, `io.modelcontextprotocol/tasks`): a question without an answer is a task.

    tools/call     a tool that tells of an open question becomes a task, for a client that declares the extension
    tasks/get      working while the question is open; completed, with the result of the tool; cancelled when the question was withdrawn
    tasks/cancel   withdraws the question; one that has an answer keeps it
    tasks/update   changes nothing: a question wants no input of the agent

The process keeps nothing. The id of a task is made of the user and the question's id, so any process finds it, also after a restart, for as
long as the engine keeps the question. It is no secret: every request brings a token, and the engine decides by that.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver.server import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import decode_header_value
from mcp_types import CallToolRequestParams, CallToolResult, ClientCapabilities, RequestParams, TextContent
from mcp_types.jsonrpc import HEADER_MISMATCH, INTERNAL_ERROR, INVALID_PARAMS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import to_builtins

from engine.client.answers import AskedQuestion
from engine.client.publisher import Publisher
from engine.errors import ClientError, Refused

EXTENSION: Final = "io.modelcontextprotocol/tasks"

_POLL_MS: Final = 2000
"""Between two looks of a client: people take longer, and a look costs the engine one read."""

_READ_MS: Final = 3_600_000
"""How long after the deadline a client may count on the answer. An engine keeps it for a week, by default."""

Connect = Callable[[Mapping[str, str]], AbstractAsyncContextManager[Publisher]]
"""(headers of the request) -> a publisher with the token of the call."""


class _TaskParams(RequestParams):
    task_id: str


def takes_tasks(capabilities: ClientCapabilities | None) -> bool:
    """Does the client of a call declare the extension?"""
    return EXTENSION in ((capabilities and capabilities.extensions) or {})


def told(id: str, user: str, asked: AskedQuestion) -> dict[str, Any]:
    """A question and its answer as tools tell it."""
    return {"id": id, "user": user, "state": asked.state, **(to_builtins(asked.answer) if asked.answer else {})}


class QuestionTasks(Extension):
    """The extension."""

    identifier = EXTENSION

    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    def methods(self) -> Sequence[MethodBinding]:
        served = {"tasks/get": self._get, "tasks/cancel": self._cancel, "tasks/update": self._update}
        versions = frozenset(MODERN_PROTOCOL_VERSIONS)
        return [MethodBinding(method, _TaskParams, handler, versions) for method, handler in served.items()]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """Make a task of a question that is open."""
        result = await call_next(ctx)
        shown = result.structured_content if isinstance(result, CallToolResult) else None
        if not takes_tasks(ctx.session.client_capabilities) or not isinstance(shown, dict) or shown.get("state") != "open":
            return result
        user, id = shown["user"], shown["id"]
        async with self._asked_for(ctx) as publisher:
            return {"resultType": "task", **_task(user, id, await publisher.question(id, user=user))}

    async def _get(self, ctx: ServerRequestContext[Any, Any], params: _TaskParams) -> HandlerResult:
        async with self._asked_for(ctx, params) as publisher:
            user, id = _named(params.task_id)
            asked = await publisher.question(id, user=user)
        task = _task(user, id, asked)
        if task["status"] == "completed":
            shown = told(id, user, asked)
            text = TextContent(type="text", text=msgspec.json.encode(shown).decode())
            result = CallToolResult(content=[text], structured_content=shown)
            task["result"] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return task

    async def _cancel(self, ctx: ServerRequestContext[Any, Any], params: _TaskParams) -> HandlerResult:
        async with self._asked_for(ctx, params) as publisher:
            user, id = _named(params.task_id)
            try:
                await publisher.withdraw(id, user=user)
            except Refused as refused:
                if refused.status != 409:  # it has an answer, which is not withdrawn
                    raise
        return {}

    async def _update(self, ctx: ServerRequestContext[Any, Any], params: _TaskParams) -> HandlerResult:
        async with self._asked_for(ctx, params) as publisher:
            user, id = _named(params.task_id)
            await publisher.question(id, user=user)
        return {}

    @asynccontextmanager
    async def _asked_for(self, ctx: ServerRequestContext[Any, Any], params: _TaskParams | None = None) -> AsyncIterator[Publisher]:
        """A publisher with the token of a request. What the engine refuses is the protocol's error."""
        headers: Mapping[str, str] = ctx.request.headers if ctx.request is not None else {}
        if params is not None:
            require_client_extension(ctx, EXTENSION)
            if ctx.request is not None and decode_header_value(headers.get("mcp-name")) != params.task_id:
                raise MCPError(HEADER_MISMATCH, "the header Mcp-Name is not the `taskId`")
        try:
            async with self._connect(headers) as publisher:
                yield publisher
        except ClientError as error:
            unknown = isinstance(error, Refused) and error.status == 404
            raise MCPError(INVALID_PARAMS if unknown else INTERNAL_ERROR, str(error)) from error


def _task(user: str, id: str, asked: AskedQuestion) -> dict[str, Any]:
    status = {"open": "working", "withdrawn": "cancelled"}.get(asked.state, "completed")
    return {
        "taskId": urlsafe_b64encode(msgspec.json.encode([user, id])).rstrip(b"=").decode(),
        "status": status,
        "createdAt": _time(asked.asked),
        "lastUpdatedAt": _time(asked.answer.at if asked.answer else asked.asked),
        "ttlMs": asked.deadline - asked.asked + _READ_MS,
        "pollIntervalMs": _POLL_MS,
    }


def _named(task_id: str) -> tuple[str, str]:
    """The user and the question. Raises MCPError: there can be no such task."""
    try:
        return msgspec.json.decode(urlsafe_b64decode(task_id + "=" * (-len(task_id) % 4)), type=tuple[str, str])
    except (binascii.Error, msgspec.DecodeError, UnicodeError, ValueError):
        raise MCPError(INVALID_PARAMS, "no task has this id") from None


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
