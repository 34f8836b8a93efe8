"""`engine rules` and `engine replay`."""

from __future__ import annotations

import typer

from engine.features.rules.commands import replay_command, rules_file, stored_versions


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    rules = typer.Typer(
        no_args_is_help=True,
        help="Check, explain and test a rules file; store, try, stage and roll back the versions of a running engine.",
        rich_markup_mode="rich",
    )
    stored_versions.register(rules)
    rules_file.register(rules)
    app.command()(replay_command.replay)
    app.add_typer(rules, name="rules")
