"""Tokens: what is accepted, what is refused and how that is said."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import RSAAlgorithm
from starlette.datastructures import Headers

from engine.auth.revoked_tokens import RevokedTokens
from engine.auth.tokens import Authenticator, Principal, find_token, load_or_create_secret, load_secret, mint, require
from engine.config import Config
from engine.core.model.revocation import Revocation
from engine.errors import ConfigError, Invalid
from engine.http.cors import origin_allowed
from engine.http.problems import Problem
from tests.support.background_task import background
from tests.support.key_server import KeyServer
from tests.support.waiting import until

NOW_S = 1_700_000_000.0
SECRET = "a secret of more than thirty-two bytes"
CONFIG = Config(jwt_secret=SECRET)
DEADLINE_S = 20

RSA_KEY = rsa.generate_private_key(65537, 2048)
OTHER_RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


def pem(key: Any) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()  # type: ignore[no-any-return]


def encoded(value: object) -> bytes:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def signed(claims: object, header: object = None, secret: str = SECRET) -> str:
    """A token with a good HS256 signature, whatever it says."""
    signing_input = encoded(header or {"alg": "HS256", "typ": "JWT"}) + b"." + encoded(claims)
    return (signing_input + b"." + encoded(hmac.digest(secret.encode(), signing_input, "sha256"))).decode()


def claims(**changes: object) -> dict[str, object]:
    made = {"sub": "ann", "exp": int(NOW_S) + 60, **changes}
    return {name: value for name, value in made.items() if value is not ...}


def refusal(token: str, config: Config = CONFIG, now_s: float = NOW_S) -> Problem:
    with pytest.raises(Problem) as caught:
        Authenticator(config).token_principal(token, now_s)
    problem = caught.value
    assert problem.status == 401
    assert "Bearer" in problem.headers["WWW-Authenticate"]
    assert all(len(part) < 8 or part not in json.dumps(problem.body()) for part in token.split("."))
    return problem


# -- Good tokens. ------------------------------------------------------------------------------------------------------
def test_a_token_tells_who_its_bearer_is() -> None:
    issued = {"jti": "j1", "iat": NOW_S - 1.5}
    token = signed(claims(tenant="acme", scope="connect publish", topics=["news"], extra={"a": 1}, **issued))
    principal = Authenticator(CONFIG).token_principal(token, NOW_S)
    signed_part = hashlib.sha256(token.rpartition(".")[0].encode()).hexdigest()[:32]
    assert principal == Principal(
        "acme", "ann", frozenset(("connect", "publish")), int(NOW_S) + 60, frozenset(("news",)),
        signed_part, "j1", int(NOW_S * 1000) - 1500,
    )  # fmt: skip


def test_tenant_and_scope_have_defaults() -> None:
    principal = Authenticator(CONFIG).token_principal(signed(claims()), NOW_S)
    assert (principal.tenant, principal.scopes, principal.topics) == ("default", {"connect"}, None)


def test_a_minted_token_is_accepted_with_issuer_and_audience() -> None:
    config = Config(jwt_secret=SECRET, jwt_issuer="us", jwt_audience="engine")
    token = mint(SECRET, "zoë", ("publish", "admin"), 60, "acme", now_s=NOW_S, issuer="us", audience="engine")
    principal = Authenticator(config).token_principal(token, NOW_S)
    assert (principal.tenant, principal.user, principal.scopes) == ("acme", "zoë", {"publish", "admin"})
    assert (principal.expires_s, principal.issued_ms) == (int(NOW_S) + 60, int(NOW_S) * 1000)
    again = mint(SECRET, "zoë", ("publish", "admin"), 60, "acme", now_s=NOW_S, issuer="us", audience="engine")
    assert principal.jti
    assert Authenticator(config).token_principal(again, NOW_S).jti != principal.jti


def test_a_minted_token_is_read_by_another_library() -> None:
    token = mint(SECRET, "ann", ("connect",), 1e9, now_s=NOW_S)
    assert jwt.decode(token, SECRET, ["HS256"])["sub"] == "ann"


@pytest.mark.parametrize(
    "arguments",
    [(SECRET, "", ("connect",), 5), (SECRET, "a", ("conect",), 5), (SECRET, "a", (), 0), (SECRET, "a", (), -1), ("", "a", (), 5)],
)
def test_no_token_is_minted_that_would_be_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(Invalid):
        mint(*arguments, now_s=NOW_S)
    with pytest.raises(Invalid):
        mint(SECRET, "a", ("connect",), 5, "a:b", now_s=NOW_S)


def test_an_unknown_scope_is_named() -> None:
    with pytest.raises(Invalid, match="'foo'; allowed are connect, publish, events, admin, metrics, operator"):
        mint(SECRET, "a", ("connect", "foo"), 5, now_s=NOW_S)


def test_a_short_secret_is_good_enough_on_loopback() -> None:
    token = mint("short", "ann", ("connect",), 60, now_s=NOW_S)
    assert Authenticator(Config(jwt_secret="short")).token_principal(token, NOW_S).user == "ann"


# -- Time. -------------------------------------------------------------------------------------------------------------
def test_a_token_is_good_until_it_expires_and_no_longer() -> None:
    authenticator = Authenticator(CONFIG)
    token = signed(claims(exp=int(NOW_S) + 60))
    for now_s in (NOW_S, NOW_S + 59.9):
        assert authenticator.token_principal(token, now_s).user == "ann"
    for _ in range(2):  # remembered or not
        with pytest.raises(Problem, match="expired"):
            authenticator.token_principal(token, NOW_S + 60)


@pytest.mark.parametrize("odd", [None, "yesterday", -1, 0, 1e300, True, [1], {}])
def test_a_token_whose_time_of_issue_makes_no_sense_is_taken_and_counts_as_old(odd: object) -> None:
    assert Authenticator(CONFIG).token_principal(signed(claims(iat=odd)), NOW_S).issued_ms <= 1000


@pytest.mark.parametrize(("jti", "read"), [(7, "7"), (None, ""), (["x"], "['x']")])
def test_an_odd_jti_is_no_reason_to_refuse_a_token(jti: object, read: str) -> None:
    assert Authenticator(CONFIG).token_principal(signed(claims(jti=jti)), NOW_S).jti == read


def test_a_token_that_lives_longer_than_a_revocation_is_refused() -> None:
    config = Config(jwt_secret=SECRET, token_lifetime_s_max=3600)
    for made in (claims(exp=int(NOW_S) + 3601), claims(exp=int(NOW_S) + 60, iat=NOW_S - 3541)):
        assert "3600 seconds at most" in refusal(signed(made), config).detail
    for made in (claims(exp=int(NOW_S) + 3600), claims(exp=int(NOW_S) + 60, iat=NOW_S - 3540)):
        Authenticator(config).token_principal(signed(made), NOW_S)
    with pytest.raises(Invalid, match="at most 3600"):
        mint(SECRET, "a", ("connect",), 3601, now_s=NOW_S, lifetime_s_max=3600)


def test_a_time_of_issue_ahead_makes_no_token_live_longer() -> None:
    config = Config(jwt_secret=SECRET, token_lifetime_s_max=3600)
    assert "3600 seconds at most" in refusal(signed(claims(exp=int(NOW_S) + 3700, iat=NOW_S + 3600)), config).detail
    Authenticator(config).token_principal(signed(claims(exp=int(NOW_S) + 3602, iat=NOW_S + 3)), NOW_S)


def test_a_minted_token_of_the_longest_life_is_accepted() -> None:
    made = mint(SECRET, "a", ("connect",), 3600, now_s=NOW_S + 0.5, lifetime_s_max=3600)
    principal = Authenticator(Config(jwt_secret=SECRET, token_lifetime_s_max=3600)).token_principal(made, NOW_S + 0.5)
    assert principal.issued_ms == NOW_S * 1000 + 500  # a revocation earlier in this second does not cover it


# -- Revocation. -------------------------------------------------------------------------------------------------------
def test_a_revoked_token_is_refused_whether_it_was_verified_before_or_not() -> None:
    revoked = RevokedTokens()
    seen, fresh = Authenticator(CONFIG, revoked), Authenticator(CONFIG, revoked)
    token = signed(claims(jti="j1", iat=NOW_S - 10))
    principal = seen.token_principal(token, NOW_S)
    for revocation in (
        Revocation("token", "default", principal.token_id, 1),
        Revocation("jti", "default", "j1", 1),
        Revocation("user", "default", "ann", 1, int(NOW_S - 9) * 1000),
    ):
        revoked.__init__()  # type: ignore[misc]
        assert seen.token_principal(token, NOW_S) == principal
        revoked.add([revocation])
        for authenticator in (seen, fresh):
            with pytest.raises(Problem, match="revoked") as caught:
                authenticator.token_principal(token, NOW_S)
            assert caught.value.status == 401
        assert seen._verified == {}


def test_another_spelling_of_a_revoked_token_is_the_same_token() -> None:
    revoked = RevokedTokens()
    config = Config(jwt_public_key=pem(EC_KEY))
    authenticator = Authenticator(config, revoked)
    token = jwt.encode(claims(), EC_KEY, "ES256")
    revoked.add([Revocation("token", "default", authenticator.token_principal(token, NOW_S).token_id, 1)])
    signature = base64.urlsafe_b64decode(token.rpartition(".")[2] + "==")
    s = int.from_bytes(signature[32:], "big")
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256
    mirrored = signature[:32] + (order - s).to_bytes(32, "big")
    for spelt in (token[:-1] + chr(ord(token[-1]) + 1), token.rpartition(".")[0] + "." + encoded(mirrored).decode()):
        assert spelt != token
        assert Authenticator(config).token_principal(spelt, NOW_S).user == "ann", "good, had it not been revoked"
        with pytest.raises(Problem, match="revoked"):
            authenticator.token_principal(spelt, NOW_S)


def test_while_it_is_not_known_what_is_revoked_only_tokens_seen_before_are_taken() -> None:
    revoked = RevokedTokens()
    authenticator = Authenticator(CONFIG, revoked)
    seen = signed(claims())
    authenticator.token_principal(seen, NOW_S)
    revoked.unknown = True
    assert authenticator.token_principal(seen, NOW_S).user == "ann"
    with pytest.raises(Problem) as caught:
        authenticator.token_principal(signed(claims(sub="bob")), NOW_S)
    assert (caught.value.status, caught.value.headers["Retry-After"]) == (503, "1")


def test_a_token_of_the_future_is_refused() -> None:
    assert "nbf" in refusal(signed(claims(nbf=NOW_S + 6))).detail
    assert Authenticator(CONFIG).token_principal(signed(claims(nbf=NOW_S + 5)), NOW_S).user == "ann"


# -- Bad tokens. -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"exp": ...}, "exp"),
        ({"exp": "tomorrow"}, "exp"),
        ({"exp": None}, "exp"),
        ({"exp": True}, "exp"),
        ({"exp": -1}, "exp"),
        ({"exp": 1e300}, "exp"),
        ({"exp": 10**400}, "exp"),
        ({"sub": ...}, "sub"),
        ({"sub": ""}, "sub"),
        ({"sub": 5}, "sub"),
        ({"sub": None}, "sub"),
        ({"sub": "x" * 129}, "sub"),
        ({"sub": "a\nb"}, "sub"),
        ({"tenant": ""}, "tenant"),
        ({"tenant": "a:b"}, "tenant"),
        ({"tenant": 5}, "tenant"),
        ({"tenant": "x" * 65}, "tenant"),
        ({"scope": ["connect"]}, "scope"),
        ({"scope": None}, "scope"),
        ({"nbf": "now"}, "nbf"),
        ({"iss": 5}, "iss"),
        ({"aud": 5}, "aud"),
        ({"aud": [5]}, "aud"),
        ({"topics": "news"}, "topics"),
        ({"topics": [5]}, "topics"),
        ({"topics": [""]}, "topics"),
        ({"topics": ["t"] * 1001}, "topics"),
    ],
)
def test_a_malformed_claim_is_refused_by_its_name(change: dict[str, object], named: str) -> None:
    assert named in refusal(signed(claims(**change))).detail


@pytest.mark.parametrize(
    "payload", [b"", b"null", b"[]", b"5", b'"x"', b"{", b"\xff", b'{"sub":"\\ud800","exp":1}', b'{"sub":' + b"[" * 3000]
)
def test_a_payload_that_is_no_object_is_refused(payload: bytes) -> None:
    refusal(signed(payload))


@pytest.mark.parametrize(
    "token", ["x", "a.b", "a.b.c", "a.b.c.d", "....", "é.é.é", "x" * 9000, "\x00", "\ud800.a.b", signed(claims())[:-2]]
)
def test_what_is_no_token_is_refused(token: str) -> None:
    refusal(token)


@pytest.mark.parametrize(
    "header",
    [[], {}, {"alg": None}, {"alg": 5}, {"alg": "none"}, {"alg": "HS512"}, {"alg": "HS256", "crit": ["x"]}, {"alg": "HS256", "kid": 5}],
)
def test_a_header_that_asks_for_anything_else_is_refused(header: object) -> None:
    refusal(signed(claims(), header or {"typ": "JWT"}))


def test_a_token_without_a_signature_is_refused() -> None:
    for algorithm in ("none", "None", "NONE", "nOnE", "HS256"):
        refusal(f"{encoded({'alg': algorithm}).decode()}.{encoded(claims()).decode()}.")


def test_a_token_signed_with_another_secret_is_refused() -> None:
    refusal(signed(claims(), secret=SECRET + "."))


def test_a_changed_payload_is_refused() -> None:
    header, _, signature = signed(claims()).split(".")
    refusal(f"{header}.{encoded(claims(sub='bob')).decode()}.{signature}")


def test_issuer_and_audience_are_checked_when_configured() -> None:
    config = Config(jwt_secret=SECRET, jwt_issuer="us", jwt_audience="engine")
    assert "iss" in refusal(signed(claims(aud="engine")), config).detail
    assert "iss" in refusal(signed(claims(aud="engine", iss="them")), config).detail
    assert "aud" in refusal(signed(claims(iss="us")), config).detail
    assert "aud" in refusal(signed(claims(iss="us", aud=["other"])), config).detail
    for audience in ("engine", ["other", "engine"]):
        assert Authenticator(config).token_principal(signed(claims(iss="us", aud=audience)), NOW_S).user == "ann"


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda raw: raw.decode("latin-1")))
def test_arbitrary_text_is_refused(text: str) -> None:
    refusal(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*claims(tenant=1, scope=1, topics=1), "x"]), inner),
    ),
    st.sampled_from(["sub", "exp", "tenant", "scope", "nbf", "aud", "topics"]),
)
def test_arbitrary_signed_claims_are_accepted_or_refused(value: object, name: str) -> None:
    for payload in (value, claims(**{name: value})):
        with suppress(Problem):
            Authenticator(CONFIG).token_principal(signed(payload), NOW_S)


# -- Remembered tokens. ------------------------------------------------------------------------------------------------
def test_a_token_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    authenticator = Authenticator(CONFIG)
    token = signed(claims())
    first = authenticator.token_principal(token, NOW_S)
    monkeypatch.setattr(authenticator, "verify", None)
    assert authenticator.token_principal(token, NOW_S) is first


def test_no_more_tokens_are_remembered_than_allowed() -> None:
    authenticator = Authenticator(Config(jwt_secret=SECRET, verified_tokens_max=3))
    for number in range(10):
        authenticator.token_principal(signed(claims(sub=f"u{number}")), NOW_S)
    assert len(authenticator._verified) == 3
    newest = hashlib.sha256(signed(claims(sub="u9")).encode()).digest()
    assert newest in authenticator._verified


# -- Keys. -------------------------------------------------------------------------------------------------------------
def test_public_keys_verify_with_the_algorithm_of_their_kind(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text(pem(EC_KEY))
    for key, algorithm, given_as in (
        (RSA_KEY, "RS256", pem(RSA_KEY)),
        (EC_KEY, "ES256", pem(EC_KEY)),
        (EC_KEY, "ES256", str(tmp_path / "key.pem")),
        (RSA_KEY, "RS256", pem(RSA_KEY).replace("\n", "\\n")),
    ):
        token = jwt.encode(claims(), key, algorithm)
        assert Authenticator(Config(jwt_public_key=given_as)).token_principal(token, NOW_S).user == "ann"


@pytest.mark.parametrize(("key", "name"), [(RSA_KEY, "RS256"), (EC_KEY, "ES256")])
def test_a_public_key_never_serves_as_a_secret(key: Any, name: str) -> None:
    config = Config(jwt_public_key=pem(key))
    for algorithm in ("HS256", name):
        refusal(signed(claims(), {"alg": algorithm, "typ": "JWT"}, pem(key)), config)
        refusal(signed(claims(), {"alg": algorithm, "typ": "JWT"}, pem(key).strip()), config)


def test_a_token_cannot_bring_its_own_key() -> None:
    token = jwt.encode(claims(), OTHER_RSA_KEY, "RS256", headers={"jwk": json.loads(RSAAlgorithm.to_jwk(OTHER_RSA_KEY.public_key()))})
    refusal(token, Config(jwt_public_key=pem(RSA_KEY)))


def test_other_signature_algorithms_of_the_same_key_are_refused() -> None:
    for algorithm in ("RS384", "RS512", "PS256"):
        refusal(jwt.encode(claims(), RSA_KEY, algorithm), Config(jwt_public_key=pem(RSA_KEY)))


def test_a_secret_and_a_public_key_each_verify_their_own_tokens() -> None:
    authenticator = Authenticator(Config(jwt_secret=SECRET, jwt_public_key=pem(RSA_KEY)))
    assert authenticator.token_principal(signed(claims(sub="a")), NOW_S).user == "a"
    assert authenticator.token_principal(jwt.encode(claims(sub="b"), RSA_KEY, "RS256"), NOW_S).user == "b"


# -- Published keys. ---------------------------------------------------------------------------------------------------
@pytest.fixture
def key_server() -> Iterator[KeyServer]:
    server = KeyServer()
    yield server
    server.close()


def keyed(key: Any, kid: str | None, **changes: object) -> str:
    algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
    return jwt.encode(claims(**changes), key, algorithm, headers=None if kid is None else {"kid": kid})


def status_of(authenticator: Authenticator, token: str) -> int:
    try:
        authenticator.token_principal(token, NOW_S)
    except Problem as problem:
        return problem.status
    return 200


async def test_published_keys_verify_by_their_id_and_kind(key_server: KeyServer) -> None:
    key_server.publish(one=RSA_KEY, two=EC_KEY)
    authenticator = Authenticator(Config(jwt_jwks_url=key_server.url))
    await authenticator.prepare()
    assert status_of(authenticator, keyed(RSA_KEY, "one")) == 200
    assert status_of(authenticator, keyed(EC_KEY, "two")) == 200
    assert status_of(authenticator, keyed(EC_KEY, None)) == 200  # the only one of its kind
    assert status_of(authenticator, keyed(RSA_KEY, "two")) == 401
    assert status_of(authenticator, keyed(OTHER_RSA_KEY, "one")) == 401
    assert status_of(authenticator, keyed(RSA_KEY, "three")) == 401
    assert status_of(authenticator, signed(claims(), {"alg": "HS256", "kid": "one"}, pem(RSA_KEY))) == 401
    await authenticator.prepare()
    assert key_server.requests == 1


async def test_until_the_keys_are_read_tokens_get_503_and_afterwards_they_are_verified(key_server: KeyServer) -> None:
    key_server.say(b"", 500)
    authenticator = Authenticator(Config(jwt_jwks_url=key_server.url, jwt_secret=SECRET, jwks_refetch_s=1))
    async with background(authenticator.run()):
        await until(lambda: key_server.requests == 1)
        token = keyed(RSA_KEY, "one")
        with pytest.raises(Problem) as caught:
            authenticator.token_principal(token, NOW_S)
        assert (caught.value.status, caught.value.headers["Retry-After"]) == (503, "1")
        assert status_of(authenticator, signed(claims())) == 200  # the secret's tokens do not wait for it
        key_server.publish(one=RSA_KEY)
        await until(lambda: status_of(authenticator, token) == 200)


async def test_an_unknown_key_id_fetches_the_list_anew_but_not_more_often_than_allowed(key_server: KeyServer) -> None:
    key_server.publish(one=RSA_KEY)
    authenticator = Authenticator(Config(jwt_jwks_url=key_server.url, jwks_refetch_s=1))
    async with background(authenticator.run()):
        await until(lambda: status_of(authenticator, keyed(RSA_KEY, "one")) == 200)
        begun = time.monotonic()
        key_server.publish(two=EC_KEY)
        token = keyed(EC_KEY, "two")
        await until(lambda: status_of(authenticator, token) == 200)
        assert key_server.requests <= 2 + (time.monotonic() - begun) // 1
        assert status_of(authenticator, keyed(RSA_KEY, "one")) == 401  # withdrawn: what was remembered counts no more


# -- Where tokens are found. -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("headers", "query", "subprotocols", "expected"),
    [
        ([(b"authorization", b"Bearer T1")], b"token=T2", ["bearer.T3"], "T1"),
        ([(b"authorization", b"bearer  T1 ")], b"", [], "T1"),
        ([(b"authorization", b"Basic dTpw"), (b"cookie", b"notify_token=T4")], b"token=T2", ["notify.v1.json", "bearer.T3"], "T3"),
        ([(b"cookie", b"notify_token=T4")], b"a=1&token=T2&token=T9", ["notify.v1.json"], "T2"),
        ([(b"cookie", b'a=b; notify_token="T4"; c=d')], b"mytoken=T2", [], "T4"),
        ([(b"cookie", b"a=b"), (b"cookie", b"notify_token=T4")], b"", [], "T4"),
        ([], b"token=a%2Eb%2ec", [], "a.b.c"),
        ([], b"", [], ""),
        ([(b"authorization", b"Bearer")], b"", [], ""),
        ([(b"cookie", b"xnotify_token=T4; notify_token")], b"", [], ""),
    ],
)
def test_the_most_deliberate_token_decides(
    headers: list[tuple[bytes, bytes]], query: bytes, subprotocols: list[str], expected: str
) -> None:
    assert find_token(headers, query, subprotocols) == expected
    assert find_token(Headers(raw=headers), query, subprotocols) == expected


@given(st.lists(st.tuples(st.sampled_from([b"authorization", b"cookie"]), st.binary(max_size=30))), st.binary(max_size=30))
def test_arbitrary_headers_and_queries_are_refused(headers: list[tuple[bytes, bytes]], query: bytes) -> None:
    with pytest.raises(Problem) as caught:
        Authenticator(CONFIG).authenticate(headers, b"token=" + query, now_s=NOW_S)
    assert caught.value.status == 401


def test_a_request_without_a_token_is_challenged_and_one_with_a_good_token_is_not() -> None:
    authenticator = Authenticator(CONFIG)
    with pytest.raises(Problem) as caught:
        authenticator.authenticate([], b"", now_s=NOW_S)
    assert (caught.value.status, caught.value.headers) == (401, {"WWW-Authenticate": 'Bearer realm="engine"'})
    headers = Headers({"authorization": f"Bearer {signed(claims())}"})
    assert authenticator.authenticate(headers, b"", now_s=NOW_S).user == "ann"


def test_a_bad_token_is_not_made_good_by_another_one_elsewhere() -> None:
    with pytest.raises(Problem):
        Authenticator(CONFIG).authenticate([(b"authorization", b"Bearer nonsense")], b"token=" + signed(claims()).encode(), now_s=NOW_S)


# -- Scopes and origins. -----------------------------------------------------------------------------------------------
def test_a_scope_is_needed_by_its_own_name() -> None:
    principal = Principal("default", "ann", frozenset(("admin",)), 0)
    require(principal, "admin")
    with pytest.raises(Problem) as caught:
        require(principal, "publish")
    assert caught.value.status == 403
    assert 'scope="publish"' in caught.value.headers["WWW-Authenticate"]


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        (None, "engine.example", True),
        ("https://engine.example", "engine.example", True),
        ("https://engine.example", "engine.example:443", True),
        ("https://ENGINE.example", "Engine.Example", True),
        ("http://127.0.0.1:8000", "127.0.0.1:8000", True),
        ("http://[::1]:8000", "[::1]:8000", True),
        ("http://engine.example", "engine.example:443", False),
        ("https://engine.example:8443", "engine.example", False),
        ("https://app.example", "engine.example", True),
        ("https://app.example:443", "engine.example", True),
        ("http://app.example", "engine.example", False),
        ("https://app.example.evil", "engine.example", False),
        ("https://evil.app.example", "engine.example", False),
        ("null", "engine.example", False),
        ("", "engine.example", False),
        ("https://", "", False),
        ("https://[bad", "engine.example", False),
        ("https://a:99999", "engine.example", False),
        ("file://", "engine.example", False),
    ],
)
def test_pages_of_the_engine_and_of_listed_origins_may_connect(origin: str | None, host: str, allowed: bool) -> None:
    config = Config(allowed_origins=("https://app.example",))
    assert origin_allowed(origin, host, config) is allowed
    assert origin_allowed(origin, host, Config(allowed_origins=("*",)))


# -- The engine's own secret. ------------------------------------------------------------------------------------------
def test_the_secret_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    secret = load_or_create_secret(folder)
    assert len(base64.urlsafe_b64decode(secret + "=")) >= 32
    (path,) = folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_or_create_secret(str(folder)) == secret
    assert load_or_create_secret(tmp_path / "other") != secret


def test_processes_that_start_at_once_agree_on_one_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(lambda _: load_or_create_secret(tmp_path), range(64)))) == 1
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_a_secret_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    load_or_create_secret(tmp_path)
    (path,) = tmp_path.iterdir()
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o}.*chmod 600"):
        load_or_create_secret(tmp_path)


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 64])
def test_a_file_without_a_secret_is_refused(tmp_path: Path, content: bytes) -> None:
    load_or_create_secret(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="secret"):
        load_or_create_secret(tmp_path)


def test_a_data_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        load_or_create_secret(tmp_path / "file")


def test_only_the_engines_start_makes_a_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no engine has made a secret there; .* --data-dir"):
        load_secret(tmp_path / "elsewhere")
    assert not list(tmp_path.iterdir())
    made = load_or_create_secret(tmp_path)
    assert load_secret(tmp_path) == made
