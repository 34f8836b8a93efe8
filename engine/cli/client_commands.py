"""The commands of a publisher and of a receiver: `engine token`, `revoke`, `publish`, `export`, `erase`, `listen`, `digest`, `replay`,
`inbox`, `rules` and `dead-letters`.

They need no Ray and keep no state: the address of the running engine comes from its data directory, tokens are signed with its secret.
Errors are `EngineError`s, which `engine.cli.app` prints in one line. A command imports what it needs when it runs: the JWT and WebSocket
libraries take longer to import than `engine --help` may.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from engine.cli.dead_letter_commands import app as dead_letters
from engine.cli.export_command import export
from engine.cli.inbox_commands import app as inbox
from engine.cli.operator_commands import GivenToken, setting_option
from engine.cli.preferences_command import preferences
from engine.cli.rules_commands import app as rules
from engine.errors import EngineError

if TYPE_CHECKING:
    from engine.client.publish_results import Result

PUBLISH_RETRY_S: Final = 5.0  # someone waits at the terminal; an engine that restarts is back by then
REPLAY_RETRY_S: Final = 60.0  # an engine that is restarted during a replay is waited for

DataDir = Annotated[str | None, setting_option("data_dir")]
Url = Annotated[str | None, typer.Option("--url", envvar="ENGINE_URL", help="Address of the engine, if not the one that runs here.")]
Tenant = Annotated[str, typer.Option("--tenant", help="Tenant of the users.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(token)
    app.command()(revoke)
    app.command()(publish)
    app.command()(export)
    app.command()(erase)
    app.command()(listen)
    app.command()(digest)
    app.command()(replay)
    app.add_typer(inbox, name="inbox")
    app.command()(preferences)
    app.add_typer(rules, name="rules")
    app.add_typer(dead_letters, name="dead-letters")


def duration_s(text: str, option: str) -> float:
    """The seconds of a duration such as 2h that an option was given. Raises EngineError: it is none."""
    from engine.core.model.duration import parse_duration_ms
    from engine.errors import Invalid

    try:
        return parse_duration_ms(text) / 1000
    except Invalid as error:
        raise EngineError(f"{option}: {error.detail}") from error


def _local(at_ms: int) -> str:
    """A time in ms since the epoch, in local time."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone().isoformat(timespec="milliseconds")


def token(
    user: Annotated[str, typer.Argument(help="Subject of the token: the user to receive for, or a name for a publisher.")],
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", help="connect, publish, events, admin, metrics or operator; may be repeated (default connect)."),
    ] = None,
    ttl: Annotated[str, typer.Option("--ttl", help="Lifetime: 90s, 15m, 12h, 30d.")] = "1h",
    tenant: Tenant = "default",
    data_dir: DataDir = None,
) -> None:
    """Print a token for a client or publisher, signed with the engine's own secret.

    [dim]engine token alice
    engine token billing --scope publish --ttl 30d
    curl -H "Authorization: Bearer $(engine token ops --scope admin)" http://127.0.0.1:8000/v1/status[/dim]
    """
    from engine.cli.local_engine import config_of, mint_token

    made = mint_token(config_of(data_dir), user, scope or ["connect"], duration_s(ttl, "--ttl"), tenant)
    sys.stdout.write(made + "\n")


