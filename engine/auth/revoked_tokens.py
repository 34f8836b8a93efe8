"""The revocations that an edge knows, in memory: looked up with every token, also with one that was verified before.

A feature keeps them as they are in storage. While there are none, a look-up is one comparison; otherwise it is
three look-ups in a dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from engine.core.model.revocation import JTI, TOKEN, USER, Revocation

if TYPE_CHECKING:
    from engine.auth.tokens import Principal


class RevokedTokens:
    """The revocations in force.

    Attributes:
        unknown: storage has not told for too long what is revoked: whether a token that was not seen before is good cannot be said.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str, str], Revocation] = {}
        self._expiries: list[tuple[int, tuple[str, str, str]]] = []  # a heap; an entry that was extended is in it twice
        self.unknown = False

    def __len__(self) -> int:
        return len(self._entries)

    def covers(self, principal: Principal) -> bool:
        """Whether the bearer's token is revoked."""
        entries = self._entries
        if not entries:
            return False
        tenant = principal.tenant
        if (TOKEN, tenant, principal.token_id) in entries or (JTI, tenant, principal.jti) in entries:
            return True
        of_user = entries.get((USER, tenant, principal.user))
        return of_user is not None and principal.issued_ms < of_user.before_ms

    def add(self, revocations: Iterable[Revocation]) -> list[Revocation]:
        """Put revocations in force; returns those that were not."""
        added = []
        for revocation in revocations:
            key = (revocation.kind, revocation.tenant, revocation.name)
            known = self._entries.get(key)
            if known is not None and known.covers(revocation):
                continue
            merged = revocation if known is None else known.merged(revocation)
            self._entries[key] = merged
            heappush(self._expiries, (merged.expires_ms, key))
            added.append(merged)
        return added

    def missing(self, revocations: Iterable[Revocation]) -> list[Revocation]:
        """Those in force that are not, or not wholly, among these."""
        there = {revocation.entry: revocation for revocation in revocations}
        return [known for known in self._entries.values() if known.entry not in there or not there[known.entry].covers(known)]

    def forget_expired(self, now_ms: int) -> None:
        """Drop the revocations whose tokens have all expired by `now_ms`, milliseconds since the epoch."""
        while self._expiries and self._expiries[0][0] <= now_ms:
            _, key = heappop(self._expiries)
            known = self._entries.get(key)
            if known is not None and known.expires_ms <= now_ms:
                del self._entries[key]
        if len(self._expiries) > 2 * len(self._entries) + 16:  # entries that were extended over and over
            self._expiries = [(known.expires_ms, key) for key, known in self._entries.items()]
            heapify(self._expiries)
