"""`engine rules list | show | push | dry-run | stage | rollback`: the versions of the rules of a running engine.

A command that changes something reads the state first and names it with the change, so of two operators at once one is refused.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlencode

import typer

from engine.cli.json_output import print_json
from engine.cli.options import DataDir, GivenToken, Url
from engine.errors import EngineError

if TYPE_CHECKING:
    from engine.cli.local_engine import EngineTarget

_FOLLOWED_S: Final = 5.0
"""Edges follow within a second; the status is a second old at most."""

_POLL_S: Final = 0.2

Share = Annotated[float, typer.Argument(min=0, max=1, help="Of the users, 0 to 1: 0.1 is a tenth. 0: nobody any more, 1: everyone.")]
Version = Annotated[int, typer.Argument(min=0, help="Number of a version, as `list` prints it; 0 is the rules file.")]
AnswerAsJson = Annotated[bool, typer.Option("--json", help="The engine's answer as JSON, for programs.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `engine rules`."""
    app.command("list")(list_)
    app.command("dry-run")(dry_run)
    for command in (show, push, stage, rollback):
        app.command()(command)


def list_(json: AnswerAsJson = False, url: Url = None, token: GivenToken = None, data_dir: DataDir = None) -> None:
    """Print the stored versions, which are in force, and what each edge runs.

    [dim]engine rules list
    engine rules list --json | jq '.rules[] | select(.matched == 0).name'[/dim]
    """
    found = _overview(_target(data_dir, url, token))
    if json:
        print_json(found)
        return
    _print(_in_force(found))
    for version in found["versions"]:
        at = datetime.fromtimestamp(version["at"] / 1000, UTC).astimezone().isoformat(timespec="seconds")
        rules = f"{version['rules']} rule{'' if version['rules'] == 1 else 's'}"
        _print(f"{version['version']:>4}  {version['state']:<6}  {at}  {rules}  by {version['by']}")
    for edge in found["edges"]:
        _print(_edge_line(edge))
    if refused := found.get("file", {}).get("refused"):
        _print(f"the file cannot be used: {refused}")


def show(version: Version, url: Url = None, token: GivenToken = None, data_dir: DataDir = None) -> None:
    """Print the text of a stored version.

    [dim]engine rules show 7 > rules.toml[/dim]
    """
    sys.stdout.write(_ask(_target(data_dir, url, token), "GET", f"/v1/rules/versions/{version}", text=True)["text"])


