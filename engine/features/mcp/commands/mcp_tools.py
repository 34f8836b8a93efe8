"""`engine mcp`: tools of the Model Context Protocol, with which an agent notifies users, asks them, and looks at what became of it.

Each call is a request of `engine.client` with a token: on standard input and output the command's own, over HTTP that of the call. So the
engine says what an agent may, as it does for any publisher. The process keeps nothing. An agent that was interrupted asks again under the
same id, of whatever process, and gets the same answer. A question that is open is a task for a client that takes tasks
(`engine.features.mcp.commands.mcp_tasks`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from mcp.server.mcpserver import Context, MCPServer
from msgspec import to_builtins
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from engine import __version__
from engine.client.publisher import Publisher
from engine.errors import Unauthorized
from engine.features.mcp.commands.mcp_tasks import QuestionTasks, takes_tasks, told

WAIT_S_MAX: Final = 50.0
"""Of one call of `ask`: agents give up a call after a minute."""

_RETRY_S: Final = 20.0

_INSTRUCTIONS: Final = (
    "Notify people, and ask them. `ask` under an `id` of your own. While its state is `open`, call it again with the same arguments "
    "to wait: it asks nothing twice."
)


def tools(url: str, token: str | Callable[[], str] | None) -> MCPServer:
    """The tools for the engine at this address.

    Args:
        url: of the engine.
        token: for all calls; None: each call brings its own, as a bearer token.
    """

    @asynccontextmanager
    async def connect(headers: Mapping[str, str]) -> AsyncIterator[Publisher]:
        given = token or _bearer(headers.get("authorization", ""))
        if not given:
            raise Unauthorized("a bearer token of the engine is needed", 401)
        async with Publisher(url, given, retry_for_s=_RETRY_S) as made:
            yield made

    def publisher(context: Context) -> AbstractAsyncContextManager[Publisher]:
        return connect(context.headers or {})

    extensions = [QuestionTasks(connect)]
    server = MCPServer("ray-notification-engine", instructions=_INSTRUCTIONS, version=__version__, extensions=extensions)

    @server.tool()
    async def publish(
        context: Context, type: str, user: str | None = None, topic: str | None = None, data: Any = None, id: str | None = None
    ) -> dict[str, Any]:
        """Notify a user, or a topic. `type`: dotted, `build.failed`; `data`: `{"title", "body"}`; `id`: repeats are harmless."""
        async with publisher(context) as made:
            members: dict[str, Any] = {"topic": topic, "id": id}
            result: dict[str, Any] = to_builtins(await made.publish(type=type, user=user, data=data, **members))
            return result

    @server.tool()
    async def ask(
        context: Context,
        id: str,
        user: str,
        title: str,
        answers: list[dict[str, str]] | None = None,
        body: str = "",
        text: bool = False,
        deadline: str = "1d",
        default: str | None = None,
        wait_s: float = 30.0,
    ) -> dict[str, Any]:
        """Ask a user, and wait up to `wait_s` seconds. `answers`: `[{"id": "yes", "label": "Approve"}]`; `text`: an answer in words.

        While the state is `open`, call it again with the same arguments.
        """
        question: Any = {"answers": answers or [], "text": text, "deadline": deadline, "default": default}
        waited_s = 0.0 if takes_tasks(context.client_capabilities) else min(max(wait_s, 0.0), WAIT_S_MAX)
        async with publisher(context) as made:
            await made.publish(type="agent.ask", user=user, id=id, data={"title": title, "body": body}, ask=question)
            return told(id, user, await made.question(id, user=user, wait_s=waited_s))

    @server.tool()
    async def withdraw(context: Context, id: str, user: str) -> dict[str, Any]:
        """End a question that needs no answer any more. One that has an answer keeps it, and the call fails with it."""
        async with publisher(context) as made:
            await made.withdraw(id, user=user)
            return told(id, user, await made.question(id, user=user))

    @server.tool()
    async def explain(context: Context, type: str, user: str, data: Any = None) -> list[dict[str, Any]]:
        """Tell what the engine would do with a notification now, and why. Changes nothing."""
        async with publisher(context) as made:
            return await made.explain(type=type, user=user, data=data)

    @server.tool()
    async def history(context: Context, user: str, id: str) -> dict[str, Any]:
        """Tell what has become of a notification."""
        async with publisher(context) as made:
            return await made.timeline(user, id) or {"id": id, "state": "unknown"}

    @server.tool()
    async def inbox(context: Context, user: str, limit: int = 20, unread: bool = False) -> dict[str, Any]:
        """Read the newest notifications of a user. Acknowledges nothing."""
        async with publisher(context) as made:
            page: dict[str, Any] = to_builtins(await made.inbox_of(user, limit=limit, unread=unread))
            return page

    return server


class BearerNeeded:
    """An application that is closed without a bearer token; the engine checks the token itself, at each call of a tool."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401."""
        headers = dict(scope.get("headers", ()))
        if scope["type"] == "http" and not _bearer(headers.get(b"authorization", b"").decode("latin-1")):
            refusal = JSONResponse({"error": "a bearer token of the engine is needed"}, 401, {"WWW-Authenticate": "Bearer"})
            await refusal(scope, receive, send)
            return
        await self._application(scope, receive, send)


def _bearer(header: str) -> str:
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
