"""Where a command looks for the engine of this machine."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from engine.auth.tokens import mint
from engine.cli.local_engine import find_engine
from engine.errors import EngineError


@pytest.mark.parametrize(("host", "url"), [("::1", "http://[::1]"), ("::", "http://[::1]"), ("0.0.0.0", "http://127.0.0.1")])
def test_a_stopped_engine_is_looked_for_at_its_configured_address(
    host: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_named: object) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setenv("ENGINE_HOST", host)
    with pytest.raises(EngineError) as raised:
        find_engine(str(tmp_path), None, "a token", "alice", (), "default")
    assert str(raised.value).startswith(f"no engine answers at {url}:8000; ")


@pytest.mark.parametrize(
    ("scope", "tenant", "told"),
    [("connect", "default", "the token is of bob, not of alice"), ("admin", "acme", "--tenant acme: the token is of the tenant default")],
)
def test_a_token_of_another_user_or_tenant_is_refused(scope: str, tenant: str, told: str, tmp_path: Path) -> None:
    token = mint("s" * 32, "bob", [scope], 60, now_s=time.time())
    with pytest.raises(EngineError, match=f"^{told}$"):
        find_engine(str(tmp_path), "http://127.0.0.1:9", token, "alice", [scope], tenant)
