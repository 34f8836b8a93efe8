"""The tokens of links in mails. Whoever has one of an unsubscribe link may turn one category of one user off, and back on. Nothing else,
and without login.

A token is a JWT, signed with a key of its own (`engine:unsubscribe-key` in Redis), and not with one that bearer tokens are signed with.
So neither passes for the other; a changed `jwt_secret`, or an engine that has only published keys, is no matter; and revoking the tokens of
a user leaves the links in their mails working. The claim `use` keeps it apart from the other links that this key signs
(`engine.features.reach.own_channels`).

It is a secret in a URL: it is in the mail, in the user's browser, and in the access log of a proxy that writes whole URLs. The engine
writes no access log, and quotes no token in an answer or a log line.
"""

from __future__ import annotations

from typing import Final, Protocol, TypeVar

import msgspec
from msgspec import Struct

from engine.auth import jws

LINK_S: Final = 5 * 365 * 86_400
"""How long a link is good: one in an old mail must work, and the law wants 30 days to 2 years."""

KEY_BYTES: Final = 32
_TOKEN_CHARS_MAX: Final = 4096  # a user's name has at most some hundred characters


class LinkClaims(Struct, tag_field="use", tag="unsubscribe"):
    """What a link is for. `exp`: seconds since the epoch."""

    tenant: str
    user: str
    category: str
    exp: int


class _Expiring(Protocol):
    exp: int


ClaimsT = TypeVar("ClaimsT", bound=_Expiring)

unsubscribe_claims: Final = msgspec.json.Decoder(LinkClaims)
_encode: Final = msgspec.json.Encoder().encode


def make_link_token(claims: _Expiring, key: bytes) -> str:
    """The signed token of a link."""
    return jws.make(_encode(claims), key)


def read_link_token(token: str, key: bytes, now_s: float, decoder: msgspec.json.Decoder[ClaimsT]) -> ClaimsT | None:
    """What a token is for; None when it is none of this key and use, or has expired. `decoder`: of the claims of this use."""
    if len(token) > _TOKEN_CHARS_MAX:
        return None
    try:
        signed = jws.parse(token)
        if not jws.verify(signed, "HS256", key):
            return None
        claims = decoder.decode(signed.payload)
    except ValueError:  # msgspec.DecodeError is one
        return None
    return claims if now_s < claims.exp else None
