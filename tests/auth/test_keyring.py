"""Which key verifies a token, and how a published list of keys is read, kept and fetched anew."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from engine.auth.keyring import Keyring, algorithm_of, read_jwks, weaknesses
from engine.config import Config
from engine.errors import ConfigError
from engine.http.problems import Problem
from tests.support.background_task import background
from tests.support.key_server import DEADLINE_S, KeyServer, jwk, jwks
from tests.support.waiting import until

SECRET = "a secret of more than thirty-two bytes"
RSA_KEY = rsa.generate_private_key(65537, 2048)
OTHER_RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
WEAK_KEY = rsa.generate_private_key(65537, 1024)
P384_KEY = ec.generate_private_key(ec.SECP384R1())


@pytest.fixture
def key_server() -> Iterator[KeyServer]:
    server = KeyServer()
    yield server
    server.close()


def pem(key: Any) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()  # type: ignore[no-any-return]


def status_of(keyring: Keyring, algorithm: str, key_id: str) -> int:
    try:
        keyring.find(algorithm, key_id)
    except Problem as problem:
        return problem.status
    return 200


# -- Configured keys. --------------------------------------------------------------------------------------------------
def test_an_engine_without_a_usable_key_does_not_start(tmp_path: Path) -> None:
    private = RSA_KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    for config, said in (
        (Config(), "one of jwt_secret"),
        (Config(jwt_public_key=str(tmp_path / "missing.pem")), "neither PEM text nor a readable file"),
        (Config(jwt_public_key="-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----"), "not a PEM public key"),
        (Config(jwt_public_key=private), "private key"),
        (Config(jwt_public_key=pem(WEAK_KEY)), "2048"),
        (Config(jwt_public_key=pem(P384_KEY)), "P-256"),
        (Config(jwt_jwks_url="file:///etc/passwd"), "https"),
        (Config(jwt_jwks_url="https://"), "https"),
        (Config(jwt_jwks_url="keys.example.com"), "https"),
        (Config(jwt_jwks_url="https://[::1/keys"), "https"),
        (Config(jwt_jwks_url="https://keys.example.com:https"), "https"),
    ):
        with pytest.raises(ConfigError, match=said):
            Keyring(config)


@pytest.mark.parametrize(("key", "algorithm"), [(RSA_KEY, "RS256"), (EC_KEY, "ES256"), (WEAK_KEY, None), (P384_KEY, None), (rsa, None)])
def test_a_key_is_bound_to_one_algorithm_by_its_kind_and_size(key: Any, algorithm: str | None) -> None:
    assert algorithm_of(key.public_key() if hasattr(key, "public_key") else key) == algorithm


def test_a_tokens_algorithm_selects_only_among_keys_bound_to_it() -> None:
    both = Keyring(Config(jwt_secret=SECRET, jwt_public_key=pem(EC_KEY)))
    assert both.find("HS256", "whatever") == ("HS256", SECRET.encode())
    algorithm, key = both.find("ES256", "")
    assert (algorithm, algorithm_of(key)) == ("ES256", "ES256")
    assert [status_of(both, name, "") for name in ("RS256", "ES384", "PS256", "none", "", "hs256")] == [401] * 6
    assert status_of(Keyring(Config(jwt_public_key=pem(RSA_KEY))), "HS256", "") == 401


JWKS = "https://keys.example.com/jwks"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"jwt_secret": "x" * 31}, "jwt_secret: at least 32 bytes"),
        ({"jwt_jwks_url": "http://keys.example.com/jwks", "jwt_audience": "us"}, "jwt_jwks_url: https:// is needed"),
        ({"jwt_jwks_url": JWKS}, "jwt_audience: needed with jwt_jwks_url"),
        ({"jwt_secret": SECRET, "jwt_jwks_url": JWKS}, "jwt_audience: "),
    ],
)
def test_an_engine_that_others_reach_refuses_keys_with_which_tokens_can_be_forged(settings: dict[str, str], named: str) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "2001:db8::1", "engine.example.com", ""):
        with pytest.raises(ConfigError, match=named):
            Keyring(Config(host=host, **settings))  # type: ignore[arg-type]
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        config = Config(host=host, **settings)  # type: ignore[arg-type]
        Keyring(config)
        (weakness,) = weaknesses(config)
        assert weakness.startswith(named.partition(":")[0])


@pytest.mark.parametrize(
    "settings",
    [
        {"jwt_secret": "x" * 32},
        {"jwt_secret": "\u00e4" * 16},
        {"jwt_public_key": pem(RSA_KEY)},
        {"jwt_jwks_url": JWKS, "jwt_audience": "us"},
        {"jwt_jwks_url": "http://127.0.0.1:8080/jwks", "jwt_audience": "us"},
    ],
)
def test_strong_keys_are_taken_on_any_host(settings: dict[str, str]) -> None:
    config = Config(host="0.0.0.0", **settings)  # type: ignore[arg-type]
    Keyring(config)
    assert weaknesses(config) == []


# -- A published list. -------------------------------------------------------------------------------------------------
def test_keys_are_listed_by_algorithm_and_id() -> None:
    listed = read_jwks(jwks(one=RSA_KEY, two=EC_KEY))
    assert listed.keys() == {("RS256", "one"), ("ES256", "two")}
    assert read_jwks(json.dumps({"keys": [jwk(EC_KEY), {**jwk(RSA_KEY), "kid": 7}]}).encode()).keys() == {("ES256", ""), ("RS256", "")}


@pytest.mark.parametrize(
    "entry",
    [
        {**jwk(RSA_KEY), "use": "enc"},
        {**jwk(RSA_KEY), "alg": "RS512"},
        {**jwk(RSA_KEY), "alg": 5},
        {**jwk(RSA_KEY), "alg": "HS256"},
        {**jwk(RSA_KEY), "kty": "oct"},
        {**jwk(EC_KEY), "x": "AAAA"},
        jwk(WEAK_KEY),
        jwk(P384_KEY),
        {"kty": "RSA"},
        {"kty": ["RSA"]},
        "key",
    ],
)
def test_an_entry_that_is_no_signature_key_is_left_out_and_the_others_are_read(entry: Any) -> None:
    good = {**jwk(EC_KEY), "kid": "good", "use": "sig", "alg": "ES256"}
    assert read_jwks(json.dumps({"keys": [entry, good]}).encode()).keys() == {("ES256", "good")}
    with pytest.raises(ValueError, match="no RSA"):
        read_jwks(json.dumps({"keys": [entry]}).encode())


def test_a_list_without_end_is_read_to_its_hundredth_entry() -> None:
    filler = [{"kty": "oct"}] * 99
    assert read_jwks(json.dumps({"keys": [*filler, jwk(EC_KEY), jwk(RSA_KEY)]}).encode()).keys() == {("ES256", "")}


async def test_the_list_is_fetched_once_before_the_first_token(key_server: KeyServer) -> None:
    key_server.publish(one=RSA_KEY)
    keyring = Keyring(Config(jwt_jwks_url=key_server.url))
    assert status_of(keyring, "RS256", "one") == 503
    for _ in range(2):
        await keyring.prepare()
    assert key_server.requests == 1
    assert [status_of(keyring, *wanted) for wanted in (("RS256", "one"), ("RS256", "two"), ("HS256", "one"))] == [200, 401, 401]


async def test_a_token_without_a_key_id_is_verified_by_the_only_key_of_its_algorithm(key_server: KeyServer) -> None:
    key_server.publish(one=RSA_KEY, two=OTHER_RSA_KEY, three=EC_KEY)
    keyring = Keyring(Config(jwt_jwks_url=key_server.url))
    await keyring.prepare()
    assert status_of(keyring, "RS256", "") == 401
    assert status_of(keyring, "ES256", "") == 200


async def test_the_version_grows_when_the_keys_change_and_only_then(key_server: KeyServer) -> None:
    key_server.publish(one=RSA_KEY)
    keyring = Keyring(Config(jwt_jwks_url=key_server.url, jwks_cache_s=1, jwks_refetch_s=1))
    async with background(keyring.run()):
        await until(lambda: keyring.version == 1)
        fetched = key_server.requests
        await until(lambda: key_server.requests > fetched + 1)  # the one in between has been read
        assert keyring.version == 1
        key_server.publish(one=OTHER_RSA_KEY)
        await until(lambda: keyring.version == 2)


async def test_the_keys_last_seen_are_used_while_their_list_is_away(key_server: KeyServer) -> None:
    key_server.publish(one=RSA_KEY)
    keyring = Keyring(Config(jwt_jwks_url=key_server.url, jwks_cache_s=1, jwks_refetch_s=1))
    async with background(keyring.run()):
        await until(lambda: status_of(keyring, "RS256", "one") == 200)
        key_server.say(b"", 500)
        before = key_server.requests
        await until(lambda: key_server.requests > before)
        assert status_of(keyring, "RS256", "one") == 200


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\r\n\r\n", b"HTTP/1.1 banana OK\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 " + b"x" * 70_000 + b"\r\n\r\n",
    ],
)  # fmt: skip
async def test_an_answer_that_is_no_http_leaves_the_keys_last_seen(key_server: KeyServer, answer: bytes) -> None:
    key_server.publish(one=RSA_KEY)
    keyring = Keyring(Config(jwt_jwks_url=key_server.url, jwks_cache_s=1, jwks_refetch_s=1))
    running = asyncio.create_task(keyring.run())

    def malformed(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(answer)
        handler.close_connection = True

    try:
        await until(lambda: status_of(keyring, "RS256", "one") == 200)
        key_server.answer = malformed
        before = key_server.requests
        await until(lambda: key_server.requests > before + 1)
        assert not running.done()
        assert status_of(keyring, "RS256", "one") == 200
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("body", "status", "headers"),
    [
        (b"", 200, {}),
        (b"[]", 200, {}),
        (b'{"keys":5}', 200, {}),
        (b'{"keys":[]}', 200, {}),
        (b'{"keys":[5,{"kty":"RSA"},{"kty":"oct","k":"AAAA","kid":"one"}]}', 200, {}),
        (b"[" * 100_000, 200, {}),
        (b" " * (300 << 10), 200, {}),
        (b"", 404, {}),
        (b"", 302, {"Location": "/elsewhere"}),
    ],
)
async def test_a_list_that_cannot_be_used_leaves_the_engine_without_keys(
    key_server: KeyServer, body: bytes, status: int, headers: dict[str, str]
) -> None:
    key_server.say(body, status, **headers)
    keyring = Keyring(Config(jwt_jwks_url=key_server.url))
    await keyring.prepare()
    assert key_server.requests == 1
    assert status_of(keyring, "RS256", "one") == 503


async def test_a_list_that_trickles_in_is_given_up(key_server: KeyServer) -> None:
    ended = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        with suppress(ConnectionError):
            while not ended.wait(0.02):
                handler.wfile.write(b" ")

    key_server.answer = trickle
    keyring = Keyring(Config(jwt_jwks_url=key_server.url, jwks_timeout_ms=200))
    begun = time.monotonic()
    try:
        await asyncio.wait_for(keyring.prepare(), DEADLINE_S)
    finally:
        ended.set()
    assert time.monotonic() - begun < DEADLINE_S / 2
    assert status_of(keyring, "RS256", "one") == 503


async def test_without_published_keys_there_is_nothing_to_keep_fresh() -> None:
    keyring = Keyring(Config(jwt_secret=SECRET))
    await asyncio.wait_for(keyring.prepare(), DEADLINE_S)
    await asyncio.wait_for(keyring.run(), DEADLINE_S)
