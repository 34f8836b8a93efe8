"""The addresses of a user in other channels: what may be one, and how they are kept."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Struct

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

_EMAIL: Final = re.compile(EMAIL_PATTERN)


class Addresses(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The addresses of one user; empty where there is none.

    Args:
        email: a mail address.
        apprise: URLs of Apprise: services, and who the user is there. They have tokens.
    """

    email: str = ""
    apprise: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Without the addresses: they are nobody else's business, and so in no log."""
        return "Addresses(***)"


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


def encode_addresses(addresses: Addresses) -> bytes:
    """As JSON."""
    return _encode(addresses)
