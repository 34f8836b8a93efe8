"""`engine mcp`."""

from __future__ import annotations

from typing import Annotated

import typer

from engine.cli.options import DataDir, GivenToken, TenantOption, Url
from engine.errors import EngineError


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(mcp)


def mcp(
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535, help="Serve streamable HTTP on 127.0.0.1, not stdio.")] = None,
    tenant: TenantOption = "default",
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Serve tools of the Model Context Protocol to an agent: publish, ask, withdraw, explain, history, inbox. Needs the extra `mcp`.

    On standard input and output it uses one token with the scope `publish`. Over HTTP each request brings its own, as a bearer token.

    [dim]engine mcp
    engine mcp --port 8765   # http://127.0.0.1:8765/mcp[/dim]
    """
    from engine.cli.local_engine import find_engine

    try:
        from engine.features.mcp.commands.mcp_tools import BearerNeeded, tools
    except ModuleNotFoundError as error:
        raise EngineError(f"{error}: install the extra, pip install 'ray-notification-engine[mcp]'") from error
    target = find_engine(data_dir, url, token, "engine-mcp", ["publish"], tenant)
    if port is None:
        tools(target.url, target.token).run("stdio")
        return
    import uvicorn

    uvicorn.run(BearerNeeded(tools(target.url, None).streamable_http_app()), host="127.0.0.1", port=port, log_level="warning")