def revoke(
    user: Annotated[str | None, typer.Argument(help="User whose tokens are revoked.", show_default=False)] = None,
    before: Annotated[
        str | None, typer.Option("--before", help="Only those issued before this time, RFC 3339 (default now).", show_default=False)
    ] = None,
    jti: Annotated[str | None, typer.Option("--jti", help="Instead: the token with this `jti`.", show_default=False)] = None,
    bearer: Annotated[
        str | None, typer.Option("--bearer", help="Instead: this token; - reads it from standard input.", show_default=False)
    ] = None,
    tenant: Tenant = "default",
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Revoke the tokens of a user, or one token; connections that use them are closed. Takes effect on every edge within a second.

    [dim]engine revoke alice
    engine revoke alice --before 2026-01-31T12:00:00Z
    engine revoke --bearer - < leaked-token[/dim]
    """
    from engine.cli.local_engine import find_engine
    from engine.cli.operator_request import NoAnswer, ask, reason_of

    given = {"user": user, "jti": jti, "token": bearer}
    named = {name: value for name, value in given.items() if value is not None}
    if len(named) != 1:
        raise EngineError("what to revoke: exactly one of USER, --jti and --bearer is needed")
    if before is not None and user is None:
        raise EngineError("--before: only with USER")
    if bearer == "-":
        named["token"] = sys.stdin.read().strip()
    if before is not None:
        named["before"] = before
    target = find_engine(data_dir, url, token, "engine-revoke", ["admin"], tenant)
    try:
        answer = ask(target, "POST", "/v1/tokens/revoke", named)
    except EngineError as error:
        raise target.explained(error) from error
    except NoAnswer as error:
        raise EngineError(f"the engine at {target.url} does not answer: {reason_of(error)}; it may be revoked: repeat it") from error
    sys.stdout.write(f"revoked {answer['revoked']} until={_local(answer['until'])}\n")


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
    tenant: Tenant = "default",
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
        except msgspec.DecodeError as error:
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
        printed["scheduled_at"] = _local(result.scheduled_at)
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


# -- erase -------------------------------------------------------------------------------------------------------------
def erase(
    user: Annotated[str, typer.Argument(help="User to erase.")],
    tenant: Tenant = "default",
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Erase a user: messages, timers, profile, subscriptions, timeline, dead letters, session events. Returns when nothing is left.

    A token of the user that is still valid could connect again, so revoke it first.

    [dim]engine erase alice[/dim]
    """
    from engine.cli.local_engine import find_engine
    from engine.client.publisher import Publisher

    target = find_engine(data_dir, url, token, "engine-erase", ["admin"], tenant)

    async def run() -> None:
        async with Publisher(target.url, target.token, retry_for_s=PUBLISH_RETRY_S) as publisher:
            await publisher.erase_user(user)

    try:
        asyncio.run(run())
    except EngineError as error:
        raise target.explained(error) from error
    sys.stdout.write("erased\n")


# -- listen ------------------------------------------------------------------------------------------------------------
def listen(
    user: Annotated[str, typer.Argument(help="User whose notifications to receive.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")] = False,
    count: Annotated[int | None, typer.Option("--count", min=1, help="Stop after this many messages.")] = None,
    last_event_id: Annotated[
        str | None, typer.Option("--last-event-id", help="Resume after this cursor; acknowledges everything up to it.")
    ] = None,
    tenant: Tenant = "default",
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Print and acknowledge a user's notifications, until Ctrl-C. Reconnects after a failure.

    A message is acknowledged when it is printed: it is not sent again, to this or any other device.

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


# -- digest ------------------------------------------------------------------------------------------------------------
def digest(
    user: Annotated[str, typer.Argument(help="User whose missed notifications to tell.")],
    lines: Annotated[int, typer.Option("--lines", min=1, help="Lines at most.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="The digest as JSON, with the messages of each line.")] = False,
    tenant: Tenant = "default",
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Tell what a user has missed, in a few lines. Acknowledges nothing.

    [dim]engine digest alice
    engine digest alice --json | jq '.lines[].messages'[/dim]
    """
    import msgspec

    from engine.cli.local_engine import find_engine, printable
    from engine.client.client import Client

    target = find_engine(data_dir, url, token, user, ["connect"], tenant)
    try:
        found = asyncio.run(Client(target.url, target.token).digest(limit=lines))
    except EngineError as error:
        raise target.explained(error) from error
    if json:
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
        return
    for line in found.lines:
        mark = "! " if line.priority == "high" else ""
        sys.stdout.write(f"{_local(line.to)}  {mark}{printable(line.text)}  (#{', #'.join(str(one.seq) for one in line.messages)})\n")
    skipped = ", ".join(f"{count} {reason}" for reason, count in found.skipped.items())
    older = "; there are older ones" if found.older else ""
    sys.stdout.write(f"{found.messages} missed{f'; left out: {skipped}' if skipped else ''}{older}\n")


# -- replay ------------------------------------------------------------------------------------------------------------
def replay(
    file: Annotated[str, typer.Argument(help='A .jsonl or .jsonl.gz file of {"event": name, "payload": {...}}; - for standard input.')],
    rules: Annotated[
        Path | None, typer.Option("--rules", help="Rules in TOML, if not those of rules_path, or else rules.toml beside FILE.")
    ] = None,
    rate: Annotated[float, typer.Option("--rate", min=0, help="Deliveries per second; 0 for as fast as possible.")] = 0,
    user_prefix: Annotated[str, typer.Option("--user-prefix", help="Put before every user's name.")] = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="Use new ids: delivers again what an earlier replay has delivered.")] = False,
    tenant: Tenant = "default",
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Apply rules to recorded events, and publish the resulting notifications.

    Replaying a file twice delivers nothing twice: the ids of notifications are derived from the recording.

    [dim]engine replay examples/github/deliveries.jsonl.gz
    engine replay deliveries.jsonl --rules my-rules.toml --rate 20
    zcat *.gz | engine replay - --fresh --user-prefix test-[/dim]
    """
    from engine.cli.local_engine import config_of, find_engine, rules_for
    from engine.cli.progress import print_report, progress_bar
    from engine.cli.replay import Replay, open_recording
    from engine.client.publisher import Publisher
    from engine.features.rules.rule_book import read_rules

    chosen = rules_for(file, rules, config_of(data_dir))
    parsed = read_rules(chosen)
    with open_recording(file) as recording, progress_bar() as progress:
        target = find_engine(data_dir, url, token, "engine-replay", ["publish"], tenant)
        task = progress.add_task("replaying", total=recording.size_bytes or None)
        run = Replay(
            parsed,
            lambda on_result: Publisher(target.url, target.token, on_result=on_result, retry_for_s=REPLAY_RETRY_S),
            rate_per_s=rate,
            user_prefix=user_prefix,
            id_prefix=f"{secrets.token_hex(4)}/" if fresh else "",
            on_progress=lambda: progress.update(task, completed=recording.position_bytes()),
        )
        report = run.report
        try:
            asyncio.run(run.run(recording))
        except (EngineError, KeyboardInterrupt) as error:
            progress.stop()
            print_report(report)
            sys.stdout.write("not finished; the same command again finishes it and delivers nothing twice\n")
            raise (target.explained(error) if isinstance(error, EngineError) else error) from error
    print_report(report)
    if report.rejected or (report.malformed and not report.read):
        raise typer.Exit(1)
