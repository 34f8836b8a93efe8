"""Actors at both ends of a link, listening and connecting as the engine's do; Ray, which finds them for each other, is a double."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import redis.asyncio as redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from engine.actors import carrier, socket_carrier, tcp_carrier
from engine.actors.carrier import ActorPeer
from engine.actors.link import LinkCaller, LinkServer
from engine.actors.socket_carrier import Address, CalleeConnection
from engine.actors.tcp_carrier import LinkCredentials
from engine.config import Config
from engine.core.wire import records as wire
from tests.support.background_task import background
from tests.support.waiting import until

NODE = "this-node"
LOOPBACK = "127.0.0.1"
PORTS = "21000-22999"  # tests run in parallel: each takes a free one


class KeyStore:
    """The Redis that the actors of an engine share, as far as `claim_link_key` uses it."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.reads = 0
        self.away = False

    def connect(self, _config: Config) -> redis.Redis:
        return cast("redis.Redis", self)

    async def set(self, key: str, value: bytes, *, nx: bool) -> None:
        assert nx
        if self.away:
            raise ConnectionRefusedError
        self.values.setdefault(key, value)

    async def get(self, key: str) -> bytes | None:
        if self.away:
            raise ConnectionRefusedError
        self.reads += key in self.values
        return self.values.get(key)

    async def aclose(self) -> None:
        """Connections are opened for one read."""


class _Method:
    def __init__(self, remote: Callable[..., Awaitable[Any]]) -> None:
        self.remote = remote


class LinkActor:
    """A callee: a shard as links see it, and its handle as Ray would give it.

    Attributes:
        through_ray: requests that came by Ray call.
    """

    def __init__(self, config: Config, keys: KeyStore, name: str = "shard-0") -> None:
        self.config = config
        self.credentials = LinkCredentials(config, name, keys.connect)
        self.listens = Address()
        self.ready = True
        self.taken: list[Any] = []
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.through_ray = 0
        self.connections: list[CalleeConnection] = []
        self._close: list[Callable[[], object]] = []
        self.gate: tcp_carrier._Listener
        self.links = LinkServer(
            wire.to_shard,
            config,
            on_open=self.opened.append,
            on_records=lambda _session, records: self.taken.extend(records),
            on_close=self.closed.append,
        )
        self.address, self.exchange = _Method(self._address), _Method(self._exchange)

    async def listen_unix(self, path: Path) -> None:
        server = await asyncio.get_running_loop().create_unix_server(lambda: self.served(socket_carrier.anyone), os.fspath(path))
        self._close.append(server.close)
        self.listens = self.listens._replace(node=NODE, path=os.fspath(path))

    def listen_tcp(self, port: int = 0) -> None:
        """As `tcp_carrier.listen` does, on this port or any of the tests'."""
        listener = tcp_carrier._bind(LOOPBACK, f"{port}-{port}" if port else PORTS)
        self.gate = tcp_carrier._Listener(listener, self.credentials, self.served)
        loop = asyncio.get_running_loop()
        self._close += [lambda: bool(loop.remove_reader(listener.fileno())), listener.close]
        self.listens = self.listens._replace(host=LOOPBACK, port=listener.getsockname()[1])

    async def end(self) -> None:
        """As when its process ends."""
        while self._close:
            self._close.pop(0)()
        for connection in self.connections:
            connection._transport.abort()
        await asyncio.sleep(0)

    def served(self, vouched: socket_carrier.Vouched) -> CalleeConnection:
        connection = CalleeConnection(lambda: self.links, lambda: self.ready, vouched)
        self.connections.append(connection)
        return connection

    def break_connection(self) -> None:
        """Abort the latest one."""
        self.connections[-1]._transport.abort()

    async def _address(self) -> Address:
        return self.listens

    async def _exchange(self, session: str, seq: int, data: bytes) -> bytes:
        self.through_ray += 1
        return await self.links.exchange(session, seq, data)


class LinkEdge:
    def __init__(self, config: Config, keys: KeyStore, name: str = "edge-0") -> None:
        self.heard: list[Any] = []
        self.credentials = LinkCredentials(config, name, keys.connect)
        self.peer = ActorPeer("shard-0", self.credentials)
        self.link = LinkCaller(self.peer, name, wire.from_shard, config, on_records=self.heard.extend, on_reset=lambda: None)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[LinkEdge]:
        """The link is open in the block."""
        async with background(self.link.run()):
            await until(lambda: self.link.open)
            yield self


def found_by_ray(monkeypatch: pytest.MonkeyPatch, actor: LinkActor) -> None:
    """Every lookup of an actor returns this one; callers are on the node `NODE`."""

    async def find(_name: str, _namespace: str) -> Any:
        return actor

    monkeypatch.setattr(carrier, "find_actor", find)
    monkeypatch.setattr(carrier, "node_id", lambda: NODE)


def certificates(folder: Path) -> dict[str, str]:
    """Settings for TLS on links: a CA of its own, and a certificate by it."""
    now = dt.datetime.now(dt.UTC)

    def certificate(name: str, key: ec.EllipticCurvePrivateKey, issuer: str, signer: ec.EllipticCurvePrivateKey) -> bytes:
        named = (x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)]) for text in (name, issuer))
        subject, by = named
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(by)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=name == issuer, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(LOOPBACK))]), critical=False)
            .sign(signer, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
        )

    folder.mkdir(exist_ok=True)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    plain = serialization.NoEncryption()
    contents = {
        "link_tls_ca": certificate("ca", ca_key, "ca", ca_key),
        "link_tls_cert": certificate("node", key, "ca", ca_key),
        "link_tls_key": key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {name: os.fspath(folder / name) for name in contents}
