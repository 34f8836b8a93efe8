"""The keys that verify tokens: a secret, a public key, or a JWKS document that an identity provider publishes (RFC 7517).

Every key is bound to one algorithm by its kind: a secret to HS256, an RSA key to RS256, a P-256 key to ES256. A token's own
`alg` only selects among keys bound to it, so a public key never serves as a secret and `none` selects nothing (RFC 8725,
section 3.1).

A JWKS document is fetched while no request waits for it: `run` fetches it every `jwks_cache_s`, and sooner when a token names a key that is
not in it. Redirects are not followed: only the configured host is trusted.

Weak keys (`weaknesses`) are for trying the engine on one machine: an engine that listens on more than loopback refuses them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from engine.config import Config
from engine.errors import ConfigError
from engine.http.problems import unauthorized, unavailable
from engine.store.redis_client import display_url

log = logging.getLogger(__name__)

VerificationKey = bytes | RSAPublicKey | EllipticCurvePublicKey

SECRET_BYTES_MIN: Final = 32  # RFC 7518, section 3.2
RSA_BITS_MIN: Final = 2048  # RFC 7518, section 3.3
_JWKS_BYTES_MAX: Final = 256 << 10
_JWKS_KEYS_MAX: Final = 100
_ACCEPTED: Final = {"Accept": "application/jwk-set+json, application/json"}
_JWKS_STALE_MAX_S: Final = 86_400  # the keys read last are used for this long while their list does not answer


def algorithm_of(key: object) -> str | None:
    """The algorithm that a public key is bound to; None for a kind or size that is not accepted."""
    if isinstance(key, RSAPublicKey) and key.key_size >= RSA_BITS_MIN:
        return "RS256"
    if isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1):
        return "ES256"
    return None


class Keyring:
    """Finds the key for a token's header.

    Raises:
        ConfigError: no key is configured, a configured one is not valid, or it is weak and others can reach the engine.
    """

    def __init__(self, config: Config) -> None:
        if config.jwt_jwks_url:
            _check_url(config.jwt_jwks_url)
        weak = weaknesses(config)
        if weak and not is_loopback(config.host):
            raise ConfigError(f"{weak[0]}; only an engine on loopback starts without, and host is {config.host}")
        self._fixed: dict[str, VerificationKey] = {}
        self._url = config.jwt_jwks_url
        self._config = config
        self._listed: dict[tuple[str, str], VerificationKey] = {}  # by algorithm and key id
        self._fetched_s = 0.0  # monotonic; 0: never
        self._tried_s = 0.0
        self._wanted = asyncio.Event()
        self.version = 0  # grows when keys change: earlier verifications are void
        if config.jwt_secret:
            self._fixed["HS256"] = config.jwt_secret.encode()
        if config.jwt_public_key:
            key = _public_key(public_key_text(config.jwt_public_key))
            self._fixed[str(algorithm_of(key))] = key
        if not self._fixed and not self._url:
            raise ConfigError("one of jwt_secret, jwt_public_key and jwt_jwks_url is needed to verify tokens")

    def find(self, algorithm: str, key_id: str) -> tuple[str, VerificationKey]:
        """The algorithm and the key for a token with these header members; `key_id` is "" when it has none.

        Raises:
            Problem: 401, there is no such key; 503, the JWKS document has not been fetched, or is older than `jwks_stale_max_s`.
        """
        fixed = self._fixed.get(algorithm)
        if fixed is not None:
            return algorithm, fixed
        if not self._url or algorithm not in ("RS256", "ES256"):
            raise unauthorized("the token's algorithm is not accepted here")
        if not self._fetched_s or time.monotonic() - self._fetched_s > _JWKS_STALE_MAX_S:
            self._wanted.set()
            raise unavailable("the keys for verifying tokens are not available", 1)
        if not key_id:
            candidates = [key for (name, _), key in self._listed.items() if name == algorithm]
            if len(candidates) == 1:
                return algorithm, candidates[0]
            raise unauthorized("the token names no key, and there is not exactly one to try")
        listed = self._listed.get((algorithm, key_id))
        if listed is None:
            self._wanted.set()
            raise unauthorized("the token is signed with an unknown key")
        return algorithm, listed

    async def prepare(self) -> None:
        """Fetch the JWKS document, where one is configured, unless it has been fetched. Errors are logged; tokens that need it get 503."""
        if self._url and not self._fetched_s:
            await self._refresh()

    async def run(self) -> None:
        """Keep the JWKS document fresh until cancelled. Returns at once where none is configured."""
        if not self._url:
            return
        await self.prepare()
        while True:
            wait_s = self._config.jwks_cache_s if self._fetched_s >= self._tried_s else self._config.jwks_refetch_s
            with contextlib.suppress(TimeoutError):  # the interval is over
                async with asyncio.timeout(wait_s):  # not wait_for, which before Python 3.12 may swallow a cancellation
                    await self._wanted.wait()
            await asyncio.sleep(max(0.0, self._tried_s + self._config.jwks_refetch_s - time.monotonic()))
            self._wanted.clear()
            await self._refresh()

    async def _refresh(self) -> None:
        self._tried_s = time.monotonic()
        try:
            listed = await self.fetch()
        except Exception as error:  # whatever a foreign server sends: the keys that were read last stay
            log.warning("the keys at %s could not be read: %s", display_url(self._url), str(error) or type(error).__name__)
            return
        self._fetched_s = time.monotonic()
        if {name: _fingerprint(key) for name, key in listed.items()} != {name: _fingerprint(key) for name, key in self._listed.items()}:
            self._listed = listed
            self.version += 1
            log.info("%d keys read from %s", len(listed), display_url(self._url))

    async def fetch(self) -> dict[tuple[str, str], VerificationKey]:
        """The keys that `jwt_jwks_url` lists now, by algorithm and key id. Raises OSError, or ValueError where it is no such list."""
        from engine.http.outgoing import Outgoing

        timeout_s = self._config.jwks_timeout_ms / 1000
        async with Outgoing(proxies=True) as outgoing:
            answer = await outgoing.request("GET", self._url, _ACCEPTED, timeout_s=timeout_s, answer_bytes_max=_JWKS_BYTES_MAX)
        if answer.status != 200:
            raise ConnectionError(f"the answer is {answer.status}")
        return read_jwks(answer.body)


def weaknesses(config: Config) -> list[str]:
    """Why tokens could be forged or taken from elsewhere: a sentence per setting, with what is needed. Empty when there is no reason."""
    found = []
    if config.jwt_secret and len(config.jwt_secret.encode()) < SECRET_BYTES_MIN:
        found.append(f"jwt_secret: at least {SECRET_BYTES_MIN} bytes are needed, a shorter one can be guessed from any token")
    if config.jwt_jwks_url:
        parts = urlsplit(config.jwt_jwks_url)
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            found.append("jwt_jwks_url: https:// is needed, over http:// anyone on the way can replace the keys")
        if not config.jwt_audience:
            found.append("jwt_audience: needed with jwt_jwks_url, else tokens that the issuer made for other services are accepted")
    return found


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address; a name other than `localhost` may mean anything."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def read_jwks(text: bytes) -> dict[tuple[str, str], VerificationKey]:
    """The signature keys of a JWKS document by algorithm and key id; keys of other kinds are skipped (RFC 7517, section 5).

    Raises:
        ValueError: it is not a JWKS document, or has no usable key.
    """
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("not a JWKS document: no list `keys`")
    found: dict[tuple[str, str], VerificationKey] = {}
    for entry in entries[:_JWKS_KEYS_MAX]:
        if not isinstance(entry, dict) or entry.get("kty") not in ("RSA", "EC") or entry.get("use", "sig") != "sig":
            continue
        if not isinstance(entry.get("alg", ""), str):
            continue
        try:
            key = PyJWK.from_dict(entry).key
        except PyJWTError as error:
            log.warning("a published key was left out: %s", error)
            continue
        algorithm = algorithm_of(key)
        if algorithm is not None and entry.get("alg", algorithm) == algorithm:
            key_id = entry.get("kid", "")
            found[algorithm, key_id if isinstance(key_id, str) else ""] = key
    if not found:
        raise ValueError("no RSA (RS256) or P-256 (ES256) signature key in it")
    return found


def public_key_text(text_or_path: str) -> str:
    """PEM text, as it is given or read from the file with this path. Raises ConfigError."""
    if "-----BEGIN" in text_or_path:
        return text_or_path
    try:
        return Path(text_or_path).read_text("ascii")
    except (OSError, ValueError) as error:
        raise ConfigError(f"jwt_public_key: neither PEM text nor a readable file: {error}") from error


def _public_key(text: str) -> RSAPublicKey | EllipticCurvePublicKey:
    if "PRIVATE KEY" in text:
        raise ConfigError("jwt_public_key: this is a private key; the engine must only have the public one")
    try:
        key = load_pem_public_key(text.replace("\\n", "\n").encode())  # in environment files it is one line
    except ValueError as error:
        raise ConfigError(f"jwt_public_key: not a PEM public key: {error}") from error
    if not isinstance(key, RSAPublicKey | EllipticCurvePublicKey) or algorithm_of(key) is None:
        raise ConfigError(f"jwt_public_key: allowed are RSA keys of at least {RSA_BITS_MIN} bits (RS256) and P-256 keys (ES256)")
    return key


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("https", "http") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # half an IPv6 address; a port that can be none
        good = False
    if not good:
        raise ConfigError("jwt_jwks_url: allowed are https:// and http:// addresses")


def _fingerprint(key: VerificationKey) -> object:
    return key if isinstance(key, bytes) else key.public_numbers()
