"""One engine in this process behind HTTP: edge, shard and scheduler on virtual time, with stubs for sockets, Redis and Ray.

The edge's HTTP server, its application, gateway and links, the shard and the scheduler are the engine's own classes. Stubs replace
the transports of clients, redis-py's client (the engine's Lua scripts run in the simulator's server) and Ray's handles. Links use the
engine's socket protocols over the simulator's streams. Virtual time makes every run take the same steps.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import msgspec

from engine.api.operating import EngineControls
from engine.auth.tokens import Authenticator, mint
from engine.config import Config
from engine.core.mailbox.mailbox import Mailbox
from engine.core.model.routing import SLOTS, TIMER_PARTITIONS, mailbox_key
from engine.routes import EdgeServices, app
from engine.store.keys import journal_head_key, timer_key
from engine.transports import http_server
from tests.sim.cluster import START_MS, Cluster, Layout
from tests.sim.faults import Faults
from tests.sim.loop import Process, SimLoop

_SECRET: Final = "a secret of the simulator, long enough to be one"
_TOKEN_TTL_S: Final = 3600
_DEADLINE_S: Final = 30.0
"""Virtual time in which a condition must come true: it ends a leg that never would."""

_MASK: Final = b"\x01\x02\x03\x04"


class Client(asyncio.Transport):
    """The transport of one client connection: keeps the engine's bytes, and passes bytes of the client to the engine's protocol."""

    def __init__(self, process: Process, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._process = process
        self._protocol = protocol
        self.written = bytearray()
        process.context.run(protocol.connection_made, self)

    def send(self, data: bytes) -> None:
        """Bytes of the client reach the edge, in the edge's context."""
        self._protocol.data_received(data)

    # -- What the engine's protocols ask of a transport. ---------------------------------------------------------------
    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written += data

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.written += data

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in {"peername", "sockname"} else default

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever unsent."""

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """The client sends no more than the engine reads."""

    def resume_reading(self) -> None:
        """As `pause_reading`."""

    def leave(self) -> None:
        """The client has ended the connection, in the edge's context."""
        self._protocol.connection_lost(None)

    def close(self) -> None:
        raise AssertionError(f"the edge closes a connection: {bytes(self.written[-300:])!r}")

    abort = close


