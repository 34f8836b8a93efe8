"""Connections are found by each name of the token that they have now, and by no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine.auth.tokens import Principal
from engine.gateway.open_tokens import OpenTokens

NAMES = st.sampled_from(["", "a", "b", "c"])
PRINCIPALS = st.builds(lambda user, token, jti: Principal("t", user, frozenset(), 1, None, token, jti), st.sampled_from("ab"), NAMES, NAMES)


class Connection(SimpleNamespace):
    """What the table asks of one."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


@given(st.lists(st.tuples(st.sampled_from(["open", "renew", "end"]), st.integers(0, 5), PRINCIPALS)))
def test_a_name_finds_the_connections_that_have_it_now(steps: list[tuple[str, int, Principal]]) -> None:
    tokens, there = OpenTokens(), dict[int, Any]()
    for act, number, owner in steps:
        connection = there.get(number)
        if act == "open" and connection is None:
            connection = there[number] = Connection(owner=owner)
            tokens.add(connection)
        elif act == "renew" and connection is not None:
            tokens.discard(connection)
            connection.owner = owner
            tokens.add(connection)
        elif act == "end" and connection is not None:
            tokens.discard(there.pop(number))
        for name in "abc":
            named = {id(each) for each in there.values() if name in (each.owner.user, each.owner.token_id, each.owner.jti)}
            assert {id(found) for found in tokens.of(name)} == named
        assert tokens.of("") == []
    for connection in there.values():
        tokens.discard(connection)
    assert not tokens._named
