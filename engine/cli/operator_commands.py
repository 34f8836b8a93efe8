"""The commands of an operator: `engine up`, `status`, `config`, `scale`, `rebalance`, `upgrade`, `drain` and `down`.

`up` runs the engine in its own process (`engine.cli.up`); the others find a running one by the state file in the data directory.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer
from rich.console import Console
from rich.markup import escape

from engine.cli.json_output import print_json
from engine.cli.options import DataDir, GivenToken, RedisUrl, setting_option
from engine.cli.settings import Loaded, load, load_with_sources, remark
from engine.config import Config
from engine.errors import EngineError

DOWN_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.05
_DRAIN_POLL_S: Final = 0.5


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (up, status, config, scale, rebalance, upgrade, drain, down):
        app.command()(command)


def up(
    context: typer.Context,
    port: Annotated[int | None, setting_option("port")] = None,
    host: Annotated[str | None, setting_option("host")] = None,
    shards: Annotated[int | None, setting_option("shards")] = None,
    schedulers: Annotated[int | None, setting_option("schedulers")] = None,
    edges: Annotated[int | None, setting_option("edges")] = None,
    redis_url: RedisUrl = None,
    data_dir: DataDir = None,
    address: Annotated[str | None, setting_option("address")] = None,
    place: Annotated[str | None, setting_option("place")] = None,
) -> None:
    """Start an engine and stay in the foreground; Ctrl-C drains and stops it.

    [dim]engine up
    engine up --port 9000 --shards 4
    engine up --address auto --redis redis://10.0.0.5:6379/0 --host 0.0.0.0
    engine up --address auto --place anywhere --redis redis://127.0.0.1:6379/0    # to try it on a cluster as it is[/dim]
    """
    from engine.cli.up import up as run

    raise typer.Exit(run(_loaded(context.params).config, Console()))


def config(
    json: Annotated[bool, typer.Option("--json", help="All of it as JSON, for programs.")] = False,
    internal: Annotated[
        bool, typer.Option("--internal", help="Internal limits too. They are not part of the interface and may change in any release.")
    ] = False,
) -> None:
    """Show every setting: its value, where that comes from, and what it means.

    A value is taken from ENGINE_<NAME> in the environment, else from engine.toml in the working directory, where its key stands in its
    section, else it is the default. Options of `engine up` go before all of them.

    [dim]engine config
    ENGINE_PORT=9000 engine config
    engine config --json | jq '.settings[] | select(.source != "default")'[/dim]
    """
    from engine.cli.settings_report import report, settings_table

    rows = report(_loaded({}), internal)
    if json:
        print_json({"settings": rows})
    else:
        Console().print(settings_table(rows))


def _loaded(options: Mapping[str, Any]) -> Loaded:
    """The settings, with these options of the command. Remarks go to standard error: `engine config --json` prints nothing but JSON."""
    loaded = load_with_sources(options)
    if text := remark(loaded.left_alone):
        Console(stderr=True).print(f"[yellow]warning:[/] {escape(text)}", soft_wrap=True)
    return loaded


def status(
    json: Annotated[bool, typer.Option("--json", help="The whole status as JSON, for programs.")] = False,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Show the running engine: its processes, their CPU, memory and restarts, counters and latencies.

    [dim]engine status
    engine status --json | jq .totals[/dim]
    """
    from engine.cli.status_report import ask_status, print_status

    found = ask_status(load({"data_dir": data_dir}), token)
    if json:
        print_json(found)
    else:
        print_status(found, Console())


