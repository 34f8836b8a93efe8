"""The running engine of this machine, for commands that are its clients: address from the state file, tokens from its secret."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.auth.tokens import SECRET_FILE, load_secret, mint
from engine.cli.settings import load
from engine.cli.state_file import STATE_FILE, read_state
from engine.client.credentials import claims_of, parse_url
from engine.config import Config
from engine.errors import ConfigError, EngineError, Unauthorized, Unreachable

CONNECT_TIMEOUT_S: Final = 3.0
COMMAND_TOKEN_TTL_S: Final = 600  # a command's own token; a longer one renews it

DEFAULT_TENANT: Final = "default"


def mint_token(config: Config, user: str, scopes: Sequence[str], ttl_s: float, tenant: str) -> str:
    """A token of this engine.

    Raises:
        ConfigError: there is no secret to sign with: no engine was started here, or it accepts tokens of an outside issuer only.
        Invalid: the scope, tenant or user is malformed.
    """
    if not config.jwt_secret and (config.jwt_public_key or config.jwt_jwks_url):
        raise ConfigError("this engine takes tokens of an outside issuer only (jwt_public_key or jwt_jwks_url); give one with --token")
    secret = config.jwt_secret or load_secret(config.data_dir)
    return mint(
        secret, user, scopes, ttl_s, tenant,
        now_s=time.time(), issuer=config.jwt_issuer, audience=config.jwt_audience, lifetime_s_max=config.token_lifetime_s_max,
    )  # fmt: skip


class EngineTarget(msgspec.Struct, frozen=True):
    """The engine a command connects to, and its token."""

    config: Config
    url: str
    token: str | Callable[[], str]

    def unreachable(self, error: Exception) -> EngineError:
        """An error that says what to do, for an engine that cannot be reached."""
        state = read_state(self.config.data_dir)
        if state is not None and state.url == self.url and state.runs():
            advice = f"the engine at {self.url} (pid {state.pid}) runs but does not answer; its logs: {state.ray_logs}"
        else:
            looked = Path(self.config.data_dir) / STATE_FILE
            hint = "start one with `engine up`, or say where it is with --url or --data-dir"
            advice = f"no engine answers at {self.url}; {hint} (looked in {looked})"
        return Unreachable(f"{advice} ({error})")

    def explained(self, error: EngineError) -> EngineError:
        """The error of a request, with what to do where that is known."""
        if isinstance(error, Unreachable):
            return self.unreachable(error)
        if not isinstance(error, Unauthorized) or isinstance(self.token, str):
            return error
        secret = "jwt_secret" if self.config.jwt_secret else f"the secret in {Path(self.config.data_dir) / SECRET_FILE}"
        return EngineError(
            f"the engine at {self.url} does not accept a token signed with {secret} ({error.detail}): it runs with another "
            "secret, issuer or audience; use its settings (ENGINE_JWT_SECRET, --data-dir), or give a token with --token"
        )


def find_engine(
    data_dir: str | None, url: str | None, token: str | None, user: str, scopes: Sequence[str], tenant: str, *, names_tenant: bool = False
) -> EngineTarget:
    """The engine to connect to. Checks that its port accepts connections and that there is a token, before any work is done.

    Args:
        data_dir: of the engine; `None`: the configured one.
        url: of the engine; `None`: found in the data directory.
        token: the token; `None`: short-lived ones are minted for `user` with `scopes` of `tenant`.
        names_tenant: the requests name the tenant, else it is the token's.

    Raises:
        EngineError: nothing listens, no token can be minted, or the one given is of somebody else; the message says what to do.
    """
    if token:
        _check_given(token, user if scopes == ["connect"] else "", "" if names_tenant else tenant)
    config = load({"data_dir": data_dir})
    where = _url_of(config, url)

    def mint_one() -> str:
        return mint_token(config, user, scopes, COMMAND_TOKEN_TTL_S, tenant)

    target = EngineTarget(config, where, token or mint_one)
    try:
        address = parse_url(where)
    except ValueError as error:
        raise EngineError(f"--url: {error}") from error
    try:
        socket.create_connection((address.host, address.port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise target.unreachable(error) from error
    if not token:
        mint_one()
    return target


def _check_given(token: str, user: str, tenant: str) -> None:
    """Check that a token is of this user and tenant, "" for any: the engine does what is asked for those of the token.

    Raises EngineError. Nobody can tell whether the default tenant was typed: it is taken for none.
    """
    claims = claims_of(token)
    if user and claims.get("sub", user) != user:
        raise EngineError(f"the token is of {printable(claims['sub'])}, not of {printable(user)}")
    of = claims.get("tenant", DEFAULT_TENANT)
    if claims and tenant not in ("", DEFAULT_TENANT, of):
        raise EngineError(f"--tenant {printable(tenant)}: the token is of the tenant {printable(of)}")


def _url_of(config: Config, url: str | None) -> str:
    """The engine's URL: the given one, else that of the running engine of the data directory, else the configured address.

    Raises:
        EngineError: the configured port is 0, a free one, and no engine runs.
    """
    if url:
        return url
    state = read_state(config.data_dir)
    if state is not None and state.runs():
        return state.url
    if config.port == 0:
        raise EngineError(f"no engine runs on {config.data_dir}; start one with `engine up`, or say where it is with --url")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
    return f"http://[{host}]:{config.port}" if ":" in host else f"http://{host}:{config.port}"


def printable(value: Any) -> str:
    """A text from outside, safe for a terminal: control characters are escaped."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(value))
