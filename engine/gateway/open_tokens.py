"""The open connections of one edge, by the names under which their tokens can be revoked.

A token has three: its user, its id and its claim `jti`. Almost every name has one connection, which stands in the table itself: a
connection costs an entry for each name, some 50 bytes, and no object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.auth.tokens import Principal
    from engine.gateway.connection import Connection


class OpenTokens:
    """See the module's text. `add` and `discard` by the principal that the connection has then."""

    __slots__ = ("_named",)

    def __init__(self) -> None:
        self._named: dict[str, Connection | set[Connection]] = {}

    def add(self, connection: Connection) -> None:
        """The connection is open, or has another token."""
        named = self._named
        for name in _names(connection.owner):
            there = named.get(name)
            if there is None:
                named[name] = connection
            elif isinstance(there, set):
                there.add(connection)
            else:
                named[name] = {there, connection}

    def discard(self, connection: Connection) -> None:
        """The connection has ended, or is about to have another token."""
        named = self._named
        for name in _names(connection.owner):
            there = named.get(name)
            if there is connection:
                del named[name]
            elif isinstance(there, set):
                there.discard(connection)
                if not there:
                    del named[name]

    def of(self, name: str) -> list[Connection]:
        """The connections with a token of this name: of any kind and tenant, so each must still be compared with the revocation."""
        there = self._named.get(name)
        if there is None:
            return []
        return list(there) if isinstance(there, set) else [there]


def _names(owner: Principal) -> set[str]:
    """Without the empty one, which stands for no name."""
    return {owner.user, owner.token_id, owner.jti} - {""}
