"""A real Redis Cluster with `deploy/redis-cluster.conf`: masters that share the hash slots, each with replicas.

Everything listens on loopback, on free ports, with its files in one directory. Servers keep an append-only file, fsync always.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from redis import Redis
from redis.exceptions import RedisError

from engine.store.cluster import HASH_SLOTS, slot_of_tag, tag_of
from tests.support.chaos.sentinel_group import PASSWORD, Server, ServerGroup
from tests.support.free_port import free_port
from tests.support.redis_tls import RedisTls

_SETTLED_S = 60
_CONF = Path(__file__).parents[3] / "deploy" / "redis-cluster.conf"


class ClusterGroup(ServerGroup):
    """Use as a context manager.

    Args:
        folder: an empty directory.
        masters, replicas: how many, and how many of each master.
        stores: into how many the engine divides its data.
        tls: with which the nodes speak to clients and to each other; None: in clear text.
    """

    def __init__(self, folder: Path, *, masters: int = 3, replicas: int = 0, stores: int = 4, tls: RedisTls | None = None) -> None:
        options: dict[str, object] = {
            "requirepass": PASSWORD,
            "masterauth": PASSWORD,
            "appendonly": "yes",
            "appendfsync": "always",
            "save": '""',
            "include": _CONF,
        }
        self._masters = masters
        self.stores = stores
        names = [f"node-{number}" for number in range(masters * (1 + replicas))]
        # Not 10 000 above the port, as by default: a port there may be that of a connection.
        self._bus_ports = [free_port() for _ in names]
        self._tls = tls
        self.servers = [
            Server(folder, name, options | {"cluster-port": bus}, tls=tls) for name, bus in zip(names, self._bus_ports, strict=True)
        ]
        self.processes = self.servers

    @property
    def url(self) -> str:
        """For `redis_url`."""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers[: self._masters])
        if self._tls:
            return f"rediss+cluster://:{PASSWORD}@{hosts}/{self.stores}?{urlencode(self._tls.of_client)}"
        return f"redis+cluster://:{PASSWORD}@{hosts}/{self.stores}"

    def _begin(self) -> None:
        first, masters = self.servers[0], self.servers[: self._masters]
        for number, server in enumerate(masters):
            with server.client() as client:
                slots = range(HASH_SLOTS * number // self._masters, HASH_SLOTS * (number + 1) // self._masters)
                client.execute_command("CLUSTER ADDSLOTSRANGE", slots.start, slots.stop - 1)
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for server in self.servers[1:]:
            with server.client() as client:
                client.execute_command("CLUSTER MEET", "127.0.0.1", first.port, self._bus_ports[0])
        _until(lambda: all(len(self._nodes(server)) == len(self.servers) for server in self.servers), "the nodes do not know each other")
        for number, server in enumerate(self.servers[self._masters :]):
            with server.client() as client:
                client.execute_command("CLUSTER REPLICATE", self.id(masters[number % self._masters]))
        self.settled()

    def _nodes(self, server: Server) -> dict[str, dict[str, str]]:
        with server.client() as client:
            return dict(client.cluster("NODES"))

    def id(self, server: Server) -> str:
        """The name of a node."""
        with server.client() as client:
            return str(client.cluster("MYID").decode())

    def settled(self) -> None:
        """Wait until all living nodes name the same living master of each slot and its epoch, and every living replica follows it."""
        _until(lambda: all(map(self._is_settled, self.alive())) and len(self._named()) == 1, "the nodes do not agree")

    def alive(self) -> list[Server]:
        return [server for server in self.servers if server.process is not None and server.process.poll() is None]

    def _is_settled(self, server: Server) -> bool:
        try:
            with server.client() as client:
                told = client.cluster("INFO")
                replication = client.info("replication")
        except RedisError:
            return False
        whole = told["cluster_state"] == "ok" and int(told["cluster_slots_ok"]) == HASH_SLOTS
        return whole and (replication["role"] == "master" or replication["master_link_status"] == "up")

    def _named(self) -> set[frozenset[tuple[str, str, str]]]:
        """The masters that the nodes name: (name, epoch, hash slots)."""
        views = [self._nodes(server).values() for server in self.alive()]
        return {frozenset((node["node_id"], node["epoch"], str(node["slots"])) for node in view if node["slots"]) for view in views}

    def master(self, store: int) -> Server:
        """Whom most nodes name as the master of a store."""
        slot = slot_of_tag(tag_of(store, self.stores))
        named: list[int] = []
        for server in self.alive():
            with server.client() as client, contextlib.suppress(RedisError):
                named += [port for first, last, (_, port, *_), *_ in _slots(client) if first <= slot <= last]
        port = max(named, key=named.count)
        return next(server for server in self.servers if server.port == port)

    def fail_over(self, store: int) -> Server:
        """Kill the master of a store, and wait until another one serves it. Returns the one that is dead."""
        before = self.master(store)
        before.kill()
        self.await_others(before)
        return before

    def await_others(self, dead: Server) -> None:
        """Wait until no store is at this server."""
        _until(lambda: not self.stores_at(dead), "no replica is promoted")

    def stores_at(self, server: Server) -> set[int]:
        """Those whose master it is."""
        return {store for store in range(self.stores) if self.master(store) is server}

    def masters(self) -> list[Server]:
        """The living ones, with and without stores."""
        found = []
        for server in self.alive():
            with server.client() as client:
                found += [server] if client.info("replication")["role"] == "master" else []
        return found

    def move(self, store: int, to: Server, *options: str) -> Iterator[None]:
        """Move the hash slot of a store to another master, key by key, as `redis-cli --cluster reshard` does; yields between keys."""
        slot, source = slot_of_tag(tag_of(store, self.stores)), self.master(store)
        names = self.id(source), self.id(to)
        with source.client() as old, to.client() as new:
            new.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", names[0])
            old.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", names[1])
            while keys := old.execute_command("CLUSTER GETKEYSINSLOT", slot, 10):
                old.execute_command("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, *options, "AUTH", PASSWORD, "KEYS", *keys)
                yield
            for server in (to, source, *self.alive()):
                with server.client() as client, contextlib.suppress(RedisError):  # replicas take it from their masters
                    client.execute_command("CLUSTER SETSLOT", slot, "NODE", names[1])

    def client(self, store: int) -> Redis:
        """Of the master of a store, without the store's tag."""
        return self.master(store).client()


def _slots(client: Redis) -> list[Any]:
    client.set_response_callback("CLUSTER SLOTS", lambda reply, **_: reply)
    return list(client.execute_command("CLUSTER SLOTS"))


def _until(holds: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _SETTLED_S
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(otherwise)
        time.sleep(0.05)
