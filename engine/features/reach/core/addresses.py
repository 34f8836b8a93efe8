"""The addresses of a user in other channels: what may be one, and how they are kept."""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec
from msgspec import Struct

from engine.core.model.action import WebhookTarget, parse_target
from engine.errors import Invalid

EMAIL_CHARS_MAX: Final = 254
"""RFC 5321, section 4.5.3.1.3, with erratum 1690."""

EMAIL_PATTERN: Final = (
    r"^[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$"
)
"""As browsers check `<input type=email>` (HTML, section 4.10.5.1.5): nothing in it can end a header line."""

URLS_MAX: Final = 5
URL_CHARS_MAX: Final = 500
"""Of Apprise: the services of a user, and the length of a URL of theirs."""

BROWSERS_MAX: Final = 10
ENDPOINT_CHARS_MAX: Final = 1000
"""Of Web Push: the browsers of a user, and the length of the URL of one; those of Windows have some 600."""

P256DH_PATTERN: Final = r"^B[A-Za-z0-9_-]{86}$"
AUTH_PATTERN: Final = r"^[A-Za-z0-9_-]{22}$"
"""RFC 8291, section 3: an uncompressed point of P-256, and 16 bytes; base64url, without the padding."""

_P256DH: Final = re.compile(P256DH_PATTERN)
_AUTH: Final = re.compile(AUTH_PATTERN)
_EMAIL: Final = re.compile(EMAIL_PATTERN)


class PushKeys(Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a browser: for whom a push is encrypted, and a secret that says who may."""

    p256dh: str
    auth: str


class PushSubscription(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, rename={"expires_ms": "expirationTime"}):
    """A browser that shows pushes, as `PushSubscription.toJSON()` has it (Push API, section 8).

    Args:
        endpoint: URL at the browser's push service. Who knows it may not push without the engine's key.
        keys: see there.
        expires_ms: milliseconds since the epoch; None: it is not known when.
    """

    endpoint: str
    keys: PushKeys
    expires_ms: float | None = None

    def __repr__(self) -> str:
        """Without the address, as with `Addresses`."""
        return "PushSubscription(***)"

    @property
    def id(self) -> str:
        """Its name in the paths of requests and the keys of actions, which the browser makes alike: of the SHA-256 of the endpoint."""
        return hashlib.sha256(self.endpoint.encode()).hexdigest()[:32]

    @property
    def target(self) -> WebhookTarget:
        """Where to post. Raises Invalid."""
        try:
            target = parse_target(self.endpoint)
        except Invalid:
            target = None
        if not isinstance(target, WebhookTarget):
            raise Invalid("the https:// URL of a push service", "endpoint")
        return target


class Addresses(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The addresses of one user; empty where there is none.

    Args:
        email: a mail address.
        apprise: URLs of Apprise: services, and who the user is there. They have tokens.
        push: browsers, the newest last.
    """

    email: str = ""
    apprise: tuple[str, ...] = ()
    push: tuple[PushSubscription, ...] = ()

    def __repr__(self) -> str:
        """Without the addresses: they are nobody else's business, and so in no log."""
        return "Addresses(***)"

    def with_browser(self, given: PushSubscription) -> Addresses:
        """With this browser, the newest; the oldest goes where they are too many."""
        others = tuple(one for one in self.push if one.id != given.id)
        return msgspec.structs.replace(self, push=(*others, given)[-BROWSERS_MAX:])

    def without_browser(self, id: str) -> Addresses:
        return msgspec.structs.replace(self, push=tuple(one for one in self.push if one.id != id))


NO_ADDRESSES: Final = Addresses()

_encode: Final = msgspec.json.Encoder().encode
decoder: Final = msgspec.json.Decoder(Addresses)


def check_addresses(addresses: Addresses) -> None:
    """Raises Invalid, with the path of the member that is no address."""
    if addresses.email and (len(addresses.email) > EMAIL_CHARS_MAX or _EMAIL.fullmatch(addresses.email) is None):
        raise Invalid(f"a mail address such as ann@example.com, of at most {EMAIL_CHARS_MAX} characters", "$.email")
    if len(addresses.apprise) > URLS_MAX:
        raise Invalid(f"at most {URLS_MAX} URLs", "$.apprise")
    for index, url in enumerate(addresses.apprise):
        if not (url.isascii() and url.isprintable() and " " not in url and len(url) <= URL_CHARS_MAX):
            raise Invalid(f"printable ASCII without spaces, at most {URL_CHARS_MAX} characters", f"$.apprise[{index}]")
    if len(addresses.push) > BROWSERS_MAX:
        raise Invalid(f"at most {BROWSERS_MAX} browsers", "$.push")


def check_browser(browser: PushSubscription) -> None:
    """Raises Invalid, with the name of the member that is none of a browser."""
    if len(browser.endpoint) > ENDPOINT_CHARS_MAX:
        raise Invalid(f"at most {ENDPOINT_CHARS_MAX} characters", "endpoint")
    _ = browser.target
    if _P256DH.fullmatch(browser.keys.p256dh) is None:
        raise Invalid("an uncompressed point of P-256, base64url without padding", "keys.p256dh")
    if _AUTH.fullmatch(browser.keys.auth) is None:
        raise Invalid("16 bytes, base64url without padding", "keys.auth")


def encode_addresses(addresses: Addresses) -> bytes:
    """As JSON."""
    return _encode(addresses)
