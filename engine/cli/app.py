"""The command line: `engine up` and what goes with it. `register` of the client adds token, publish, listen and replay.

Every option is also `ENGINE_<NAME>` in the environment and a key of `engine.toml`; what is typed wins. Nothing heavy is imported
before a command needs it, so `engine --help` and `engine token` answer at once.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from engine import __version__
from engine.cli.client_commands import register
from engine.cli.settings import load
from engine.config import Config
from engine.errors import EngineError

DOWN_TIMEOUT_S: Final = 20.0

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="""Acknowledged notifications to end users over WebSocket, SSE and long polling, on Ray and Redis.

[bold]Try it[/bold]

  engine up                              prints a link to a live demo
  engine listen alice                    prints and acknowledges
  engine publish alice post.liked --data '{"by": "bob"}'
  engine status                          who runs where, and how fast
  engine down                            drains and stops

Settings: options, ENGINE_<NAME> in the environment, or engine.toml, in this order.""",
)

DataDir = Annotated[
    str | None, typer.Option("--data-dir", help="Directory of the engine's secret, state and (its own) Redis.", show_default=".engine")
]


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"engine {__version__}\n")
        raise typer.Exit


@app.callback()
def options_of_all(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """The application's own help stands above, with the application."""


@app.command()
def up(
    port: Annotated[int | None, typer.Option(help="Port of the edges; 0 picks a free one.", show_default="8000")] = None,
    host: Annotated[str | None, typer.Option(help="Address the edges listen on.", show_default="127.0.0.1")] = None,
    shards: Annotated[int | None, typer.Option(help="Shard actors: users are spread over them.", show_default="2")] = None,
    schedulers: Annotated[int | None, typer.Option(help="Scheduler actors: delays and retries.", show_default="1")] = None,
    edges: Annotated[int | None, typer.Option(help="Edge actors: client connections.", show_default="1")] = None,
    redis: Annotated[
        str | None, typer.Option(help="URL of a Redis (redis://, rediss://, unix://); without it the engine starts one.")
    ] = None,
    data_dir: DataDir = None,
    address: Annotated[str | None, typer.Option(help="Ray cluster to join: auto, or HOST:PORT; without it a local Ray is started.")] = None,
) -> None:
    """Start an engine and stay in the foreground; Ctrl-C drains and stops it.

    [dim]engine up
    engine up --port 9000 --shards 4
    engine up --address auto --redis redis://10.0.0.5:6379/0 --host 0.0.0.0[/dim]
    """
    from engine.cli.up import up as run

    options = {
        "port": port,
        "host": host,
        "shards": shards,
        "schedulers": schedulers,
        "edges": edges,
        "redis_url": redis,
        "data_dir": data_dir,
        "address": address,
    }
    raise typer.Exit(run(_config(options), Console()))


