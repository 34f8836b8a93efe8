"""The revocations that an edge knows: whom they concern, how they are merged, and when they are forgotten."""

from __future__ import annotations

import pytest

from engine.auth.revoked_tokens import RevokedTokens
from engine.auth.tokens import Principal
from engine.core.model.revocation import Revocation

ANN = Principal("acme", "ann", frozenset(), 0, token_id="t1", jti="j1", issued_ms=5000)


@pytest.mark.parametrize(
    ("revocation", "concerned"),
    [
        (Revocation("token", "acme", "t1", 9), True),
        (Revocation("token", "acme", "t2", 9), False),
        (Revocation("jti", "acme", "j1", 9), True),
        (Revocation("jti", "other", "j1", 9), False),
        (Revocation("user", "acme", "ann", 9, 5001), True),
        (Revocation("user", "acme", "ann", 9, 5000), False),
        (Revocation("user", "acme", "bob", 9, 9999), False),
        (Revocation("user", "other", "ann", 9, 9999), False),
    ],
)
def test_a_revocation_concerns_its_own_tokens_only(revocation: Revocation, concerned: bool) -> None:
    revoked = RevokedTokens()
    assert not revoked.covers(ANN)
    revoked.add([revocation])
    assert revoked.covers(ANN) is concerned


def test_a_token_without_a_time_of_issue_counts_as_issued_before_and_without_a_jti_none_names_it() -> None:
    revoked = RevokedTokens()
    revoked.add([Revocation("user", "acme", "ann", 9, 1), Revocation("jti", "acme", "j1", 9)])
    assert revoked.covers(Principal("acme", "ann", frozenset(), 0))
    assert not revoked.covers(Principal("acme", "bob", frozenset(), 0))


def test_a_later_revocation_of_the_same_takes_nothing_back() -> None:
    revoked = RevokedTokens()
    first = Revocation("user", "acme", "ann", 900, 50)
    assert revoked.add([first, first]) == [first]
    assert revoked.add([Revocation("user", "acme", "ann", 800, 40)]) == []
    assert revoked.add([Revocation("user", "acme", "ann", 700, 60)]) == [Revocation("user", "acme", "ann", 900, 60)]
    assert len(revoked) == 1


def test_a_revocation_is_forgotten_when_its_tokens_have_expired_and_not_before() -> None:
    revoked = RevokedTokens()
    revoked.add([Revocation("jti", "acme", f"j{n}", n) for n in (10, 20, 30)])
    revoked.add([Revocation("jti", "acme", "j10", 25)])
    for now_ms, left in ((9, 3), (10, 3), (20, 2), (24, 2), (25, 1), (30, 0)):
        revoked.forget_expired(now_ms)
        assert len(revoked) == left


def test_extending_a_revocation_over_and_over_takes_no_memory() -> None:
    revoked = RevokedTokens()
    for before_ms in range(1, 2000):
        revoked.add([Revocation("user", "acme", "ann", 10_000 + before_ms, before_ms)])
        revoked.forget_expired(1)
    assert len(revoked._expiries) <= 20


def test_what_storage_lacks_is_what_is_not_covered_there() -> None:
    revoked = RevokedTokens()
    kept, lost, older = (Revocation("user", "acme", name, 90, 50) for name in ("kept", "lost", "older"))
    revoked.add([kept, lost, older])
    assert revoked.missing([kept, Revocation("user", "acme", "older", 90, 40), Revocation("jti", "acme", "j", 1)]) == [lost, older]
