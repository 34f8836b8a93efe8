"""No token but a good one lets anybody in, and none does more harm than a 401: header, claims, signature and published keys."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.auth import jws
from engine.auth.keyring import read_jwks
from engine.auth.tokens import Authenticator, Principal
from engine.config import Config
from engine.core.model.names import is_tenant, is_user
from engine.http.problems import Problem
from tests.support.hostile_input import ODD_TOKENS, encoded, json_tokens, mutated, nested, objects, texts, values

SECRET = "a secret of the tests, long enough to be one"
NOW_S = 1_700_000_000
AUTHENTICATOR = Authenticator(Config(jwt_secret=SECRET))

numbers = st.sampled_from(
    [b"1800000000", b"1800000000.5", b"0", b"-1", b"1e400", b"1e18", b"NaN", b'"1800000000"', b"1699999990", b"1" + b"0" * 400]
)
claims = objects(
    {
        "sub": st.one_of(st.just(b'"u1"'), texts.map(encoded)), "exp": numbers, "nbf": numbers, "iss": json_tokens, "aud": json_tokens,
        "tenant": st.one_of(st.just(b'"t1"'), texts.map(encoded)), "scope": st.one_of(st.just(b'"connect admin"'), texts.map(encoded)),
        "topics": st.lists(texts, max_size=3).map(encoded),
    },
    ["sub", "exp"],
)  # fmt: skip
algorithms = st.sampled_from([b'"HS256"', b'"none"', b'"RS256"', b'"ES256"', b'"hs256"', b'""'])
headers = st.one_of(
    st.just(b'{"alg":"HS256","typ":"JWT"}'),
    objects({"alg": algorithms, "kid": texts.map(encoded), "crit": json_tokens, "jwk": json_tokens}, ["alg"]),
    json_tokens,
)  # fmt: skip


def segment(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def signed(header: bytes, payload: bytes, secret: str = SECRET) -> str:
    signing_input = f"{segment(header)}.{segment(payload)}"
    return f"{signing_input}.{segment(jws._ALGORITHMS['HS256'].sign(signing_input.encode(), secret.encode()))}"


def principal_of(token: str) -> Principal | None:
    """Who holds the token; None for a 401 that does not give the token away."""
    found: Principal | Problem
    try:
        found = AUTHENTICATOR.token_principal(token, NOW_S)
    except Problem as problem:
        found = problem
    if isinstance(found, Principal):
        return found
    assert found.status == 401, found.body()
    assert len(token) < 24 or token[-24:] not in json.dumps(found.body())
    return None


@settings(max_examples=200, deadline=None)
@given(headers, mutated(claims))
@example(b'{"alg":"HS256"}', b'{"sub":"u1","exp":1800000000}')
@example(b'{"alg":"HS256"}', nested(5000, array=False))
@example(nested(5000, array=True), b"{}")
def test_whatever_our_secret_signed_gives_a_lawful_principal_or_a_401(header: bytes, payload: bytes) -> None:
    principal = principal_of(signed(header, payload))
    if principal is not None:
        assert is_user(principal.user, 128)
        assert is_tenant(principal.tenant)
        assert principal.expires_s >= NOW_S - 5
        assert json.loads(header)["alg"] == "HS256"


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(texts, st.binary(max_size=60).map(lambda raw: raw.decode("latin-1"))),
    st.integers(0, 200),
    st.sampled_from(["insert", "replace", "cut", "append", "other"]),
)
def test_no_mutation_of_a_good_token_passes_for_it(junk: str, at: int, how: str) -> None:
    good = signed(b'{"alg":"HS256"}', b'{"sub":"u1","exp":1800000000}')
    at = min(at, len(good) - 1)
    forged = {
        "insert": good[:at] + junk + good[at:],
        "replace": good[:at] + junk + good[at + 1 :],
        "cut": good[:at],
        "append": good + junk,
        "other": signed(b'{"alg":"HS256"}', b'{"sub":"admin","exp":1800000000}', junk + "x"),
    }[how]
    principal = principal_of(forged)
    if forged != good and principal is not None:
        # Base64 leaves bits of the last character unused: another spelling of the very same signature is no forgery.
        assert how == "replace"
        assert principal == principal_of(good)
        assert jws.parse(forged).signature == jws.parse(good).signature


jwk = st.one_of(
    objects(
        {
            "kty": st.sampled_from([b'"RSA"', b'"EC"', b'"oct"']), "n": st.one_of(st.just(b'"AQAB"'), texts.map(encoded)),
            "e": st.sampled_from([b'"AQAB"', b'""', b'"AA"', b'"AQ"', b"1"]), "crv": st.sampled_from([b'"P-256"', b'"P-521"']),

            "x": texts.map(encoded), "y": texts.map(encoded), "kid": json_tokens, "use": json_tokens, "alg": json_tokens,
        },
        ["kty"],
    ),
    json_tokens,
)  # fmt: skip
documents = st.one_of(
    st.lists(jwk, max_size=4).map(lambda keys: b'{"keys":[%b]}' % b",".join(keys)),
    json_tokens,
    st.builds(lambda token: b'{"keys":%b}' % token, st.sampled_from(ODD_TOKENS)),
    st.binary(max_size=50),
)


@settings(max_examples=200, deadline=None)
@given(mutated(documents))
@example(nested(100_000, array=True))
@example(b'{"keys":[{"kty":"RSA","alg":{"a":1}}]}')
def test_any_published_list_of_keys_is_read_or_refused_as_a_value_error(document: bytes) -> None:
    try:
        found = read_jwks(document)
    except ValueError:
        return
    assert found


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([b"authorization", b"cookie", b"x"]), st.binary(max_size=60)), max_size=4),
    st.binary(max_size=60),
    st.lists(texts, max_size=3),
)
def test_any_place_for_a_token_is_searched_without_harm(headers: list[tuple[bytes, bytes]], query: bytes, offered: list[str]) -> None:
    with pytest.raises(Problem) as refused:
        AUTHENTICATOR.authenticate(headers, query, offered, now_s=NOW_S)
    assert refused.value.status == 401


@settings(max_examples=200, deadline=None)
@given(values)
def test_a_minted_principal_never_comes_from_claims_of_another_shape(value: Any) -> None:
    assert principal_of(signed(b'{"alg":"HS256"}', encoded(value))) is None or isinstance(value, dict)
