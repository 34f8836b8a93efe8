"""The port that strangers may reach: what they get, what they cost, and that they do not keep the engine's own actors out for long."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.actors import tcp_carrier
from engine.actors.tcp_carrier import UNPROVEN_MAX, LinkCredentials, connect, listen, tls_contexts
from engine.config import Config
from engine.core.wire.link_handshake import MAGIC, HandshakeFailed
from engine.errors import ConfigError, StorageUnavailable
from engine.store.keys import LINK_KEY_KEY
from tests.support.link_actors import LOOPBACK, PORTS, KeyStore, LinkActor, certificates
from tests.support.waiting import until, until_done

CONFIG = Config()
GREETING_BYTES = 40


@pytest.fixture
def keys() -> KeyStore:
    return KeyStore()


@pytest.fixture
async def actor(keys: KeyStore) -> AsyncIterator[LinkActor]:
    made = LinkActor(CONFIG, keys)
    made.listen_tcp()
    yield made
    await made.end()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may pause for a second."""
    monkeypatch.setattr(tcp_carrier, "CONNECT_S", 20.0)
    monkeypatch.setattr(tcp_carrier, "HANDSHAKE_S", 20.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, patient: None) -> None:
    """Who is silent, or was refused, gives its place away at once."""
    monkeypatch.setattr(tcp_carrier, "HANDSHAKE_S", 0.2)


def edge(keys: KeyStore, config: Config = CONFIG) -> LinkCredentials:
    return LinkCredentials(config, "edge-0", keys.connect)


async def linked(actor: LinkActor, credentials: LinkCredentials) -> None:
    """Connect, and open a session."""
    connection = await connect(LOOPBACK, actor.listens.port, credentials, "shard-0")
    await connection.exchange(f"edge-0/{len(actor.opened)}", 0, b"\x90")
    connection.close()
    await asyncio.sleep(0)


