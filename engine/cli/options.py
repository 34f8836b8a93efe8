"""The options that several commands have."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from engine.cli.settings import SECTION_OF, SECTIONS, option_of
from engine.config import Config
from engine.errors import EngineError


def setting_option(name: str) -> Any:
    """The option of a published setting, with the setting's meaning and default as its help."""
    meaning, default = SECTIONS[SECTION_OF[name]].settings[name], getattr(Config(), name)
    text = f"{meaning[0].upper()}{meaning[1:]}{f' (default {default})' if default != '' else ''}."
    return typer.Option(option_of(name), help=text, show_default=False)


DataDir = Annotated[str | None, setting_option("data_dir")]
RedisUrl = Annotated[str | None, setting_option("redis_url")]
Url = Annotated[str | None, typer.Option("--url", envvar="ENGINE_URL", help="Address of the engine, if not the one that runs here.")]
TenantOption = Annotated[str, typer.Option("--tenant", help="Tenant of the user.")]


def _token(given: str | None) -> str | None:
    """The token, which a header can carry. Raises EngineError, without it."""
    if given is None or (given.isascii() and given.isprintable() and " " not in given):
        return given
    raise EngineError("--token or ENGINE_TOKEN: no token has spaces, line breaks, or characters beyond ASCII")


GivenToken = Annotated[
    str | None,
    typer.Option("--token", envvar="ENGINE_TOKEN", help="Token to use, if not one made with the engine's own secret.", callback=_token),
]


def duration_s(text: str, option: str) -> float:
    """The seconds of a duration such as 2h that an option was given. Raises EngineError: it is none."""
    from engine.core.model.duration import parse_duration_ms
    from engine.errors import Invalid

    try:
        return parse_duration_ms(text) / 1000
    except Invalid as error:
        raise EngineError(f"{option}: {error.detail}") from error


def local_time(at_ms: int) -> str:
    """A time in ms since the epoch, in local time; `?` beyond the years of a calendar."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone().isoformat(timespec="milliseconds")
    except (OverflowError, OSError, ValueError):  # a publisher says when a message happened, up to the last hour of the year 9999
        return "?"
