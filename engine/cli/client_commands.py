"""The commands of a publisher and of a receiver: `engine token`, `publish` and `listen`.

They need no Ray and keep no state: the address of the running engine comes from its data directory, tokens are signed with its secret.
Errors are `EngineError`s, which `engine.cli.app` prints in one line. A command imports what it needs when it runs: the JWT and WebSocket
libraries take longer to import than `engine --help` may.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from engine.cli.options import DataDir, GivenToken, TenantOption, Url, duration_s, local_time
from engine.errors import EngineError

if TYPE_CHECKING:
    from engine.client.publish_results import Result

PUBLISH_RETRY_S: Final = 5.0  # someone waits at the terminal; an engine that restarts is back by then


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (token, publish, listen):
        app.command()(command)


def token(
    user: Annotated[str, typer.Argument(help="Subject of the token: the user to receive for, or a name for a publisher.")],
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", help="connect, publish, events, admin, metrics or operator; may be repeated (default connect)."),
    ] = None,
    ttl: Annotated[str, typer.Option("--ttl", help="Lifetime: 90s, 15m, 12h, 30d.")] = "1h",
    tenant: TenantOption = "default",
    data_dir: DataDir = None,
) -> None:
    """Print a token for a client or publisher, signed with the engine's own secret.

    [dim]engine token alice
    engine token billing --scope publish --ttl 30d
    curl -H "Authorization: Bearer $(engine token ops --scope admin)" http://127.0.0.1:8000/v1/status[/dim]
    """
    from engine.cli.local_engine import mint_token
    from engine.cli.settings import load

    made = mint_token(load({"data_dir": data_dir}), user, scope or ["connect"], duration_s(ttl, "--ttl"), tenant)
    sys.stdout.write(made + "\n")


def publish(
    user: Annotated[
        str | None, typer.Argument(metavar="USER", help="User to notify; left out with --topic or --broadcast.", show_default=False)
    ] = None,
    type: Annotated[str | None, typer.Argument(metavar="TYPE", help="Dotted event type, such as post.liked.", show_default=False)] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", help="In place of USER: the subscribers of this topic.", show_default=False)
    ] = None,
    broadcast: Annotated[bool, typer.Option("--broadcast", help="In place of USER: everyone of the tenant.")] = False,
    data: Annotated[str | None, typer.Option("--data", help="The payload, as JSON.")] = None,
    delay: Annotated[str | None, typer.Option("--delay", help="Deliver later: 250ms, 5s, 15m, 2h, 7d.")] = None,
    id: Annotated[str | None, typer.Option("--id", help="Idempotency key: publishing it again within 24 h delivers nothing.")] = None,
    priority: Annotated[str | None, typer.Option("--priority", help="high, normal or low (default normal).")] = None,
    tenant: TenantOption = "default",
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Publish one notification to a user, the subscribers of a topic, or everyone; returns when it is on durable storage.

    [dim]engine publish alice post.liked --data '{"by": "bob"}'
    engine publish alice order.shipped --id order-17 --priority high
    engine publish alice survey.ask --delay 7d
    engine publish post.created --topic post/9
    engine publish maintenance.planned --broadcast --data '{"at": "22:00"}'[/dim]
    """
    import msgspec

    from engine.cli.local_engine import find_engine, printable
    from engine.client.publisher import Publisher

    fields = _audience_and_type(user, type, topic, broadcast) | {"id": id, "priority": priority}
    if data is not None:
        try:
            fields["data"] = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise EngineError(f'--data: not JSON: {error}; quote it for the shell, as in --data \'{{"by": "bob"}}\'') from error
    if delay is not None:
        fields["delay"] = duration_s(delay, "--delay")
    target = find_engine(data_dir, url, token, "engine-publish", ["publish"], tenant)

    async def run() -> Result:
        async with Publisher(target.url, target.token, retry_for_s=PUBLISH_RETRY_S) as publisher:
            return await publisher.publish(**fields)

    try:
        result = asyncio.run(run())
    except EngineError as error:
        raise target.explained(error) from error
    printed = {name: value for name, value in msgspec.structs.asdict(result).items() if value is not None and name != "status"}
    if result.scheduled_at is not None:
        printed["scheduled_at"] = local_time(result.scheduled_at)
    sys.stdout.write(" ".join([result.status, *(f"{name}={printable(value)}" for name, value in printed.items())]) + "\n")
    if result.status == "suppressed":
        raise typer.Exit(1)


def _audience_and_type(user: str | None, type: str | None, topic: str | None, broadcast: bool) -> dict[str, Any]:
    """The members `type` and one of `user`, `topic` and `broadcast`. With an option for the audience the only word is the type.

    Raises:
        EngineError: there is no type, or not exactly one audience.
    """
    if topic is not None and broadcast:
        raise EngineError("for whom: --topic or --broadcast, not both")
    if topic is None and not broadcast:
        if user is None or type is None:
            raise EngineError("for whom and what: USER TYPE, or TYPE with --topic or --broadcast; see `engine publish --help`")
        return {"user": user, "type": type}
    option = "--broadcast" if broadcast else "--topic"
    if type is not None:
        raise EngineError(f"for whom: USER or {option}, not both; leave out {user!r} or {option}")
    if user is None:
        raise EngineError(f"TYPE is missing: engine publish post.created {option}{'' if broadcast else f' {topic}'}")
    return {"type": user, "broadcast": True} if broadcast else {"type": user, "topic": topic}


def listen(
    user: Annotated[str, typer.Argument(help="User whose notifications to receive.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")] = False,
    count: Annotated[int | None, typer.Option("--count", min=1, help="Stop after this many messages.")] = None,
    last_event_id: Annotated[
        str | None, typer.Option("--last-event-id", help="Resume after this cursor; acknowledges everything up to it.")
    ] = None,
    tenant: TenantOption = "default",
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Print and acknowledge a user's notifications, until Ctrl-C. Reconnects after a failure.

    A message is acknowledged when it is printed: it is not sent again, to this or any other device. In a terminal, type the number of an
    answer to a question.

    [dim]engine listen alice
    engine listen alice --json | jq .data
    engine listen alice --count 1[/dim]
    """
    from engine.cli.listen import listen as run
    from engine.cli.local_engine import find_engine

    target = find_engine(data_dir, url, token, user, ["connect"], tenant)
    try:
        asyncio.run(run(target.url, target.token, json=json, count=count, last_event_id=last_event_id))
    except KeyboardInterrupt:
        return  # the intended end; what was printed is acknowledged
    except EngineError as error:
        raise target.explained(error) from error
    except ValueError as error:
        raise EngineError(f"--last-event-id: {error}") from error
