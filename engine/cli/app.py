"""The application `engine`: its commands, its help, and how it ends on an error.

Nothing heavy is imported before a command needs it, so that `engine --help` and `engine token` answer at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from engine import __version__
from engine.cli import client_commands, operator_commands
from engine.errors import EngineError

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
  engine status                          processes, counters and latencies
  engine config                          every setting, and where its value comes from
  engine down                            drains and stops

Settings: options, ENGINE_<NAME> in the environment, or engine.toml, in this order.""",
)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"engine {__version__}\n")
        raise typer.Exit


@app.callback()
def options_of_all(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """The application's own help is in the constructor."""


operator_commands.register(app)
client_commands.register(app)


def main() -> None:
    """Entry point of `engine` and `python -m engine`: an `EngineError` is printed in one line, with exit code 1."""
    try:
        app()
    except EngineError as error:
        Console(stderr=True).print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(1)