def push(
    rules: Annotated[Path, typer.Argument(help="Rules in TOML.")],
    share: Annotated[
        float, typer.Option("--share", min=0, max=1, help="In force for this share of the users; 0: stored, for nobody yet.")
    ] = 1.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Store nothing; show what recent events would have made.")] = False,
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Store a file as a new version, and put it in force: for everyone, or for a share of the users.

    The engine refuses a file that it cannot use, with the line and the reason. From the first version on the file that `rules_path` names
    has no effect; `engine rules rollback --to 0` puts it in force again.

    [dim]engine rules push rules.toml --dry-run
    engine rules push rules.toml --share 0.1
    engine rules push rules.toml[/dim]
    """
    target, text = _target(data_dir, url, token), _text(rules)
    if dry_run:
        _print_differences(_ask(target, "POST", "/v1/rules/dry-run", text))
    else:
        _change(target, "PUT", f"/v1/rules?{urlencode({'share': share})}", text)


def dry_run(
    version: Version,
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="The newest so many events.")] = 100,
    type: Annotated[str | None, typer.Option("--type", help="Only events of this type.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only events of this tenant.")] = None,
    json: AnswerAsJson = False,
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Show what recent events would have made under a stored version, compared with the one in force. Sends nothing.

    [dim]engine rules dry-run 8
    engine rules dry-run 8 --type cart.abandoned --json[/dim]
    """
    query = {"version": version, "limit": limit, **({"type": type} if type else {}), **({"tenant": tenant} if tenant else {})}
    found = _ask(_target(data_dir, url, token), "POST", f"/v1/rules/dry-run?{urlencode(query)}", b"")
    if json:
        print_json(found)
    else:
        _print_differences(found)


def stage(version: Version, share: Share, url: Url = None, token: GivenToken = None, data_dir: DataDir = None) -> None:
    """Put a stored version in force for a share of the users; the same users stay in when the share grows.

    [dim]engine rules stage 8 0.1
    engine rules stage 8 1[/dim]
    """
    _change(_target(data_dir, url, token), "POST", "/v1/rules/stage", {"version": version, "share": share})


def rollback(
    to: Annotated[int | None, typer.Option("--to", min=0, help="This version, in place of the newest step; 0: the rules file.")] = None,
    url: Url = None,
    token: GivenToken = None,
    data_dir: DataDir = None,
) -> None:
    """Take the newest step back: end the staging, else put the version before in force again.

    [dim]engine rules rollback
    engine rules rollback --to 5[/dim]
    """
    _change(_target(data_dir, url, token), "POST", "/v1/rules/rollback", {} if to is None else {"version": to})


def _change(target: EngineTarget, method: str, path: str, body: Any) -> None:
    """Make a change from the state that is there, and wait for the edges."""
    revision = _overview(target)["revision"]
    changed = _ask(target, method, path, body, {"If-Match": f'"{revision}"'})
    deadline = time.monotonic() + _FOLLOWED_S
    while True:
        found = _overview(target)
        running = [edge for edge in found["edges"] if _runs(edge, changed)]
        if len(running) == len(found["edges"]) or found["revision"] != changed["revision"] or time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    version, staged = changed["version"], changed.get("staged", {"version": 0})["version"]
    stored = "" if version in (changed["active"], staged) else f"version {version} is stored, "
    _print(f"{stored}{_in_force(changed)}; {len(running)} of {len(found['edges'])} edges run it so")
    for edge in found["edges"]:
        if edge["refused"]:
            _print(_edge_line(edge))


def _runs(edge: Mapping[str, Any], changed: Mapping[str, Any]) -> bool:
    staged = changed.get("staged", {"version": 0, "share": 0.0})
    return (edge["version"], edge["staged"], edge["share"]) == (changed["active"], staged["version"], staged["share"])


def _in_force(found: Mapping[str, Any]) -> str:
    active = f"version {found['active']} is in force" if found["active"] else "the rules file is in force"
    if found.get("source") == "none":
        active = "there are no rules"
    if staged := found.get("staged"):
        active += f", version {staged['version']} for {staged['share']:.4g} of the users"
    return active


def _edge_line(edge: Mapping[str, Any]) -> str:
    staged = f", version {edge['staged']} for {edge['share']:.4g} of the users" if edge["staged"] else ""
    return f"{edge['edge']}: version {edge['version']}{staged}{', refused: ' + edge['refused'] if edge['refused'] else ''}"


def _print_differences(found: Mapping[str, Any]) -> None:
    for one in found["differences"]:
        event = one["event"]
        _print(f"{event['type']} of {event['user']} ({event['tenant']}, {event['id']}):")
        for word, sign in (("added", "+"), ("removed", "-")):
            for made in one.get(word, ()):
                _print(f"  {sign} {made['rule']} for {_recipient(made)}: {made['type']}")
        for made in one.get("changed", ()):
            _print(f"  ~ {made['rule']} for {_recipient(made)}: {_compact(made['now'])} -> {_compact(made['then'])}")
        for word in ("cancels", "spares"):
            for cancelled in one.get(word, ()):
                _print(f"  {word} what waits for {_recipient(cancelled)} under {cancelled['collapse']!r}")
    for rule, counts in found["rules"].items():
        _print(f"{rule}: {counts['now']} notifications now, {counts['then']} then")
    against = f"version {found['against']}" if found["against"] else "the rules file"
    _print(f"{found['events']} events, {found['same']} of them with the same outcome as under {against}")


def _recipient(made: Mapping[str, Any]) -> str:
    from engine.features.rules.core.cases import recipient

    return recipient(made) if made.get("topic") is not None or made.get("user") else "everyone"


def _compact(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


def _overview(target: EngineTarget) -> dict[str, Any]:
    return _ask(target, "GET", "/v1/rules")


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise EngineError(f"{path}: {error.strerror}") from error


def _print(line: str) -> None:
    from engine.cli.local_engine import printable

    sys.stdout.write(printable(line) + "\n")


def _target(data_dir: str | None, url: str | None, token: str | None) -> EngineTarget:
    from engine.cli.local_engine import find_engine

    return find_engine(data_dir, url, token, "engine-rules", ["operator"], "default")


def _ask(
    target: EngineTarget, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, *, text: bool = False
) -> dict[str, Any]:
    from engine.cli.operator_request import ask

    return ask(target, method, path, body, headers, text=text, advice="`engine rules list` shows what is in force")
