"""`engine replay`: recorded events through rules, published to the running engine."""

from __future__ import annotations

import asyncio
import secrets
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from engine.cli.options import DataDir, GivenToken, TenantOption, Url
from engine.config import Config
from engine.errors import EngineError

_RETRY_S: Final = 60.0
"""An engine that is restarted during a replay is waited for."""

_RULES_FILE: Final = "rules.toml"
"""Looked for beside a recording."""


def replay(
    file: Annotated[str, typer.Argument(help='A .jsonl or .jsonl.gz file of {"event": name, "payload": {...}}; - for standard input.')],
    rules: Annotated[
        Path | None, typer.Option("--rules", help="Rules in TOML, if not those of rules_path, or else rules.toml beside FILE.")
    ] = None,
    rate: Annotated[float, typer.Option("--rate", min=0, help="Deliveries per second; 0 for as fast as possible.")] = 0,
    user_prefix: Annotated[str, typer.Option("--user-prefix", help="Put before every user's name.")] = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="Use new ids: delivers again what an earlier replay has delivered.")] = False,
    tenant: TenantOption = "default",
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
    from engine.cli.local_engine import find_engine
    from engine.cli.progress import progress_bar
    from engine.cli.settings import load
    from engine.client.publisher import Publisher
    from engine.features.rules.commands.replay import Replay, open_recording
    from engine.features.rules.commands.replay_report import print_report
    from engine.features.rules.rule_book import read_rules

    chosen = _rules_for(file, rules, load({"data_dir": data_dir}))
    parsed = read_rules(chosen)
    with open_recording(file) as recording, progress_bar() as progress:
        target = find_engine(data_dir, url, token, "engine-replay", ["publish"], tenant)
        task = progress.add_task("replaying", total=recording.size_bytes or None)
        run = Replay(
            parsed,
            lambda on_result: Publisher(target.url, target.token, on_result=on_result, retry_for_s=_RETRY_S),
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


def _rules_for(recording: str, rules: Path | None, config: Config) -> Path:
    """The rules file of a replay: the one given, else `rules_path`, else `rules.toml` beside the recording (`-`: standard input).

    Raises:
        EngineError: there are no rules, or no recording to look beside.
    """
    if rules is not None:
        return rules
    if config.rules_path:
        return Path(config.rules_path)
    if recording == "-":
        raise EngineError("no rules to replay by: give a file with --rules, or set rules_path")
    if not Path(recording).exists():
        raise EngineError(f"{recording}: No such file or directory")
    beside = Path(recording).parent / _RULES_FILE
    if not beside.is_file():
        raise EngineError(f"no rules to replay by: give a file with --rules, or set rules_path; there is no {beside} either")
    return beside
