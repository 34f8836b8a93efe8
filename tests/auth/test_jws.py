"""Tokens taken apart, against the examples of RFC 7515 and against another library."""

from __future__ import annotations

import base64
import json

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from engine.auth import jws

# RFC 7515, appendix A.1.
RFC_TOKEN = (
    "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9."
    "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ."
    "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
)
RFC_KEY = base64.urlsafe_b64decode("AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow==")


def test_the_example_of_rfc_7515_is_verified() -> None:
    signed = jws.parse(RFC_TOKEN)
    assert (signed.header.alg, signed.header.kid) == ("HS256", "")
    assert signed.payload == b'{"iss":"joe",\r\n "exp":1300819380,\r\n "http://example.com/is_root":true}'
    assert jws.verify(signed, "HS256", RFC_KEY)
    assert not jws.verify(signed, "HS256", RFC_KEY + b"x")


@given(st.binary(min_size=1, max_size=300), st.binary(min_size=32, max_size=64))
def test_what_is_made_is_verified_here_and_elsewhere(payload: bytes, secret: bytes) -> None:
    token = jws.make(payload, secret)
    signed = jws.parse(token)
    assert signed.payload == payload
    assert jws.verify(signed, "HS256", secret)
    assert jwt.PyJWS().decode(token, secret, ["HS256"]) == payload


@pytest.mark.parametrize(
    ("key", "algorithm"), [(rsa.generate_private_key(65537, 2048), "RS256"), (ec.generate_private_key(ec.SECP256R1()), "ES256")]
)
def test_another_librarys_tokens_are_verified_and_changed_ones_are_not(key: rsa.RSAPrivateKey, algorithm: str) -> None:
    token = jwt.encode({"sub": "ann"}, key, algorithm, headers={"kid": "k1"})
    signed = jws.parse(token)
    assert (signed.header.kid, json.loads(signed.payload)) == ("k1", {"sub": "ann"})
    assert jws.verify(signed, algorithm, key.public_key())
    for changed in (signed.signature[:-1], signed.signature + b"\0", b"", bytes(len(signed.signature))):
        assert not jws.verify(jws.Signed(signed.header, signed.payload, signed.signing_input, changed), algorithm, key.public_key())
    assert not jws.verify(jws.Signed(signed.header, b"", signed.signing_input + b"x", signed.signature), algorithm, key.public_key())


@pytest.mark.parametrize(
    "token", ["", "a.b", "a.b.c.d", "..", "a..b", "a.b.", ".a.b", "ab.c d.e", "ab=.cd.ef", "äb.cd.ef", "ab.cd.ef\n", "a.b.c"]
)
def test_what_is_no_token_is_a_value_error(token: str) -> None:
    with pytest.raises(ValueError):
        jws.parse(token)


@pytest.mark.parametrize(
    "header", [b"[]", b"{}", b'{"alg":5}', b'{"alg":"HS256","crit":["b64"],"b64":false}', b"{", b"\xff", b'{"x":' * 5000]
)
def test_a_header_that_cannot_be_honoured_is_a_value_error(header: bytes) -> None:
    with pytest.raises(ValueError):
        jws.parse(base64.urlsafe_b64encode(header).decode().rstrip("=") + ".e30.AAAA")
