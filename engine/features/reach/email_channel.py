"""Mails to a server by SMTP (RFC 5321), over TLS where the server has it. `aiosmtplib` is imported with the first mail.

What the server refuses for good (5xx) is given up, but for a login: that is for the operator to mend. Everything else is tried again. No
reason names the address: reasons are logged, and kept with dead letters.
"""

from __future__ import annotations

from email.message import EmailMessage
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from engine.config import Config
from engine.errors import ActionFailed
from engine.features.actions.store import QueuedAction
from engine.features.reach.mails import mail_of

_PORTS: Final = {"smtp": 587, "smtps": 465}


class MailServer(NamedTuple):
    """What `smtp_url` says."""

    host: str
    port: int
    user: str | None
    password: str | None
    tls: bool  # from the first byte; otherwise by STARTTLS, where the server offers it

    @classmethod
    def of(cls, url: str) -> MailServer:
        """That of a URL that `engine.config` has checked."""
        parts = urlsplit(url)
        user = None if parts.username is None else unquote(parts.username)
        password = None if parts.password is None else unquote(parts.password)
        return cls(parts.hostname or "", parts.port or _PORTS[parts.scheme], user, password, parts.scheme == "smtps")


class EmailChannel:
    """Sends mails. `config`: `smtp_url`, `mail_from` and `public_url`."""

    def __init__(self, config: Config) -> None:
        self._config = config

    async def send(self, action: QueuedAction, address: str) -> None:
        """Send the mail about this message to this address. Raises ActionFailed."""
        await self.deliver(mail_of(action, address, self._config.mail_from, self._config.public_url), address)

    async def deliver(self, mail: EmailMessage, address: str) -> None:
        """Send a mail to this address. Raises ActionFailed."""
        config = self._config
        if not config.smtp_url:
            raise ActionFailed("the setting smtp_url is empty", final=True)
        try:
            from aiosmtplib import SMTPException, SMTPResponseException, send
            from aiosmtplib.errors import SMTPAuthenticationError, SMTPRecipientsRefused
        except ImportError:
            raise ActionFailed("aiosmtplib is not installed where the edges run: install the extra `mail`") from None
        server = MailServer.of(config.smtp_url)
        place = f"{server.host}:{server.port}"
        try:
            await send(
                mail,
                recipients=[address],
                hostname=server.host,
                port=server.port,
                username=server.user,
                password=server.password,
                use_tls=server.tls,
                start_tls=False if server.tls else None,
                timeout=config.action_timeout_ms / 1000,
            )
        except SMTPRecipientsRefused as error:
            code = error.recipients[0].code if error.recipients else 0
            raise ActionFailed(f"{place} refused the address with {code}", final=code >= 500) from None
        except SMTPResponseException as error:
            final = error.code >= 500 and not isinstance(error, SMTPAuthenticationError)
            raise ActionFailed(f"{place} answered {error.code}", final=final) from None
        except (SMTPException, OSError) as error:
            raise ActionFailed(f"{place}: {type(error).__name__}") from None
