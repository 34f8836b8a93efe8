"""The application `engine`: its help, the commands of the kernel, and how it ends on an error. `engine.__main__` adds those of features.

Nothing heavy is imported before a command needs it, so that `engine --help` and `engine token` answer at once.
"""

from __future__ import annotations

import codecs
import errno
import inspect
import io
import json
import os
import sys
from typing import Annotated, Final, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from engine import __version__
from engine.cli import client_commands, operator_commands, setup_commands
from engine.errors import EngineError

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

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
  engine history alice                   what has become of her messages
  engine init                            an engine.toml of all settings
  engine config                          all settings and their sources
  engine doctor                          what machine and settings lack
  engine verify                          checks every stored record
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


for commands in (operator_commands, setup_commands, client_commands):
    commands.register(app)


def flow_help(commands: typer.Typer) -> None:
    """Let the prose of each command's help flow to the terminal's width. typer keeps the line ends of a docstring, as its examples need."""
    for command in commands.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(one if one.startswith("[dim]") else one.replace("\n", " ") for one in paragraphs)
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            flow_help(group.typer_instance)


def main() -> None:
    """Run a command. An `EngineError`, or a full disk, is printed in one line, with exit code 1; the end of a reader is not."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("engine", _escaped)
        sys.stdout.reconfigure(errors="engine")
    try:
        try:
            app()
        except EngineError as error:
            _end(str(error))
        except UnicodeEncodeError:
            wrong = next((word for word in sys.argv if not _is_unicode(word)), None)
            if wrong is None:
                raise
            _end(f"{wrong!a} is not UTF-8")
        finally:
            sys.stdout.flush()  # here it can be reported; at the interpreter's end it is a traceback
    except BrokenPipeError:  # the reader has ended, as `head` does
        _leave_output()
        sys.exit(1)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _end(f"{error.filename or 'standard output'}: {error.strerror}")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """What the encoding of standard output lacks, as JSON escapes it: a line of JSON stays one."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _is_unicode(word: str) -> bool:
    """Whether a word of the command line could be decoded."""
    return not any("\udc80" <= char <= "\udcff" for char in word)


def _end(reason: str) -> NoReturn:
    Console(stderr=True).print(f"[red]error:[/] {escape(reason)}", soft_wrap=True, highlight=False)
    try:
        sys.stdout.flush()
    except OSError:
        _leave_output()
    sys.exit(1)


def _leave_output() -> None:
    """What is left cannot be written, and must not be tried again at the interpreter's end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
