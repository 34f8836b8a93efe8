"""One revocation: which tokens are refused although they are signed and have not expired."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

TOKEN: Final = "token"  # one token, by what was signed
JTI: Final = "jti"  # one token, by its claim `jti`
USER: Final = "user"  # the tokens of a user that were issued before a time


class Revocation(Struct, frozen=True):
    """Tokens of a tenant that are revoked.

    Attributes:
        kind: TOKEN, JTI or USER.
        tenant: of the tokens; those of another tenant are not concerned.
        name: for TOKEN the `token_id` of a principal, for JTI the claim, for USER the user.
        expires_ms: when the last of these tokens has expired by itself, ms since the epoch; then the revocation may be forgotten.
        before_ms: of a USER: tokens issued before this time are revoked, ms since the epoch.
    """

    kind: str
    tenant: str
    name: str
    expires_ms: int
    before_ms: int = 0

    @property
    def entry(self) -> str:
        """What it revokes, as one text: two revocations of the same are one."""
        return f"{self.kind}:{self.tenant}:{self.name}"  # neither kind nor tenant has a colon

    def merged(self, other: Revocation) -> Revocation:
        """This one and another one of the same entry, as one."""
        expires_ms, before_ms = max(self.expires_ms, other.expires_ms), max(self.before_ms, other.before_ms)
        return Revocation(self.kind, self.tenant, self.name, expires_ms, before_ms)

    def covers(self, other: Revocation) -> bool:
        """Whether the other one adds nothing to this one, of the same entry."""
        return self.before_ms >= other.before_ms and self.expires_ms >= other.expires_ms


def revocation_of(entry: str, before_ms: int, expires_ms: int) -> Revocation:
    """The revocation of an `entry`. Raises ValueError when it is none."""
    kind, tenant, name = entry.split(":", 2)
    return Revocation(kind, tenant, name, expires_ms, before_ms)
