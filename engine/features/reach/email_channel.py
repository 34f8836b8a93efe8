"""Mails, to the server of `smtp_url` or, where that is `catch://`, to the engine's own catcher.

A mail that the server refuses for good (5xx) is given up. Everything else is tried again, also a connection or a login that it refuses:
that is for the operator to mend. No reason names the address: reasons are logged, and kept with dead letters.
"""

from __future__ import annotations

from email.message import Message

from engine.config import CATCH_MAILS, Config
from engine.core.model.routing import mailbox_key
from engine.errors import ActionFailed, StorageUnavailable
from engine.features.actions.store import QueuedAction
from engine.features.reach.caught_mails import CaughtMails
from engine.features.reach.mail_connections import MailConnections
from engine.features.reach.mails import mail_of


class EmailChannel:
    """Sends mails.

    Args:
        config: `smtp_url`, `mail_from`, `public_url` and the limits of connections.
        catcher: takes them where `smtp_url` says so.
    """

    def __init__(self, config: Config, catcher: CaughtMails) -> None:
        self._config = config
        self._catcher = catcher
        self._connections = MailConnections(config) if config.smtp_url and config.smtp_url != CATCH_MAILS else None

    async def send(self, action: QueuedAction, address: str) -> None:
        """Send the mail about this message to this address. Raises ActionFailed."""
        mail = mail_of(action, address, self._config.mail_from, self._config.public_url)
        await self.deliver(mail, address, mailbox_key(action.tenant, action.user))

    async def deliver(self, mail: Message, address: str, key: str) -> None:
        """Send a mail to this address of the user with this mailbox key. Raises ActionFailed."""
        if self._connections is not None:
            await self._connections.send(mail, address)
        elif self._config.smtp_url:
            try:
                await self._catcher.keep(mail, address, key)
            except StorageUnavailable as error:
                raise ActionFailed(str(error), unclear=True) from None
        else:
            raise ActionFailed("the setting smtp_url is empty", final=True)

    async def close(self) -> None:
        """End what is open and idle."""
        if self._connections is not None:
            await self._connections.close()
