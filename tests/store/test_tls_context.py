"""One TLS context for all connections with the same options and files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio.connection import RedisSSLContext

from engine.config import Config
from engine.store.redis_client import connect
from engine.store.tls_context import _shared


def context_of(url: str) -> RedisSSLContext:
    """Of a new connection of a new client."""
    connection: Any = connect(Config(redis_url=url)).connection_pool.make_connection()
    context: RedisSSLContext = connection.ssl_context
    return context


@pytest.mark.parametrize("url", ["rediss://host:6379/0", "rediss+sentinel://host/main", "rediss+cluster://host:6379/2"])
def test_connections_with_the_same_options_share_a_context(url: str) -> None:
    assert context_of(url) is context_of(url)
    assert context_of(url) is not context_of(f"{url}?ssl_check_hostname=false")


def test_a_changed_certificate_makes_a_new_context(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.touch()
    url = f"rediss://host:6379/0?ssl_ca_certs={authority}"
    before = context_of(url)
    assert context_of(url) is before
    kept = len(_shared)
    os.utime(authority, ns=(1, 1))
    assert context_of(url) is not before
    assert len(_shared) == kept, "each holds the authorities of the operating system"
