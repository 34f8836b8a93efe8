"""`engine listen`: prints the messages of one user on standard output, and the events of the connection on standard error.

In a terminal it takes answers to questions, too.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape

from engine.cli.local_engine import printable
from engine.cli.typed_answers import Typed, TypedAnswers
from engine.client.client import Client
from engine.client.frames import Message, Part
from engine.client.protocol import Connected, Disconnected, Event, Gap, Revoked, ServerError
from engine.errors import EngineError


async def listen(url: str, token: str | Callable[[], str], *, json: bool, count: int | None, last_event_id: str | None) -> None:
    """Print and acknowledge `count` messages, or without end. A message whose printing fails is not acknowledged."""
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    client = Client(url, token, device="engine-listen", last_event_id=last_event_id, on_event=lambda event: _print_event(event, err))
    answers = TypedAnswers()
    async with client, AsyncExitStack() as stack:
        if not json and sys.stdin.isatty():
            stack.enter_context(_typed(client, answers, err))
        async for message in client:
            try:
                if json:
                    sys.stdout.write(msgspec.json.encode(message).decode() + "\n")
                    sys.stdout.flush()
                else:
                    out.print(message_line(message), soft_wrap=True)
                    if message.ask is not None:
                        out.print(f"    [bold]{escape(printable(answers.ask(message.id, message.ask)))}[/]", soft_wrap=True)
            except BrokenPipeError:
                raise  # the reader has ended, as `head` does: the end of the command too
            except OSError as error:
                raise EngineError(f"message {message.seq} cannot be printed and is not acknowledged: {error.strerror}") from error
            if count is not None:
                count -= 1
                if not count:
                    return


@contextmanager
def _typed(client: Client, answers: TypedAnswers, err: Console) -> Iterator[None]:
    """Answer questions with the lines that are typed meanwhile."""
    loop = asyncio.get_running_loop()
    giving: set[asyncio.Task[None]] = set()

    def take() -> None:
        line = sys.stdin.readline()
        if not line:  # the terminal is closed
            loop.remove_reader(sys.stdin)
        elif (typed := answers.read(line)) is not None:
            task = loop.create_task(_give(client, typed, err))
            giving.add(task)
            task.add_done_callback(giving.discard)

    loop.add_reader(sys.stdin, take)
    try:
        yield
    finally:
        loop.remove_reader(sys.stdin)
        for task in giving:
            task.cancel()


async def _give(client: Client, typed: Typed, err: Console) -> None:
    try:
        given = await client.answer(typed.question, typed.answer, text=typed.text, topic=typed.topic)
    except EngineError as error:
        err.print(f"[yellow]not answered: {escape(printable(str(error)))}[/]", soft_wrap=True)
    else:
        err.print(f"[dim]answered: {escape(printable(given.label or given.text))}[/]", soft_wrap=True)


def message_line(message: Message) -> str:
    """One message as rich markup: the time, number, type, the title if its data has one, everything else as JSON."""
    data = message.data
    title = ""
    if isinstance(data, dict) and isinstance(data.get("title"), str):
        title = f" {escape(printable(data['title']))}"
        data = {name: value for name, value in data.items() if name != "title"}
    extra = {
        name: getattr(message, name) for name in ("actor", "target", "context", "count", "answer") if getattr(message, name) is not None
    }
    marks = {"high": "[bold red]![/] ", "normal": "", "low": "[dim]low[/] "}[message.priority]
    again = f" [yellow](attempt {message.attempt})[/]" if message.attempt > 1 else ""
    at_ms = message.ts if message.due is None else message.due
    rest = "".join(f" [dim]{escape(_json(part))}[/]" for part in (data, extra) if part not in (None, {}))
    return f"[dim]{_clock(at_ms)}[/] [cyan]#{message.seq}[/] {marks}[bold]{escape(printable(message.type))}[/]{title}{again}{rest}"


def _clock(ts_ms: int) -> str:
    """Local time, with the date when it is not today's."""
    try:
        when = datetime.fromtimestamp(ts_ms / 1000, UTC).astimezone()
    except (OverflowError, OSError, ValueError):
        return "?"  # a publisher may send any number
    today = when.date() == datetime.now(UTC).astimezone().date()
    return f"{when:%H:%M:%S}" if today else f"{when:%Y-%m-%d %H:%M:%S}"


def _json(value: Any) -> str:
    return printable(msgspec.json.encode(value).decode())


def _print_event(event: Event, err: Console) -> None:
    match event:
        case Connected():
            waiting = max(0, event.seq - event.from_seq + 1) if event.from_seq else 0
            who = f" as {escape(printable(event.user))}" if event.user else ""
            how = "" if event.transport == "websocket" else f" by {event.transport}"
            err.print(f"[dim]connected{who}{how}{f', up to {waiting} waiting' if waiting else ''}[/]", soft_wrap=True)
        case Disconnected():
            err.print(f"[yellow]disconnected ({event.code or 'no answer'}): {escape(printable(event.reason))}[/]", soft_wrap=True)
        case Gap():
            err.print(f"[yellow]messages {event.first} to {event.last} are gone: expired, or too many were waiting[/]", soft_wrap=True)
        case Revoked():
            err.print(f"[dim]handled on another device: {escape(printable(', '.join(event.ids)))}[/]", soft_wrap=True)
        case Part():
            progress = "" if event.progress is None else f" {_json(event.progress)}"
            err.print(f"[dim]{escape(printable(event.id))} grows: {escape(printable(event.text))}{escape(progress)}[/]", soft_wrap=True)
        case ServerError():
            err.print(f"[yellow]{escape(printable(event.code))}: {escape(printable(event.detail))}[/]", soft_wrap=True)
