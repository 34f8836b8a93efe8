"""`engine config`: the settings in force, as rows for programs and as a table for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from msgspec import Struct
from rich.markup import escape
from rich.table import Table

from engine.cli.settings import DEFAULT, INTERNAL, SECTION_OF, SECTIONS, Loaded, allowed, unit, variable
from engine.config import FIELDS, Secret
from engine.store.redis_client import display_url

_VALUE_WIDTH_MAX: Final = 24
_INTERNAL_ABOUT: Final = "not part of the interface; each has its reason in engine/config.py"


_URLS: Final = ("redis_url", "jwt_jwks_url", "history_url", "smtp_url")
"""Secrets of which all but the password is shown."""


class SettingReport(Struct, frozen=True):
    """One setting as `engine config --json` prints it. `value` and `default` never hold a secret."""

    name: str
    section: str
    value: Any
    source: str
    default: Any
    unit: str
    allowed: str
    variable: str
    meaning: str


def report(loaded: Loaded, internal: bool) -> list[SettingReport]:
    """The published settings by section; with `internal`, the internal limits after them."""
    names = [name for section in SECTIONS.values() for name in section.settings]
    if internal:
        names += [name for name in FIELDS if SECTION_OF[name] == INTERNAL]
    return [
        SettingReport(
            name=name,
            section=SECTION_OF[name],
            value=shown(name, getattr(loaded.config, name)),
            source=loaded.sources.get(name, DEFAULT),
            default=FIELDS[name].default,
            unit=unit(name),
            allowed=allowed(name),
            variable=variable(name),
            meaning=SECTIONS[SECTION_OF[name]].settings[name] if SECTION_OF[name] != INTERNAL else "",
        )
        for name in names
    ]


def shown(name: str, value: Any) -> Any:
    """A value as it may be printed: `(set)` for a secret, no password in a URL, no key as text."""
    if name in _URLS:
        return display_url(value)
    if isinstance(value, Secret):
        return "(set)" if value else ""
    return "(PEM text)" if name == "jwt_public_key" and "\n" in value else value


def settings_table(rows: Iterable[SettingReport]) -> Table:
    """Grouped by section; values that are not the default stand out. Fits 80 columns."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("setting", no_wrap=True)
    table.add_column("value", overflow="fold", max_width=_VALUE_WIDTH_MAX)
    table.add_column("from", overflow="fold")
    table.add_column("meaning", overflow="fold")
    section = ""
    for row in rows:
        if row.section != section:
            if section:
                table.add_row()
            section = row.section
            about = _INTERNAL_ABOUT if section == INTERNAL else SECTIONS[section].about
            table.add_row(f"[bold]{escape(f'[{section}]')}[/]", "", "", f"[bold]{about}[/]")
        style = "" if row.source == DEFAULT else "bold green"
        table.add_row(row.name, escape(_text(row)), row.source if row.source == DEFAULT else escape(row.source), row.meaning, style=style)
    return table


def _text(row: SettingReport) -> str:
    """The value with its unit; `-` for none."""
    value = ", ".join(str(part) for part in row.value) if isinstance(row.value, tuple) else str(row.value)
    return f"{value} {row.unit}".strip() if value else "-"
