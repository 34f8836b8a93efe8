"""The settings of an engine that is only tried: it catches mails, and has a category whose step is one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from engine.auth.keyring import is_loopback
from engine.config import CATCH_MAILS, Config

_RULES: Final = Path(__file__).with_name("demo_rules.toml")
_FROM: Final = "Engine <engine@localhost>"


def is_demo(config: Config) -> bool:
    """Whether these settings, as they were given, are those of a trial: on loopback, with keys and Redis of its own, and no mail server."""
    given = config.address or config.redis_url or config.smtp_url or config.jwt_secret or config.jwt_public_key or config.jwt_jwks_url
    return not given and is_loopback(config.host)


def with_demo(config: Config, port: int) -> Config:
    """With a mail catcher, and the rules of the demo where there are no others. `port`: of the edges."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    return msgspec.structs.replace(
        config,
        smtp_url=CATCH_MAILS,
        mail_from=config.mail_from or _FROM,
        public_url=config.public_url or f"http://{host}:{port}",
        rules_path=config.rules_path or str(_RULES),
    )
