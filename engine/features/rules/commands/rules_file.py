"""`engine rules check | explain | test`: check a rules file before it is used. They need no running engine.

`engine.features.rules.commands.stored_versions` has those for the versions of a running one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from engine.errors import RulesError
from engine.features.policy.core.contact_policy import spoken

if TYPE_CHECKING:
    from engine.core.model.category import Category
    from engine.features.rules.core.rules import Rules

RulesFile = Annotated[Path, typer.Argument(help="Rules in TOML.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `engine rules`."""
    for command in (check, explain, test):
        app.command()(command)


def check(rules: RulesFile) -> None:
    """Check that a file can be used; if not, print the line, the rule and the reason."""
    parsed = _rules(rules)
    sys.stdout.write(f"{rules}: {len(parsed.rules)} rules, categories {', '.join(sorted(parsed.categories))}, nothing wrong\n")


def explain(
    rules: RulesFile,
    event: Annotated[str, typer.Argument(help="Name of the event, such as order.paid.")],
    payload: Annotated[str, typer.Argument(help="Its JSON object; @FILE reads it from a file.")] = "{}",
    tenant: Annotated[str, typer.Option("--tenant", help="Tenant of the user.")] = "default",
    level: Annotated[str, typer.Option("--level", help="Level in the user's profile.")] = "",
    locale: Annotated[str, typer.Option("--locale", help="Language in the user's profile, such as de-AT.")] = "",
    active: Annotated[str, typer.Option("--active", help="Time since the user was last active: 3h, 2d; never, when left out.")] = "",
) -> None:
    """Print what each rule would do with an event, and why. Sends nothing.

    [dim]engine rules explain examples/touch/rules.toml cart.abandoned '{"user": "ann"}' --level vip --active 3h[/dim]
    """
    from engine.cli.local_engine import printable
    from engine.features.rules.core.cases import Case, members, outcome_of, recipient
    from engine.features.rules.core.rules import delivery_id

    parsed = _rules(rules)
    case = Case("explain", event, _payload(payload), tenant, {"level": level, "locale": locale, **({"active": active} if active else {})})
    outcome = outcome_of(parsed, case)
    lines = {notification.rule: [] for notification in outcome.notifications}  # type: dict[str, list[str]]
    for notification in outcome.notifications:
        lines[notification.rule].append(msgspec.json.encode(members(notification)).decode())
    delivery = delivery_id(event, case.payload)
    for name in dict.fromkeys(notification.category for notification in outcome.notifications if notification.category):
        sys.stdout.write(f"category {name}: {_limits_in_words(parsed.categories[name])}\n")
    for rule in parsed.rules:
        reason = rule.mismatch(event, case.payload.get("action"), parsed.scope(rule, event, case.payload, delivery))
        sys.stdout.write(f"{rule.name}: {f'no, {reason}' if reason else 'matches'}\n")
        for line in lines.get(rule.name, ()):
            sys.stdout.write(f"  would send {line}\n")
        for skipped in outcome.skipped:
            if skipped.rule == rule.name:
                sys.stdout.write(f"  leaves out {printable(skipped.user) or 'everyone'}: {skipped.reason}\n")
        for cancellation in outcome.cancellations:
            if cancellation.rule == rule.name:
                sys.stdout.write(
                    f"  cancels what waits for {recipient(msgspec.to_builtins(cancellation))} under {cancellation.collapse!r}\n"
                )


def _limits_in_words(limits: Category) -> str:
    """What a category allows, for people."""
    if limits.mandatory:
        return "told to everyone, whatever they want"
    said = [f"{limits.cap} in {spoken(limits.cap_ms)}"] if limits.cap else []
    said += [f"the same type once in {spoken(limits.same_type_ms)}"] if limits.same_type_ms else []
    said += [f"{limits.total_cap} of all categories in {spoken(limits.total_ms)}"] if limits.total_cap else []
    return ", ".join([*said, "waits for quiet hours to end" if limits.quiet else "also in quiet hours"])


def test(rules: RulesFile, cases: Annotated[Path, typer.Argument(help="Cases in TOML, see examples/touch/cases.toml.")]) -> None:
    """Run cases against the rules; exits with 1 when one does not hold."""
    from engine.features.rules.core.cases import differences, parse_cases

    parsed = _rules(rules)
    failed = 0
    found = parse_cases(_text(cases), str(cases))
    for case in found:
        unlike = differences(parsed, case)
        failed += bool(unlike)
        for line in unlike:
            sys.stdout.write(f"{case.name}: {line}\n")
    sys.stdout.write(f"{len(found) - failed} of {len(found)} cases hold\n")
    if failed:
        raise typer.Exit(1)


def _rules(path: Path) -> Rules:
    from engine.features.rules.rule_book import read_rules

    return read_rules(path)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RulesError(f"{path}: {error.strerror if isinstance(error, OSError) else error}") from error


def _payload(text: str) -> dict[str, object]:
    raw = _text(Path(text[1:])) if text.startswith("@") else text
    try:
        return msgspec.json.decode(raw, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError) as error:
        raise RulesError(f"the payload is no JSON object: {error}") from error
