"""Connections to the mail server (SMTP, RFC 5321), kept open for some mails: a login and TLS cost more than a mail.

    taken --mail sent--> idle, the newest is taken first --`smtp_idle_ms`, or `smtp_mails_max` mails--> ended by QUIT
          --anything else, a cancelled call too--------> closed; once the mail is under way, without an answer, it may have been sent
    idle  --the server closed it, or says so--> the mail goes over a new connection

As many mails are under way as the callers have calls, so no limit of connections is needed here. `aiosmtplib` is imported with the first
mail. A process that dies leaves the connections to the server's own timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
from email.message import Message
from email.utils import parseaddr
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from engine.config import Config
from engine.errors import ActionFailed

if TYPE_CHECKING:
    from aiosmtplib import SMTP

_PORTS: Final = {"smtp": 587, "smtps": 465}
_SHUTTING_DOWN: Final = 421
"""RFC 5321, section 3.8: the server closes the connection."""

_LOGIN_WANTED: Final = 530
"""RFC 4954, section 6, in answer to `MAIL`: `smtp_url` has no login, which says nothing of the mail."""

_BEGUN: Final = 0.9
"""Part of the time of a call by which a mail is under way. What takes longer has certainly not sent it, and counts in no cap."""


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

    @property
    def place(self) -> str:
        """For people."""
        return f"{self.host}:{self.port}"

    def client(self, timeout_s: float) -> SMTP:
        """A client that is not connected yet. Raises ImportError without `aiosmtplib`."""
        from aiosmtplib import SMTP

        return SMTP(
            hostname=self.host,
            port=self.port,
            username=self.user,
            password=self.password,
            use_tls=self.tls,
            start_tls=False if self.tls else None,
            timeout=timeout_s,
        )


class _Connection:
    """An open connection. `mails`: sent over it. `expiry`: ends it while it is idle."""

    def __init__(self, client: SMTP) -> None:
        self.client = client
        self.mails = 0
        self.expiry: asyncio.TimerHandle | None = None


class MailConnections:
    """Those of one process to one server. `config`: `smtp_url`, `smtp_mails_max`, `smtp_idle_ms` and `action_timeout_ms`."""

    def __init__(self, config: Config) -> None:
        self._server = MailServer.of(config.smtp_url)
        self._timeout_s = config.action_timeout_ms / 1000
        self._idle_s = config.smtp_idle_ms / 1000
        self._mails_max = config.smtp_mails_max
        self._idle: list[_Connection] = []  # the newest last
        self._ending: set[asyncio.Task[None]] = set()

    async def send(self, mail: Message, address: str) -> None:
        """Send a mail. Raises ActionFailed, whose reason does not have the address."""
        try:
            from aiosmtplib import SMTPException, SMTPResponseException
            from aiosmtplib.errors import SMTPDataError, SMTPRecipientRefused, SMTPSenderRefused
        except ImportError:
            raise ActionFailed("aiosmtplib is not installed where the edges run: install the extra `mail`") from None
        place = self._server.place
        try:
            async with asyncio.timeout(self._timeout_s * _BEGUN) as beginning:
                await self._send(mail, address, beginning)
        except SMTPRecipientRefused as error:
            raise ActionFailed(f"{place} refused the address with {error.code}", final=error.code >= 500) from None
        except SMTPResponseException as error:
            final = error.code >= 500 and error.code != _LOGIN_WANTED and isinstance(error, SMTPSenderRefused | SMTPDataError)
            raise ActionFailed(f"{place} answered {error.code}", final=final) from None
        except (SMTPException, OSError) as error:
            raise ActionFailed(f"{place}: {type(error).__name__}") from None

    async def _send(self, mail: Message, address: str, beginning: asyncio.Timeout) -> None:
        from aiosmtplib import SMTPResponseException, SMTPServerDisconnected

        if (idle := self._take()) is not None:
            try:
                await self._send_by(idle, mail, address, beginning)
                return
            except SMTPServerDisconnected:
                pass
            except SMTPResponseException as error:
                if error.code != _SHUTTING_DOWN:
                    raise
        client = self._server.client(self._timeout_s)
        await client.connect()
        await self._send_by(_Connection(client), mail, address, beginning)

    async def _send_by(self, connection: _Connection, mail: Message, address: str, beginning: asyncio.Timeout) -> None:
        client, data = connection.client, mail.as_bytes()
        try:
            await client.mail(parseaddr(mail["From"])[1], options=[f"size={len(data)}"] if client.supports_extension("size") else [])
            await client.rcpt(address)
            beginning.reschedule(None)
            await self._send_data(client, data)
        except BaseException:
            connection.client.close()
            raise
        connection.mails += 1
        if connection.mails >= self._mails_max:
            self._end(connection)
        else:
            connection.expiry = asyncio.get_running_loop().call_later(self._idle_s, self._expire, connection)
            self._idle.append(connection)

    async def _send_data(self, client: SMTP, data: bytes) -> None:
        from aiosmtplib import SMTPException
        from aiosmtplib.errors import SMTPDataError

        try:
            await client.data(data)
        except SMTPDataError:
            raise
        except (SMTPException, OSError) as error:
            raise ActionFailed(f"{self._server.place}: {type(error).__name__} after the mail", unclear=True) from None

    def _take(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.expiry is not None:
                connection.expiry.cancel()
            if connection.client.is_connected:
                return connection
        return None

    def _expire(self, connection: _Connection) -> None:
        self._idle.remove(connection)
        self._end(connection)

    def _end(self, connection: _Connection) -> None:
        task = asyncio.ensure_future(_quit(connection.client))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End those that are idle."""
        while (connection := self._take()) is not None:
            self._end(connection)
        await asyncio.gather(*self._ending)


async def _quit(client: SMTP) -> None:
    from aiosmtplib import SMTPException

    with contextlib.suppress(SMTPException, OSError):
        await client.quit()
    client.close()
