"""The check of `engine doctor` for the mail server."""

from __future__ import annotations

import asyncio

from engine.config import CATCH_MAILS, Config
from engine.errors import ConfigError, StorageUnavailable
from engine.features.reach.mail_connections import MailServer

_ANSWER_S = 10.0


def look(config: Config) -> str:
    """What answers at `smtp_url`, "" where none is set. It logs in, and sends no mail.

    Raises:
        ConfigError: the extra `mail` is not installed.
        StorageUnavailable: the server does not answer, or refuses the login.
    """
    if config.smtp_url == CATCH_MAILS:
        return "none is sent: the page of the demo, and GET /v1/caught-mails, show them"
    return asyncio.run(_greeted(MailServer.of(config.smtp_url))) if config.smtp_url else ""


async def _greeted(server: MailServer) -> str:
    try:
        from aiosmtplib import SMTPException
    except ImportError:
        raise ConfigError("smtp_url needs aiosmtplib: install the extra `mail`") from None
    place, client = server.place, server.client(_ANSWER_S)
    try:
        async with client:
            secure = client.transport is not None and client.transport.get_extra_info("sslcontext") is not None
    except (SMTPException, OSError, UnicodeError) as error:  # the last of a host that no resolver takes
        raise StorageUnavailable(f"{place}: {error}") from None
    return f"{place} answers, {'with TLS' if secure else 'without TLS'}{', and takes the login' if server.user else ''}"