class World:
    """One shard, one scheduler and one edge, with clients.

    Args:
        users: names of the users that connect; slots of others have no owner.
        settings: that differ.
    """

    def __init__(self, users: Sequence[str], **settings: Any) -> None:
        self.loop = SimLoop()
        own: dict[str, Any] = {
            "shards": 1,
            "log_level": "WARNING",
            "jwt_secret": _SECRET,
            "connections_per_s": 100_000,
            "openings_per_s": 100_000,
            "ack_journal_ms": 1,
            "heartbeat_ms": 3_600_000,
        }
        self.config = Config(**own | settings)
        keys = [mailbox_key("default", user) for user in users]
        faults = Faults(1, frozenset(), 0, lambda: self.loop.steps, lambda _what: None)
        layout = Layout(("a", "a"), sockets=True)  # links use sockets where there is more than one host
        self.cluster = Cluster(self.loop, faults, self.config, keys, layout, 0, lambda _what: None)
        self.cluster.on_failure = self._failed
        for storage in self.cluster.storages:
            storage.on_broken = self._broken
        self._tokens: dict[str, str] = {}
        for name in self.cluster.names:
            self.loop.call_soon(self.cluster.start, name, context=self.loop.outside)
        self.run_until(lambda: len(self.cluster.network.routes) == len(self.cluster.names), "all actors begin")
        process, edge = self.cluster.network.routes["edge-0"]
        self._process: Process = process
        self.run_until(lambda: bool(edge.links) and all(link.open for link in edge.links.values()), "the edge serves")
        self._server = self._process.context.run(self._serve, edge.gateway)

    def _failed(self, why: str) -> None:
        raise AssertionError(why)

    def _broken(self, error: BaseException) -> None:
        raise error

    def _serve(self, gateway: Any) -> http_server.EdgeServer:
        """The edge's HTTP server, without a socket. Endpoints that no leg uses have no services."""
        config = self.config
        asyncio._set_running_loop(cast("asyncio.AbstractEventLoop", self.loop))
        try:
            authenticator = Authenticator(config, gateway.revoked)
            unused = dict.fromkeys(EdgeServices.__struct_fields__)
            controls = EngineControls(**dict.fromkeys(EngineControls.__struct_fields__))
            services = {
                **unused,
                "features": (),
                "controls": controls,
                "gateway": gateway,
                "authenticator": authenticator,
                "config": config,
            }
            application = app(EdgeServices(**services))
            server = http_server.build(application, config, application.state.fast_paths)
            server.config.load()
            return server
        finally:
            asyncio._set_running_loop(None)

    # -- Time. ---------------------------------------------------------------------------------------------------------
    def run_until(self, done: Callable[[], bool], what: str) -> None:
        """Take steps until it is done."""
        deadline_s = self.loop.time() + _DEADLINE_S
        self.loop.run(lambda: not done() and self.loop.time() < deadline_s, lambda: None)
        if self.loop.failures:
            raise AssertionError(self.loop.failures)
        assert done(), f"not within {_DEADLINE_S} s: {what}"

    def rest(self, seconds: float) -> None:
        """Let virtual time pass."""
        until_s = self.loop.time() + seconds
        self.loop.run(lambda: self.loop.time() < until_s, lambda: None)

    # -- Clients. ------------------------------------------------------------------------------------------------------
    def token(self, user: str) -> str:
        if user not in self._tokens:
            self._tokens[user] = mint(_SECRET, user, ["connect", "publish"], _TOKEN_TTL_S, now_s=START_MS / 1000)
        return self._tokens[user]

    def open(self) -> Client:
        """A new connection, before its first byte."""
        server = self._server
        asyncio._set_running_loop(cast("asyncio.AbstractEventLoop", self.loop))
        try:
            make = cast("Any", server.config.http_protocol_class)
            protocol = make(config=server.config, server_state=server.server_state, app_state={}, _loop=self.loop)
            return Client(self._process, protocol)
        finally:
            asyncio._set_running_loop(None)

    def send(self, client: Client, data: bytes) -> None:
        """Bytes of the client arrive with the next step."""
        self.loop.call_soon(client.send, data, context=self._process.context)

    def leave(self, client: Client) -> None:
        """The edge learns with the next step that the client has ended the connection."""
        self.loop.call_soon(client.leave, context=self._process.context)

    def connect(self, user: str, cursor: str = "") -> Client:
        """A WebSocket of the user that is welcome."""
        client = self.open()
        self.send(client, self.handshake(user, cursor))
        self.run_until(lambda: b'"welcome"' in client.written, f"a welcome for {user}")
        return client

    def handshake(self, user: str, cursor: str = "") -> bytes:
        query = f"?last_event_id={cursor}" if cursor else ""
        return (
            f"GET /v1/ws{query} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {self.token(user)}\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        ).encode()

    def request(self, items: Any) -> bytes:
        """A publish request, as a publisher's program sends it."""
        body = msgspec.json.encode(items)
        head = (
            f"POST /v1/notifications HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {self.token('app')}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    # -- What became of it. --------------------------------------------------------------------------------------------
    def mailbox(self, user: str) -> Mailbox:
        core = self.cluster.actor("shard-0")._core
        return cast("Mailbox", core.mailboxes[mailbox_key("default", user)])

    def newest_group(self) -> int:
        """The number of the newest group in the journals."""
        heads = self.cluster.server.execute("MGET", *map(journal_head_key, range(SLOTS)))
        return max(int(head.partition(b"-")[2]) for head in heads if head is not None)

    def timers(self) -> int:
        """Timers in storage."""
        return sum(int(self.cluster.server.execute("HLEN", timer_key(partition))) for partition in range(TIMER_PARTITIONS))

    def end(self) -> None:
        self.cluster.end()
        self.rest(1.0)


def ack_frame(seq: int) -> bytes:
    """A client's acknowledgement, as a masked frame (RFC 6455, section 5.2)."""
    payload = json.dumps({"type": "ack", "seq": seq}, separators=(",", ":")).encode()
    mask = (_MASK * (len(payload) // 4 + 1))[: len(payload)]
    masked = (int.from_bytes(payload) ^ int.from_bytes(mask)).to_bytes(len(payload))
    return b"\x81" + struct.pack("!B", 0x80 | len(payload)) + _MASK + masked
