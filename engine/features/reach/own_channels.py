"""`/v1/channels`: the addresses of the bearer itself. A mail address is one when its mailbox has confirmed it.

    PUT /v1/channels/email --limits--> mail with a link --> its mailbox
    GET of the link    a page with a button. It changes nothing: mail systems open the links of mails to look at them
    POST of the link   the address is the user's; durable with the page. Not when the user was erased since the mail was asked for

Until the button is pressed nothing is kept: user and address are in the link, signed with the key of unsubscribe links, for
`LINK_S`. So a crash loses a mail at most, and the user asks again. The mail is sent within the request, which fails when the mail
server does not take it: with 503 for now, with 422 for good.

Whom such mails could bother: `confirm_address_max` in a day to one address, whoever asks, and `confirm_user_max` for one user. They have no
text of the user's own. The counters name users and addresses by a digest, and expire. A mail that the server does not take now is not
counted; one that it refuses for good is, since the next one would be, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Struct
from starlette.responses import Response

from engine.api.json_bodies import decode_body
from engine.config import Config
from engine.core.model.routing import mailbox_key, split_key
from engine.errors import ActionFailed, Invalid, StorageUnavailable
from engine.features.policy.unsubscribe_links import make_link_token, read_link_token
from engine.features.policy.unsubscribing import LinkKey
from engine.features.reach.confirmation import confirmation_mail, confirmation_page
from engine.features.reach.core.addresses import Addresses, check_addresses
from engine.features.reach.email_channel import EmailChannel
from engine.features.reach.store import LINK_S, AddressStore
from engine.http.problems import RETRY_AFTER_S, not_found, too_many_requests, unavailable, whole_seconds
from engine.publish import media_types

PATH: Final = "/v1/channels/confirm"

_SPAN_MS: Final = 86_400_000  # in which `confirm_user_max` and `confirm_address_max` count
_CALLS_MAX: Final = 8  # mails of confirmation that one edge sends at once; beyond them 503


class _Claims(Struct, tag_field="use", tag="confirm"):
    """What a link is for. `exp`: seconds since the epoch. `asked_ms`: when it was asked for, by the clock of storage."""

    tenant: str
    user: str
    email: str
    asked_ms: int
    exp: int


class _Wanted(Struct, forbid_unknown_fields=True, gc=False):
    """The body of `PUT /v1/channels/email`."""

    email: str


_claims: Final = msgspec.json.Decoder(_Claims)
_wanted: Final = msgspec.json.Decoder(_Wanted)


class OwnChannels:
    """The mail address of the bearer.

    Args:
        link_key: links are signed with it.
        wall_ms: milliseconds since the epoch.
    """

    def __init__(self, config: Config, addresses: AddressStore, link_key: LinkKey, wall_ms: Callable[[], int], email: EmailChannel) -> None:
        self._config = config
        self._addresses = addresses
        self._link_key = link_key
        self._wall_ms = wall_ms
        self._email = email
        self._calls = 0

    async def ask(self, key: str, body: bytes, language: str) -> dict[str, Any]:
        """Send the mail of confirmation, for the user with this mailbox key.

        Returns:
            The address that is to be confirmed, and until when; without the time when it is the user's already, and there is no mail.

        Raises:
            Problem: 400 or 422, it is no address, or none that the mail server sends to; 404, this engine sends no such mails; 429, a
                limit; 503, storage or the mail server does not answer.
        """
        config = self._config
        if not (config.smtp_url and config.public_url):
            raise not_found("this engine confirms no addresses: the settings smtp_url and public_url are needed")
        email = decode_body(_wanted, body, _Wanted).email
        try:
            check_addresses(Addresses(email))
            if not email:
                raise Invalid("a mail address; DELETE removes one", "$.email")
        except Invalid as error:
            raise media_types.unacceptable(error) from None
        if self._calls >= _CALLS_MAX:
            raise unavailable("too many mails of confirmation are being sent", RETRY_AFTER_S)
        self._calls += 1
        try:
            if (await self._addresses.read(key)).email == email:
                return {"email": email}
            limits = {_digest("user", key): config.confirm_user_max, _digest("address", email.lower()): config.confirm_address_max}
            asked = await self._addresses.count_asked(limits, _SPAN_MS)
            if asked.wait_ms:
                raise too_many_requests("too many mails of confirmation were asked for", whole_seconds(asked.wait_ms))
            expires_s = self._wall_ms() // 1000 + LINK_S
            token = make_link_token(_Claims(*split_key(key), email, asked.at_ms, expires_s), await self._link_key())
            link = f"{config.public_url.rstrip('/')}{PATH}?token={quote(token, safe='')}"
            try:
                await self._email.deliver(confirmation_mail(email, config.mail_from, link, language), email, key)
            except ActionFailed as error:
                if error.final:
                    raise media_types.unacceptable(Invalid(str(error), "$.email")) from None
                if not error.unclear:
                    await self._addresses.uncount_asked(limits)  # or an outage of the mail server would cost the user a day
                raise
        except (StorageUnavailable, ActionFailed) as error:
            raise unavailable(str(error), RETRY_AFTER_S) from None
        finally:
            self._calls -= 1
        return {"email": email, "confirm_until": expires_s * 1000}

    async def show(self, token: str, language: str) -> Response:
        """The answer to `GET` of a link; it changes nothing."""
        try:
            claims = await self._read(token)
        except StorageUnavailable:
            return confirmation_page("away", language, status=503)
        return confirmation_page("invalid", language, status=404) if claims is None else confirmation_page("ask", language, claims.email)

    async def confirm(self, token: str, language: str) -> Response:
        """The answer to `POST` of a link: the address is the user's."""
        try:
            claims = await self._read(token)
            if claims is None:
                return confirmation_page("invalid", language, status=404)
            if not await self._addresses.confirm(mailbox_key(claims.tenant, claims.user), claims.email, claims.asked_ms):
                return confirmation_page("invalid", language, status=404)
        except StorageUnavailable:
            return confirmation_page("away", language, status=503)
        return confirmation_page("done", language, claims.email)

    async def _read(self, token: str) -> _Claims | None:
        """What a link is for, None when it is not valid. Raises StorageUnavailable."""
        if re.fullmatch(r"[\w-]+\.[\w-]+\.[\w-]+", token, re.ASCII) is None:
            return None
        return read_link_token(token, await self._link_key(), self._wall_ms() / 1000, _claims)


def _digest(kind: str, name: str) -> str:
    return blake2b(f"{kind}\n{name}".encode(), digest_size=16).hexdigest()
