"""Tokens that applications sign: the engine's own check accepts them, for what they say and no longer."""

from __future__ import annotations

import time

import pytest

from engine.auth.tokens import Authenticator, BearerToken
from engine.client import TokenSigner
from engine.config import Config
from engine.http.problems import Problem

SECRET = "a-secret-for-tests-of-32-characters!"


async def test_the_engine_accepts_a_token_for_its_user_tenant_and_scopes() -> None:
    config = Config(jwt_secret=SECRET, jwt_issuer="shop", jwt_audience="notifications")
    signer = TokenSigner(SECRET, tenant="acme", lifetime_s=60, issuer="shop", audience="notifications")
    authenticator = Authenticator(config)
    found = authenticator.bearer(BearerToken.of(signer.token("ann")), time.time())
    assert (found.tenant, found.user, found.scopes) == ("acme", "ann", {"connect"})
    found = authenticator.bearer(BearerToken.of(signer.publisher("photos")()), time.time())
    assert (found.user, found.scopes) == ("photos", {"publish"})
    with pytest.raises(Problem, match="expired"):
        authenticator.bearer(BearerToken.of(signer.token("ann")), time.time() + 3600)


@pytest.mark.parametrize(
    ("given", "named"),
    [({"key": "short"}, "key: a shared secret has at least 32 bytes"), ({"key": SECRET, "lifetime_s": 0}, "lifetime_s: above 0")],
)
def test_a_short_secret_or_no_lifetime_is_named(given: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        TokenSigner(**given)  # type: ignore[arg-type]


def test_a_token_is_for_somebody() -> None:
    with pytest.raises(ValueError, match="user: "):
        TokenSigner(SECRET).token("")