def scale(
    shards: Annotated[int | None, typer.Option(help="How many shards the engine should have.", min=1, max=32)] = None,
    schedulers: Annotated[int | None, typer.Option(help="How many schedulers.", min=1, max=16)] = None,
    edges: Annotated[int | None, typer.Option(help="How many edges.", min=1, max=64)] = None,
    force: Annotated[bool, typer.Option("--force", help="Also more than the nodes carry: some may wait for a machine.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Run with other numbers of shards, schedulers and edges from now on, while the engine serves; shows the progress.

    Ctrl-C ends the display only. Nothing is refused or lost: a user whose shard changes is paused for some 100 ms.

    [dim]engine scale --shards 4
    engine scale --edges 2 --schedulers 2[/dim]
    """
    from engine.cli.scaling_progress import follow, request

    numbers = {name: number for name, number in (("shards", shards), ("schedulers", schedulers), ("edges", edges)) if number is not None}
    if not numbers:
        raise EngineError("at least one of --shards, --schedulers and --edges is needed")
    config = load({"data_dir": data_dir})
    follow(config, request(data_dir, "/v1/scale", numbers | ({"force": True} if force else {})), Console())


def rebalance(data_dir: DataDir = None) -> None:
    """Move slots from busy shards to idle ones, by the messages that each slot gets; shows the progress.

    [dim]engine rebalance[/dim]
    """
    from engine.cli.scaling_progress import follow, request

    config = load({"data_dir": data_dir})
    follow(config, request(data_dir, "/v1/rebalance", None), Console())


def upgrade(data_dir: DataDir = None) -> None:
    """Replace every process by one that runs the code that is on its node by now, while the engine serves; shows the progress.

    Install the new version on all nodes first. Ctrl-C ends the display only. Until it is done, the version before can be installed again
    and upgraded to; afterwards the new version writes what the old one may not read.

    [dim]pip install --upgrade ray-notification-engine && engine upgrade[/dim]
    """
    from engine.cli.scaling_progress import check_formats, follow_upgrade, request

    config = load({"data_dir": data_dir})
    check_formats(config)
    follow_upgrade(config, request(data_dir, "/v1/upgrade", None), Console())


def drain(
    edge: Annotated[str, typer.Argument(help="Name of the edge, such as edge-0; see `engine status`.")],
    data_dir: DataDir = None,
) -> None:
    """Let one edge leave its clients to the other edges, then start it anew. No publish is refused, no message is lost.

    It accepts no new connection, closes those that it has over `drain_spread_ms`, answers open requests, and ends.

    [dim]engine drain edge-0[/dim]
    """
    from engine.cli.local_engine import find_engine
    from engine.cli.operator_request import ask
    from engine.cli.status_report import ask_status

    config = load({"data_dir": data_dir})
    target = find_engine(data_dir, None, None, "engine-drain", ["operator"], "default")
    before = {f"edge-{row['index']}": row["pid"] for row in ask_status(config)["edges"]}.get(edge)
    path = f"/v1/edges/{quote(edge, safe='')}/drain"
    connections = ask(target, "POST", path, advice="`engine status` shows whether it drains")["connections"]
    console = Console()
    console.print(f"{edge} leaves {connections} connections to the other edges")
    deadline = time.monotonic() + (config.drain_spread_ms + 3 * config.drain_ms) / 1000 + config.start_timeout_s
    while not _serves_anew(config, edge, before):
        if time.monotonic() > deadline:
            raise EngineError(f"{edge} is not back; `engine status` shows its state")
        time.sleep(_DRAIN_POLL_S)
    console.print(f"{edge} is drained, and serves again in a new process")


def _serves_anew(config: Config, edge: str, before: int | None) -> bool:
    """Whether the edge has another process. Not while nobody answers: the edge that leaves may have been asked."""
    from engine.cli.status_report import ask_status

    try:
        rows = ask_status(config)["edges"]
    except EngineError:
        return False
    return any(f"edge-{row['index']}" == edge and row["ready"] and row["pid"] != before for row in rows)


def down(data_dir: DataDir = None) -> None:
    """Drain and stop the engine of this data directory."""
    from engine.cli.state_file import running_state
    from engine.store.embedded_redis import lock_owner

    config = load({"data_dir": data_dir})
    state = running_state(config.data_dir)
    console = Console()
    if state is None and (owner := lock_owner(Path(config.data_dir))):
        raise EngineError(f"process {owner} uses {config.data_dir}, and no engine is ready there yet; `kill {owner}` stops it")
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
        time.sleep(_POLL_S)
    console.print("stopped")
