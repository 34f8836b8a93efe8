"""The check of `engine doctor` for the extras of channels that settings name. A channel that only rules name is checked with the rules."""

from __future__ import annotations

from importlib.util import find_spec

from engine.config import CATCH_MAILS, Config
from engine.core.model.step import EXTRAS
from engine.errors import ConfigError


def look(config: Config) -> str:
    """Which extras the settings need, "" for none. Raises ConfigError: one is not installed."""
    mail = "smtp_url" if config.smtp_url not in ("", CATCH_MAILS) else ""
    apprise = "apprise_urls" if config.apprise_urls else "apprise_recipients" if config.apprise_recipients else ""
    settings = {"push": "push_contact" if config.push_contact else "", "email": mail, "apprise": apprise}
    needed = {channel: setting for channel, setting in settings.items() if setting}
    for channel, setting in needed.items():
        extra, module = EXTRAS[channel]
        if find_spec(module) is None:
            raise ConfigError(f"{setting}: {module} is not installed: install the extra `{extra}` where the edges run")
    return f"installed for {', '.join(needed)}" if needed else ""