@app.command()
def status(
    json: Annotated[bool, typer.Option("--json", help="The whole status as JSON, for programs.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Show the running engine: who runs where, CPU, memory, restarts, messages, latency."""
    import msgspec

    config = _config({"data_dir": data_dir})
    found = _ask_status(config)
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
        return
    console = Console()
    console.print(_status_table(found))
    totals = found["totals"]
    latency = ", ".join(f"{name[:-3]} {totals[name]:g} ms" for name in ("p50_ms", "p95_ms", "p99_ms") if totals.get(name) is not None)
    console.print(
        f"\n{totals['connections']} connections, {totals['pending']} pending, "
        f"{totals['published']} published, {totals['acknowledged']} acknowledged{'; ' + latency if latency else ''}"
    )
    if totals.get("quarantined"):
        console.print(f"[red]{totals['quarantined']} stored records could not be read and were moved aside[/]; the shards' logs say which")


@app.command()
def scale(
    shards: Annotated[int, typer.Option(help="How many shards the engine should have.", min=1, max=1024)],
    data_dir: DataDir = None,
) -> None:
    """Say how to run with another number of shards: this release moves users between shards at a start, not while it runs."""
    config = _config({"data_dir": data_dir})
    state = _state(config)
    if state is None:
        raise EngineError(f"no engine runs on {config.data_dir}; start one with `engine up --shards {shards}`")
    have = len(_ask_status(config)["shards"])
    if have == shards:
        Console().print(f"the engine has {shards} shards")
        return
    raise EngineError(
        f"the engine has {have} shards, and this release cannot move users between shards that run. "
        f"Stop it (`engine down`), then `engine up --shards {shards}`: its users are spread anew, nothing is lost"
    )


@app.command()
def down(data_dir: DataDir = None) -> None:
    """Drain and stop the engine of this data directory."""
    config = _config({"data_dir": data_dir})
    state = _state(config)
    console = Console()
    if state is None:
        console.print(f"no engine runs on {config.data_dir}")
        return
    os.kill(state.pid, signal.SIGTERM)
    deadline = time.monotonic() + DOWN_TIMEOUT_S
    while state.runs():
        if time.monotonic() > deadline:
            raise EngineError(
                f"engine {state.pid} is still draining after {DOWN_TIMEOUT_S:g} s; `kill -9 {state.pid}` ends it, and loses nothing"
            )
        time.sleep(0.05)
    console.print("stopped")


def main() -> None:
    """Entry point of `engine` and `python -m engine`: errors on purpose are one line and exit code 1."""
    try:
        app()
    except EngineError as error:
        Console(stderr=True).print(f"[red]error:[/] {_escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(1)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _config(options: dict[str, Any]) -> Config:
    return load(options)


def _state(config: Config) -> Any:
    """The state of the engine that runs on the data directory, or None."""
    from engine.cli.state_file import read_state

    state = read_state(config.data_dir)
    return state if state is not None and state.runs() else None


def _ask_status(config: Config) -> dict[str, Any]:
    """`GET /v1/status` of the running engine.

    Raises:
        EngineError: none runs, or it does not answer.
    """
    import urllib.error
    import urllib.request

    import msgspec

    from engine.auth.tokens import load_or_create_secret, mint

    state = _state(config)
    if state is None:
        raise EngineError(f"no engine runs on {config.data_dir}; start one with `engine up`")
    secret = config.jwt_secret or load_or_create_secret(config.data_dir)
    token = mint(secret, "status", ("admin",), 60, now_s=time.time(), issuer=config.jwt_issuer, audience=config.jwt_audience)
    request = urllib.request.Request(f"{state.url}/v1/status", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
            found: dict[str, Any] = msgspec.json.decode(answer.read())
            return found
    except (OSError, msgspec.DecodeError) as error:
        raise EngineError(f"the engine at {state.url} does not answer: {error}; its logs: {state.ray_logs}") from error


def _status_table(found: dict[str, Any]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))  # fits 80 columns, beside addresses of any length
    for title in ("part", "pid", "node", "state"):
        table.add_column(title, no_wrap=True)
    for title in ("cpu %", "MB", "restarts", "conns", "pending"):
        table.add_column(title, no_wrap=True, justify="right")
    rows = [row for kind in ("edges", "shards", "schedulers") for row in found[kind]]
    for row in [*rows, found["controller"]]:
        name = row["role"] if row["role"] == "controller" else f"{row['role']}-{row['index']}"
        state = "[green]ready[/]" if row["ready"] else "[yellow]starting[/]" if row["alive"] else "[red]silent[/]"
        connections = row.get("connections", "")
        if isinstance(connections, dict):
            connections = sum(connections.values())
        numbers = (
            f"{row['cpu_pct']:.1f}",
            f"{row['rss_bytes'] / 1e6:.0f}",
            str(row["restarts"]),
            str(connections),
            str(row.get("pending", "")),
        )
        table.add_row(name, str(row["pid"] or ""), str(row["node"] or ""), state, *numbers)
    redis = found["redis"]
    state = "[green]ready[/]" if redis["alive"] else "[red]silent[/]"
    memory = f"{redis.get('used_memory_bytes', 0) / 1e6:.0f}"
    table.add_row("redis", str(redis.get("pid", "")), "", state, "", memory, str(redis["restarts"]), "", "")
    return table


register(app)
