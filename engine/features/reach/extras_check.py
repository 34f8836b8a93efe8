"""The check of `engine doctor` for the channels and recipients that settings name. A channel that only rules name is checked with them."""

from __future__ import annotations

from importlib.util import find_spec

from engine.config import CATCH_MAILS, Config, apprise_recipients
from engine.core.model.step import EXTRAS
from engine.errors import ActionFailed, ConfigError
from engine.features.reach.apprise_channel import lane_of


def look(config: Config) -> str:
    """Which extras the settings need, "" for none. Raises ConfigError: one is not installed; a channel or a service does not exist."""
    for channel in config.tenant_channels:
        if channel not in EXTRAS:
            raise ConfigError(f"tenant_channels: {channel!r} is not allowed; allowed are {', '.join(EXTRAS)}")
    mail = "smtp_url" if config.smtp_url not in ("", CATCH_MAILS) else ""
    apprise = "apprise_urls" if config.apprise_urls else "apprise_recipients" if config.apprise_recipients else ""
    settings = {"push": "push_contact" if config.push_contact else "", "email": mail, "apprise": apprise}
    needed = {channel: setting for channel, setting in settings.items() if setting}
    for channel, setting in needed.items():
        extra, module = EXTRAS[channel]
        if find_spec(module) is None:
            raise ConfigError(f"{setting}: {module} is not installed: install the extra `{extra}` where the edges run")
    for name, url in apprise_recipients(config.apprise_recipients).items():
        try:
            lane_of(url)
        except ActionFailed as error:
            raise ConfigError(f"apprise_recipients: {name}: {error}") from None
    return f"installed for {', '.join(needed)}" if needed else ""