@asynccontextmanager
async def stranger(actor: LinkActor) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(LOOPBACK, actor.listens.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def everything(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(), 60)
    except ConnectionResetError:
        return b""


async def test_a_stranger_gets_a_greeting_and_no_answer_to_what_it_claims(actor: LinkActor) -> None:
    async with stranger(actor) as (reader, writer):
        greeting = await reader.readexactly(GREETING_BYTES)
        assert greeting.startswith(MAGIC)
        writer.write(b"\x00" * 96)
        assert await everything(reader) == b""
    assert (actor.connections, actor.opened) == ([], [])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(garbage=st.binary(max_size=300), more=st.binary(max_size=300))
async def test_whatever_a_stranger_sends_is_never_read_as_a_frame(actor: LinkActor, garbage: bytes, more: bytes) -> None:
    async with stranger(actor) as (reader, writer):
        writer.write(garbage)
        await asyncio.sleep(0)
        writer.write(more)
        with contextlib.suppress(OSError):
            writer.write_eof()
        assert len(await everything(reader)) in (0, GREETING_BYTES)
    assert (actor.connections, actor.opened) == ([], [])


async def test_a_stranger_that_sends_nothing_or_half_of_it_is_closed_in_time(actor: LinkActor, impatient: None) -> None:
    async with stranger(actor) as (silent, _), stranger(actor) as (slow, writer):
        writer.write(b"\x00" * 50)
        for reader in (silent, slow):
            assert len(await everything(reader)) == GREETING_BYTES
    await until(lambda: not actor.gate._admitting)


async def test_a_thousand_strangers_cost_as_much_as_a_few_and_links_open_again_when_they_are_gone(
    actor: LinkActor, keys: KeyStore, impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    await linked(actor, edge(keys))
    tracemalloc.start()
    strangers = []
    for _ in range(1000):
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex((LOOPBACK, actor.listens.port))
        strangers.append(connection)
    before, _ = tracemalloc.get_traced_memory()
    most = 0
    for _ in range(200):
        await asyncio.sleep(0)
        most = max(most, len(actor.gate._admitting))
    await until(lambda: len(actor.gate._admitting) == UNPROVEN_MAX)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most <= UNPROVEN_MAX
    assert peak - before < UNPROVEN_MAX * 20_000
    for connection in strangers:
        connection.close()
    await until_done(lambda: linked(actor, edge(keys)), OSError, TimeoutError)
    assert sum("refused" in record.getMessage() for record in caplog.records) == 1, "one warning for all of them"


async def test_an_open_link_is_not_concerned_by_strangers_that_hold_all_places(actor: LinkActor, keys: KeyStore) -> None:
    connection = await connect(LOOPBACK, actor.listens.port, edge(keys), "shard-0")
    await connection.exchange("edge-0/1", 0, b"\x90")
    async with AsyncExitStack() as strangers:
        for _ in range(UNPROVEN_MAX):
            await strangers.enter_async_context(stranger(actor))
        await until(lambda: len(actor.gate._admitting) == UNPROVEN_MAX)
        reply = connection.exchange("edge-0/1", 1, b"\x90")
        assert len(await asyncio.wait_for(reply, 20)) > 0
    connection.close()
    await asyncio.sleep(0)


async def test_a_key_that_was_rotated_is_read_again_by_both_ends(actor: LinkActor, keys: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_carrier, "REREAD_S", 0.0)
    credentials = edge(keys)
    await linked(actor, credentials)
    old = keys.values.pop(LINK_KEY_KEY)
    with pytest.raises(HandshakeFailed):
        await linked(actor, edge(keys))  # a new actor makes another key, which this one does not know yet
    assert keys.values[LINK_KEY_KEY] != old
    await linked(actor, edge(keys))
    with pytest.raises(HandshakeFailed):
        await linked(actor, credentials)
    await linked(actor, credentials)


async def test_strangers_do_not_make_an_actor_read_its_key_over_and_over(actor: LinkActor, keys: KeyStore) -> None:
    for _ in range(10):
        async with stranger(actor) as (reader, writer):
            writer.write(b"\x00" * 96)
            await everything(reader)
    assert keys.reads == 1


async def test_while_redis_is_away_the_key_that_was_read_last_is_used(
    actor: LinkActor, keys: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_carrier, "REREAD_S", 0.0)
    credentials = edge(keys)
    await linked(actor, credentials)
    keys.away = True
    async with stranger(actor) as (reader, writer):  # after it the actor doubts its key
        writer.write(b"\x00" * 96)
        await everything(reader)
    await linked(actor, credentials)
    with pytest.raises(StorageUnavailable):
        await linked(actor, edge(keys))


async def test_no_free_port_is_reported_and_links_are_ray_calls(keys: KeyStore, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        port = taken.getsockname()[1]
        assert await listen(LOOPBACK, f"{port}-{port}", edge(keys), no_connection) == 0
    assert "link_ports" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_actors_of_one_node_take_the_ports_of_the_range_one_after_the_other(actor: LinkActor, keys: KeyStore) -> None:
    other = LinkActor(CONFIG, keys, "shard-1")
    other.listen_tcp()
    assert other.listens.port != actor.listens.port
    assert other.gate._listener.getsockname()[0] == LOOPBACK, "that address and no other"
    await other.end()


# -- TLS ---------------------------------------------------------------------------------------------------------------
async def test_with_tls_both_ends_need_a_certificate_of_the_ca(keys: KeyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = (msgspec.structs.replace(CONFIG, **certificates(tmp_path / name)) for name in ("ours", "theirs"))
    actor = LinkActor(ours, keys)
    actor.listen_tcp()
    await linked(actor, edge(keys, ours))
    monkeypatch.setattr(tcp_carrier, "CONNECT_S", 3.0)  # an end that speaks TLS waits for one that does not
    for config in (theirs, CONFIG):
        with pytest.raises((OSError, TimeoutError)):
            await linked(actor, edge(keys, config))
    plain = LinkActor(CONFIG, keys)
    plain.listen_tcp()
    with pytest.raises((OSError, TimeoutError)):
        await linked(plain, edge(keys, ours))
    assert (len(actor.opened), len(plain.opened)) == (1, 0)
    await plain.end()
    await actor.end()


async def test_certificates_that_were_replaced_are_those_of_the_next_connection(keys: KeyStore, tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, **certificates(tmp_path))
    actor, caller = LinkActor(config, keys), edge(keys, config)
    actor.listen_tcp()
    await linked(actor, caller)
    certificates(tmp_path)
    await linked(actor, edge(keys, config))  # of a process that has started since
    await linked(actor, caller)
    Path(config.link_tls_key).write_bytes(b"")  # being written
    await linked(actor, caller)
    assert len(actor.opened) == 4
    await actor.end()


def test_tls_is_1_3_with_certificates_at_both_ends(tmp_path: Path) -> None:
    contexts = tls_contexts(Config(**certificates(tmp_path)))
    assert contexts is not None
    for context in contexts:
        assert context.minimum_version == tcp_carrier.ssl.TLSVersion.TLSv1_3
        assert context.verify_mode == tcp_carrier.ssl.CERT_REQUIRED
    assert tls_contexts(CONFIG) is None


@pytest.mark.parametrize("name", ["link_tls_cert", "link_tls_key", "link_tls_ca"])
@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN CERTIFICATE-----\nnonsense"])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, name: str, content: bytes | None) -> None:
    given_ = certificates(tmp_path)
    path = Path(given_[name])
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{name}.*{path.name}.* PEM"):
        tls_contexts(Config(**given_))


async def test_an_actor_that_cannot_use_its_certificate_does_not_listen_without(
    keys: KeyStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = msgspec.structs.replace(CONFIG, **certificates(tmp_path))
    (tmp_path / "link_tls_key").unlink()
    assert await listen(LOOPBACK, PORTS, edge(keys, config), no_connection) == 0
    assert "link_tls_key" in caplog.text


def no_connection(_vouched: Any) -> Any:
    raise AssertionError("nobody connects")
