"""Mails that are shown in place of being sent, where `smtp_url` is `catch://`: the newest, in a list of Redis, which all edges see."""

from __future__ import annotations

import time
from email.header import decode_header, make_header
from email.message import Message
from typing import Any, Final

import msgspec
import redis.asyncio as redis
from msgspec import Struct

from engine.features.reach.keys import CAUGHT_MAILS_KEY
from engine.store.storage_calls import StorageCalls

MAILS_MAX: Final = 50
"""The newest that are kept: some screens of a page."""

_TEXT_CHARS_MAX: Final = 20_000
"""Of one mail, the rest is cut: the list has a megabyte at most, in Latin letters."""

_KEPT_S: Final = 86_400
"""After the last of them: they are for trying."""


class CaughtMail(Struct, frozen=True):
    """A mail.

    Args:
        key: mailbox key of the user it is for.
        at: when it came, ms since the epoch.
        to: its address.
        text: its plain text.
    """

    key: str
    at: int
    to: str
    subject: str
    text: str


encode_mail: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(CaughtMail)


class CaughtMails:
    """The list. `client`: of the first server. Every method raises StorageUnavailable."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    async def keep(self, mail: Message, address: str, key: str) -> None:
        """Keep a mail, and forget the oldest of too many."""
        text = next(part.get_payload(decode=True) for part in mail.walk() if part.get_content_type() == "text/plain")
        assert isinstance(text, bytes)
        subject = str(make_header(decode_header(mail["Subject"])))
        caught = CaughtMail(key, int(time.time() * 1000), address, subject, text.decode()[:_TEXT_CHARS_MAX])
        name = CAUGHT_MAILS_KEY
        with StorageCalls("caught mails"):
            async with self._client.pipeline() as pipeline:
                pipeline.lpush(name, encode_mail(caught))
                pipeline.ltrim(name, 0, MAILS_MAX - 1)
                pipeline.expire(name, _KEPT_S)
                await pipeline.execute()

    async def read(self) -> list[CaughtMail]:
        """All of them that can be read, the newest first."""
        return [mail for stored in await self._stored() if (mail := _mail(stored)) is not None]

    async def erase(self, key: str) -> None:
        """Forget those of a user, and those that cannot be read, which may be the user's; idempotent."""
        with StorageCalls("caught mails"):
            for stored in await self._stored():
                mail = _mail(stored)
                if mail is None or mail.key == key:
                    await self._client.lrem(CAUGHT_MAILS_KEY, 1, stored)  # type: ignore[arg-type]

    async def _stored(self) -> list[bytes]:
        with StorageCalls("caught mails"):
            found: Any = await self._client.lrange(CAUGHT_MAILS_KEY, 0, -1)
        return list(found)


def _mail(stored: bytes) -> CaughtMail | None:
    """None: it cannot be read, as after a change of the release."""
    try:
        return _decoder.decode(stored)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
