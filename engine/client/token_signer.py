"""Tokens for users whom an application has signed in, and for the application itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Literal

Scope = Literal["connect", "publish", "events", "admin", "metrics", "operator"]

_KEY_BYTES_MIN: Final = 32
"""Of a shared secret, as the engine demands it of `jwt_secret`."""


class TokenSigner:
    """Signs tokens that an engine with the same secret, or with the public key, accepts.

    Args:
        key: `jwt_secret` of the engine, or the private key in PEM whose public key is its `jwt_public_key`.
        algorithm: by which the key signs: HS256 for a secret; RS256, ES256, EdDSA and their like for a private key.
        tenant: of the users.
        lifetime_s: seconds until a token expires; the client asks for another one before.
        issuer: the engine's `jwt_issuer`, where it is set.
        audience: the engine's `jwt_audience`, where it is set.

    Raises:
        ValueError: the secret has less than 32 bytes, or the lifetime is not above 0.
    """

    def __init__(
        self, key: str, *, algorithm: str = "HS256", tenant: str = "default", lifetime_s: float = 3600, issuer: str = "", audience: str = ""
    ) -> None:
        if algorithm.startswith("HS") and len(key.encode()) < _KEY_BYTES_MIN:
            raise ValueError(f"key: a shared secret has at least {_KEY_BYTES_MIN} bytes")
        if lifetime_s <= 0:
            raise ValueError("lifetime_s: above 0")
        self._key = key
        self._algorithm = algorithm
        self._lifetime_s = lifetime_s
        self._claims: dict[str, Any] = {"tenant": tenant}
        if issuer:
            self._claims["iss"] = issuer
        if audience:
            self._claims["aud"] = audience

    def token(self, user: str, *scopes: Scope) -> str:
        """A token of a user.

        Args:
            user: the name by which messages for this user are published.
            scopes: what the bearer may do; to receive, when none is given.

        Returns:
            The token, a JWT.

        Raises:
            ValueError: there is no name of a user.
        """
        import jwt

        if not user:
            raise ValueError("user: the name of a user is needed")
        now_s = round(time.time(), 3)  # whole seconds would put it before a revocation earlier in its second
        claims = {**self._claims, "sub": user, "scope": " ".join(scopes or ("connect",)), "iat": now_s}
        claims["exp"] = int(now_s) + self._lifetime_s
        return jwt.encode(claims, self._key, self._algorithm)

    def publisher(self, name: str) -> Callable[[], str]:
        """The tokens of the application itself, as `Publisher` and `SyncPublisher` take them.

        Args:
            name: of the application, which the engine's log of acts shows.

        Returns:
            A function that makes a token with the scope `publish`.
        """
        return lambda: self.token(name, "publish")
