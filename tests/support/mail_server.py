"""A real mail server in this process (aiosmtpd), on a free port of the loopback interface, in a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, NamedTuple

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from tests.support.free_port import free_port

LOST = "lost"


class Mail(NamedTuple):
    """A mail as it came. `at_ms`: by the clock of this process."""

    recipients: list[str]
    message: EmailMessage
    at_ms: int


class MailServer:
    """Answers the data of mails with `answers`, one after another, then takes all; refuses the addresses in `refused` for good.

    `LOST` among the answers: the mail is taken, and the connection ends without an answer.
    """

    def __init__(self) -> None:
        self.mails: list[Mail] = []
        self.answers: list[str] = []
        self.refused: set[str] = set()
        self.logins: list[tuple[bytes, bytes]] = []
        self.port = 0
        self.connections = 0
        self.quits = 0

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self.port}"

    def to(self, address: str) -> list[EmailMessage]:
        return [mail.message for mail in self.mails if mail.recipients == [address]]

    async def handle_EHLO(self, _server: Any, session: Any, _envelope: Any, hostname: str, responses: list[str]) -> list[str]:  # noqa: N802
        self.connections += 1
        session.host_name = hostname
        return responses

    async def handle_QUIT(self, _server: Any, _session: Any, _envelope: Any) -> str:  # noqa: N802
        self.quits += 1
        return "221 bye"

    async def handle_RCPT(self, _server: Any, _session: Any, envelope: Any, address: str, _options: Any) -> str:  # noqa: N802
        if address in self.refused:
            return "550 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        answer = self.answers.pop(0) if self.answers else ""
        if answer not in ("", LOST):
            return answer
        message = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(message, EmailMessage)
        self.mails.append(Mail(envelope.rcpt_tos, message, int(time.time() * 1000)))
        if answer == LOST:
            server.transport.abort()
        return "250 OK"

    def authenticate(self, _server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append((data.login, data.password))
        return AuthResult(success=data.password == b"se cret", handled=False)


@contextmanager
def mail_server(*, login: bool = False, port: int = 0) -> Iterator[MailServer]:
    """`login`: it wants a user whose password is `se cret`."""
    server = MailServer()
    options: dict[str, Any] = {"authenticator": server.authenticate, "auth_required": True, "auth_require_tls": False} if login else {}
    server.port = port or free_port()
    controller = Controller(server, hostname="127.0.0.1", port=server.port, **options)
    controller.start()
    try:
        yield server
    finally:
        controller.stop()
