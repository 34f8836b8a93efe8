"""Authentication and scopes: the JWT (RFC 7519) of a request, verified before anything else happens to it.

The first token found decides, in the order of how deliberately a client sends it: `Authorization: Bearer`, the WebSocket subprotocol
`bearer.<token>`, `?token=`, and last the cookie `notify_token`, which browsers attach by themselves.

Verification takes tens of microseconds, and reconnecting clients and busy publishers present the same token many times. So verified tokens
are cached by their SHA-256, at most `verified_tokens_max`, evicted first in, first out. Expiry and revocation are still checked each time,
and a change of keys clears the cache.

A revoked token is known by what was signed, not by its text: in the text of a signature some bits mean nothing, and ECDSA signatures can be
altered without a key. While storage cannot tell what is revoked, tokens in the cache go on and others get 503 (`RevokedTokens.unknown`).

No detail of a problem contains a token or a part of one.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Struct
from starlette.datastructures import Headers

from engine.auth import jws
from engine.auth.keyring import SECRET_BYTES_MIN, Keyring
from engine.auth.revoked_tokens import RevokedTokens
from engine.config import Config
from engine.core.model.names import is_tenant, is_user
from engine.errors import ConfigError, Invalid
from engine.http.problems import RETRY_AFTER_S, forbidden, unauthorized, unavailable

COOKIE: Final = b"notify_token"
SUBPROTOCOL_PREFIX: Final = "bearer."
ADMIN: Final = "admin"
EVENTS: Final = "events"
METRICS: Final = "metrics"
OPERATOR: Final = "operator"
SCOPES: Final = ("connect", "publish", EVENTS, ADMIN, METRICS, OPERATOR)
SECRET_FILE: Final = "jwt-secret"
TOKEN_USER_CHARS_MAX: Final = 1024  # of minted tokens; the engine that reads one may allow fewer
RawHeaders = Sequence[tuple[bytes, bytes]]
"""As in an ASGI scope, names in lower case."""

TOKEN_CHARS_MAX: Final = 8192  # about what fits a request header
TOKEN_TOPICS_MAX: Final = 1000
_LEEWAY_S: Final = 5  # of `nbf` and `iat`: clocks of two machines differ by seconds, not minutes. `exp` has none
_JTI_BYTES: Final = 12
_GRANT_BYTES: Final = 32
_TOKEN_ID_CHARS: Final = 32  # 128 bits
_SECONDS_MAX: Final = 1 << 40  # far beyond any token's life, far below what a float holds exactly


class Principal(Struct, frozen=True, gc=False):
    """The bearer of a verified token."""

    tenant: str
    user: str
    scopes: frozenset[str]
    expires_s: int  # seconds since the epoch
    topics: frozenset[str] | None = None  # that the bearer may subscribe to; None: all
    token_id: str = ""  # of the token: a digest of what was signed
    jti: str = ""  # the claim, if the token has it
    issued_ms: int = 0  # ms since the epoch; 0 when the token does not have it: it counts as issued before everything


class BearerToken(Struct, frozen=True, gc=False):
    """A token as it was presented, "" for none, and its SHA-256, by which a verified one is known."""

    text: str
    digest: bytes

    @classmethod
    def of(cls, text: str) -> BearerToken:
        # One that is too long is refused by its length: what of it is hashed does not matter.
        return cls(text, sha256(text[: TOKEN_CHARS_MAX + 1].encode("utf-8", "surrogatepass")).digest())


class _Claims(Struct, gc=False):
    """The claims that are read, with their types; others are ignored (RFC 7519, section 4)."""

    sub: str
    exp: int | float
    nbf: int | float = 0
    iss: str = ""
    aud: str | list[str] = ""
    tenant: str = "default"
    scope: str = "connect"
    topics: list[str] | None = None
    jti: Any = None  # of any kind, as issuers have it: a token is not refused for it
    iat: Any = None


class Authenticator:
    """Verifies tokens. One per process; call it from its event loop only.

    Args:
        revoked: the revocations in force; none when left out.

    Raises:
        ConfigError: no key is configured, or a configured one is not valid.
    """

    def __init__(self, config: Config, revoked: RevokedTokens | None = None) -> None:
        self._config = config
        self._revoked = RevokedTokens() if revoked is None else revoked
        self._keyring = Keyring(config)
        self._claims = msgspec.json.Decoder(_Claims)
        self._verified: dict[bytes, Principal] = {}
        self._granted: dict[bytes, Principal] = {}
        self._version = self._keyring.version

    async def prepare(self) -> None:
        """Fetch published keys, where configured. Errors are logged; tokens that need these keys get 503."""
        await self._keyring.prepare()

    async def run(self) -> None:
        """Keep the published keys fresh until cancelled; returns at once where none are configured."""
        await self._keyring.run()

    def authenticate(
        self,
        headers: Headers | RawHeaders,
        query_string: bytes,
        subprotocols: Sequence[str] = (),
        *,
        now_s: float,
    ) -> Principal:
        """The principal of a request.

        Args:
            headers: Starlette's, or those of an ASGI scope.
            query_string: still percent-encoded.
            subprotocols: those that a WebSocket client offers.
            now_s: seconds since the epoch.

        Raises:
            Problem: 401, no valid token; 503, published keys are needed and have not been fetched, or what is revoked is not known.
        """
        return self.token_principal(find_token(headers, query_string, subprotocols), now_s)

    def token_principal(self, token: str, now_s: float) -> Principal:
        """The principal of a token, "" for none. Raises as `authenticate` does."""
        return self.bearer(BearerToken.of(token), now_s)

    def bearer(self, token: BearerToken, now_s: float) -> Principal:
        """As `token_principal`, of a token whose digest is known."""
        if self._version != self._keyring.version:
            self._version = self._keyring.version
            self._verified.clear()
        principal = self._verified.get(token.digest) or self._granted.get(token.digest)
        if principal is None:
            if not token.text:
                raise unauthorized("a bearer token is needed", presented=False)
            if len(token.text) > TOKEN_CHARS_MAX:
                raise unauthorized(f"a token has at most {TOKEN_CHARS_MAX} characters")
            if self._revoked.unknown:
                raise unavailable("storage has not told for seconds which tokens are revoked; `/readyz` names what is away", RETRY_AFTER_S)
            principal = self.verify(token.text, now_s)
            if len(self._verified) >= self._config.verified_tokens_max:
                del self._verified[next(iter(self._verified))]
            self._verified[token.digest] = principal
        if now_s >= principal.expires_s:
            self._verified.pop(token.digest, None)
            raise unauthorized("the token has expired")
        if self._revoked.covers(principal):
            self._verified.pop(token.digest, None)
            raise unauthorized("the token was revoked")
        return principal

    @contextlib.contextmanager
    def granted(self, principal: Principal) -> Iterator[str]:
        """A token that this process alone accepts, while the block runs: for a request whose principal is known otherwise."""
        token = secrets.token_urlsafe(_GRANT_BYTES)
        digest = BearerToken.of(token).digest
        self._granted[digest] = principal
        try:
            yield token
        finally:
            del self._granted[digest]

    def verify(self, token: str, now_s: float) -> Principal:
        """The principal of a token, which may have expired or been revoked. Raises Problem for a signature or claim that is not valid."""
        try:
            signed = jws.parse(token)
        except ValueError:
            raise unauthorized("the token is malformed") from None
        algorithm, key = self._keyring.find(signed.header.alg, signed.header.kid)
        if not jws.verify(signed, algorithm, key):
            raise unauthorized("the token's signature is not good")
        try:
            claims = self._claims.decode(signed.payload)
        except msgspec.ValidationError as error:
            raise unauthorized(f"a claim of the token is not valid: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise unauthorized("the claims of the token are not a JSON object") from None
        try:
            return self._principal(claims, sha256(signed.signing_input).hexdigest()[:_TOKEN_ID_CHARS], now_s)
        except Invalid as error:
            raise unauthorized(f"a claim of the token is not valid: {error.path}: {error.detail}") from None

    def _principal(self, claims: _Claims, token_id: str, now_s: float) -> Principal:
        config = self._config
        if not 0 <= claims.exp <= _SECONDS_MAX:
            raise Invalid(f"allowed are 0 to {_SECONDS_MAX} seconds", "exp")
        issued_s = _issued_s(claims.iat)
        if claims.exp > (min(issued_s, now_s + _LEEWAY_S) or now_s) + config.token_lifetime_s_max:
            raise Invalid(f"a token lives for {config.token_lifetime_s_max} seconds at most, from `iat` on", "exp")
        if claims.nbf > now_s + _LEEWAY_S:
            raise Invalid("not yet valid", "nbf")
        if config.jwt_issuer and claims.iss != config.jwt_issuer:
            raise Invalid("another issuer is expected", "iss")
        audiences = [claims.aud] if isinstance(claims.aud, str) else claims.aud
        if config.jwt_audience and config.jwt_audience not in audiences:
            raise Invalid("another audience is expected", "aud")
        if not is_user(claims.sub, config.id_chars_max):
            raise Invalid(f"text of 1 to {config.id_chars_max} characters without control characters is needed", "sub")
        if not is_tenant(claims.tenant):
            raise Invalid("1 to 64 letters, digits, _ . and - are needed", "tenant")
        topics = claims.topics or ()
        if len(topics) > TOKEN_TOPICS_MAX:
            raise Invalid(f"at most {TOKEN_TOPICS_MAX} are allowed", "topics")
        if not all(is_user(topic, config.id_chars_max) for topic in topics):
            raise Invalid(f"each is text of 1 to {config.id_chars_max} characters without control characters", "topics")
        return Principal(
            claims.tenant,
            claims.sub,
            _scopes(claims.scope),
            int(claims.exp),
            None if claims.topics is None else frozenset(topics),
            token_id,
            "" if claims.jti is None else str(claims.jti),
            int(issued_s * 1000),
        )


@lru_cache(maxsize=256)
def _scopes(scope: str) -> frozenset[str]:
    """The scopes of a claim, one object for all tokens with the same: thousands of verified tokens are kept."""
    return frozenset(scope.split())


def _issued_s(iat: Any) -> float:
    """The claim `iat`, seconds since the epoch; 0 when it is none."""
    return float(iat) if type(iat) in (int, float) and 0 < iat <= _SECONDS_MAX else 0.0


def require(principal: Principal, scope: str) -> None:
    """Check that the principal has a scope.

    Raises:
        Problem: 403, it has not.
    """
    if scope not in principal.scopes:
        raise forbidden(f"the scope `{scope}` is needed", scope=scope)


def mint(
    secret: str,
    sub: str,
    scopes: Iterable[str],
    ttl_s: float,
    tenant: str = "default",
    *,
    now_s: float,
    issuer: str = "",
    audience: str = "",
    lifetime_s_max: float = math.inf,
) -> str:
    """Make a token, signed with the engine's own secret (HS256).

    Args:
        secret: `jwt_secret`, or the result of `load_or_create_secret`.
        sub: the user.
        scopes: some of `SCOPES`.
        ttl_s: seconds until it expires.
        tenant: of the user.
        now_s: seconds since the epoch.
        issuer: `jwt_issuer`, where configured.
        audience: `jwt_audience`, where configured.
        lifetime_s_max: `token_lifetime_s_max`, beyond which the engine refuses it.

    Raises:
        Invalid: an argument is not allowed.
    """
    scope = " ".join(scopes)
    unknown = [name for name in scope.split() if name not in SCOPES]
    if unknown:
        raise Invalid(f"unknown scope {unknown[0]!r}; allowed are {', '.join(SCOPES)}", "scope")
    if not is_tenant(tenant):
        raise Invalid("1 to 64 letters, digits, _ . and - are needed", "tenant")
    if not is_user(sub, TOKEN_USER_CHARS_MAX):
        raise Invalid("text without control characters is needed", "sub")
    if not secret:
        raise Invalid("a secret is needed", "secret")
    if not 0 < ttl_s <= lifetime_s_max:
        raise Invalid(f"above 0 and at most {lifetime_s_max} seconds are allowed", "ttl")
    # Whole seconds would put a token before a revocation earlier in its second.
    claims: dict[str, str | float] = {"sub": sub, "tenant": tenant, "scope": scope, "iat": round(now_s, 3)}
    claims["exp"] = math.ceil(min(now_s + ttl_s, int(now_s) + lifetime_s_max))
    claims["jti"] = secrets.token_urlsafe(_JTI_BYTES)
    if issuer:
        claims["iss"] = issuer
    if audience:
        claims["aud"] = audience
    return jws.make(msgspec.json.encode(claims), secret.encode())


def load_or_create_secret(data_dir: str | Path) -> str:
    """The secret in the data directory, created when there is none: 32 random bytes as URL-safe text, mode 0600.

    Processes that start at the same time get the same secret: the file is linked into place whole, and the first link wins.

    Raises:
        ConfigError: other users may read the file, it has no secret, or the directory cannot be written.
    """
    path = Path(data_dir) / SECRET_FILE
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _put_new(path, secrets.token_urlsafe(SECRET_BYTES_MIN))
    except OSError as error:
        raise ConfigError(f"{path}: the secret for tokens cannot be made: {error}") from error
    return load_secret(data_dir)


def load_secret(data_dir: str | Path) -> str:
    """The secret that an engine made in the data directory. Only the engine's start makes one: elsewhere it would fit no engine.

    Raises:
        ConfigError: there is none, other users may read the file, or it has no secret.
    """
    path = Path(data_dir) / SECRET_FILE
    try:
        with path.open(encoding="ascii") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError(
                    f"{path}: others may read this secret (mode {mode:04o}); run `chmod 600 {path}`, or remove it for a new one"
                )
            secret = file.read().strip()
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no engine has made a secret there; name the engine's data directory with --data-dir, "
            "or give the secret it runs with in ENGINE_JWT_SECRET"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the secret for tokens cannot be read: {error}") from error
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(f"{path}: holds no secret of at least {SECRET_BYTES_MIN} characters; remove it for a new one")
    return secret


def _put_new(path: Path, text: str) -> None:
    """Create a file with this content unless it exists; after a power failure it is there whole or not at all."""
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # with mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was first: its secret is used
            os.link(draft, path)
    finally:
        os.unlink(draft)


def find_token(headers: Headers | RawHeaders, query_string: bytes, subprotocols: Sequence[str] = ()) -> str:
    """The token of a request, "" when there is none, searched in the order that the module's docstring has."""
    cookie = ""
    for name, value in headers.raw if isinstance(headers, Headers) else headers:
        if name == b"authorization":
            scheme, _, token = value.partition(b" ")
            if scheme.lower() == b"bearer":  # other schemes are for proxies
                return token.strip().decode("latin-1")
        elif name == b"cookie" and not cookie:
            for pair in value.split(b";"):
                key, _, text = pair.strip().partition(b"=")
                if key == COOKIE:
                    cookie = text.strip(b'"').decode("latin-1")
                    break
    for offered in subprotocols:
        if offered.startswith(SUBPROTOCOL_PREFIX):
            return offered[len(SUBPROTOCOL_PREFIX) :]
    if b"token=" in query_string:
        for pair in query_string.split(b"&"):
            if pair.startswith(b"token="):
                return unquote_to_bytes(pair[len(b"token=") :]).decode("latin-1")
    return cookie
