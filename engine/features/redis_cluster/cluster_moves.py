"""Moves a store to another master of its Redis Cluster, and tells where the stores are.

as a whole     CLUSTER MIGRATESLOTS (Valkey 9): the source hands the slot over when the target has everything. The store pauses for a
               moment. When either node dies before that, the slot stays where it was
key by key     the others: IMPORTING at the target, MIGRATING at the source, MIGRATE of some keys at a time, then the new owner. The
               store pauses by itself meanwhile (`engine.store.cluster`). A move that was interrupted is continued by the same call:
               keys are on one node or the other. Those of an interrupted MIGRATE may be on both, and are moved again

All nodes must know of a move before the next one begins, and of the epoch that its target took. A target that has not heard of it takes
no newer one, the others take the slot away from it again, and no node has it (Valkey 9.1).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import redis.asyncio as redis
from msgspec import Struct
from redis.exceptions import RedisError, ResponseError

from engine.config import Config, store_urls
from engine.errors import EngineError, StorageUnavailable
from engine.store.cluster import address_of, parse, slot_of_tag, tag_of

_AS_A_WHOLE: Final = "MIGRATESLOTS"
_KEYS_AT_ONCE: Final = 100
_MIGRATE_MS: Final = 5000  # without progress
_MIGRATE_S: Final = 60.0  # of one command: some gigabytes
_LOOK_S: Final = 0.1
_AGREED_S: Final = 10.0  # nodes tell each other within a second or two
_OVER: Final = {b"success", b"failed", b"cancelled"}
_FORGOTTEN: Final = {b"state": b"failed", b"message": b"the source does not know it; it has started again"}


class StorePlace(Struct, frozen=True):
    """Where a store is: its number, tag, hash slot, the address of its master ("" when there is none), and its keys there."""

    store: int
    tag: str
    slot: int
    node: str
    keys: int


async def places(config: Config) -> list[StorePlace]:
    """Of all stores of `redis_url`. Raises StorageUnavailable."""
    stores = len(store_urls(config.redis_url))
    return [await _place(config, store, tag_of(store, stores)) for store in range(stores)]


async def _place(config: Config, store: int, tag: str) -> StorePlace:
    slot = slot_of_tag(tag)
    try:
        async with _Node(config) as node:
            owner, _ = await node.named(slot)
        if owner:
            async with _Node(config, owner) as node:
                return StorePlace(store, tag, slot, owner, await node.ask("CLUSTER", "COUNTKEYSINSLOT", slot))
    except StorageUnavailable:
        pass
    return StorePlace(store, tag, slot, "", 0)


async def move(config: Config, store: int, target: str) -> AsyncIterator[int]:
    """Move a store to the master at `target`, HOST:PORT; yields how many keys are left at the source.

    Raises:
        EngineError: there is no such store, `target` is no master, the source ended the move, or the nodes name several masters or none.
        StorageUnavailable: a node does not answer; the call can be repeated.
    """
    stores = len(store_urls(config.redis_url))
    if store >= stores:
        raise EngineError(f"store {store}: there are {stores}, from 0 to {stores - 1}")
    slot = slot_of_tag(tag_of(store, stores))
    source = await _agreed(config, slot, target)
    if source == target:
        return
    async for left in _moved(config, slot, source, target):
        yield left
    if (owner := await _agreed(config, slot, target)) != target:
        raise EngineError(f"the move ended, but the nodes name {owner} as the master; repeat the call")


async def _agreed(config: Config, slot: int, target: str) -> str:
    """The master of a hash slot, once all nodes that answer name the same one, with the same epoch."""
    until_s = time.monotonic() + _AGREED_S
    while True:
        named = await _named(config, slot, target)
        owners = set(named.values())
        if len(owners) == 1 and (owner := owners.pop()[0]):
            return owner
        if time.monotonic() > until_s:
            told = ", ".join(f"{node} names {f'{owner}, epoch {epoch}' if owner else 'none'}" for node, (owner, epoch) in named.items())
            raise EngineError(f"the nodes name no single master of hash slot {slot}: {told}; mend it with CLUSTER SETSLOT")
        await asyncio.sleep(_LOOK_S)


async def _named(config: Config, slot: int, target: str) -> dict[str, tuple[str, int]]:
    """By address of each node that answers, the master that it names for a hash slot, and that one's epoch."""
    named = {}
    async with _Node(config) as any_node:
        nodes = await any_node.nodes()
    for address in {**nodes, target: None}:
        with contextlib.suppress(StorageUnavailable):
            async with _Node(config, address) as node:
                named[address] = await node.named(slot)
    return named


async def _moved(config: Config, slot: int, source: str, target: str) -> AsyncIterator[int]:
    async with _Node(config, source) as old, _Node(config, target) as new:
        if (await new.ask("ROLE"))[0] != b"master":
            raise EngineError(f"{target} is no master; CLUSTER NODES names them")
        old_id, new_id = (await old.ask("CLUSTER", "MYID")).decode(), (await new.ask("CLUSTER", "MYID")).decode()
        try:
            await old.ask("CLUSTER", _AS_A_WHOLE, "SLOTSRANGE", slot, slot, "NODE", new_id)
        except EngineError as error:
            if "unknown subcommand" not in str(error).lower():
                raise
            async for left in _by_key(old, new, slot, target, (old_id, new_id)):
                yield left
            return
        async for left in _as_a_whole(old, slot):
            yield left


async def _as_a_whole(old: _Node, slot: int) -> AsyncIterator[int]:
    while True:
        moves = await old.ask("CLUSTER", "GETSLOTMIGRATIONS")  # the newest first
        of_slot = (told for told in moves if told[b"slot_ranges"] == b"%d-%d" % (slot, slot) and told[b"operation"] == b"EXPORT")
        ours = next(of_slot, _FORGOTTEN)
        if ours[b"state"] in _OVER:
            break
        yield await old.ask("CLUSTER", "COUNTKEYSINSLOT", slot)
        await asyncio.sleep(_LOOK_S)
    if ours[b"state"] != b"success":
        raise EngineError(f"the move ended: {ours[b'state'].decode()}: {ours.get(b'message', b'').decode()}; the store is where it was")


async def _by_key(old: _Node, new: _Node, slot: int, target: str, ids: tuple[str, str]) -> AsyncIterator[int]:
    host, _, port = target.rpartition(":")
    await new.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
    await old.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
    while keys := await old.ask("CLUSTER", "GETKEYSINSLOT", slot, _KEYS_AT_ONCE):
        yield await old.ask("CLUSTER", "COUNTKEYSINSLOT", slot)
        await old.ask("MIGRATE", host, port, "", 0, _MIGRATE_MS, "REPLACE", *old.login, "KEYS", *keys, timeout_s=_MIGRATE_S)
    await new.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
    await old.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[1])


class _Node:
    """A connection to one node, which sends commands as they are. Use as a context manager.

    Args:
        address: HOST:PORT; "": the first one of the URL that answers.
    """

    def __init__(self, config: Config, address: str = "") -> None:
        self._timeout_s = config.redis_timeout_ms / 1000
        self._url = parse(store_urls(config.redis_url)[0])
        host, _, port = address.rpartition(":")
        self._addresses = [(host, int(port))] if address else self._url.nodes
        options = self._url.options
        user, password = options.get("username"), options.get("password")
        self.login: list[str] = [] if password is None else ["AUTH2", user, password] if user else ["AUTH", password]
        self._client: redis.Redis
        self._host = ""  # that answers

    async def __aenter__(self) -> _Node:
        failures = []
        for host, port in self._addresses:
            options = self._url.options | {"socket_timeout": self._timeout_s, "socket_connect_timeout": self._timeout_s, "protocol": 3}
            self._client = redis.Redis(host=host, port=port, **options)
            try:
                await self._client.ping()
            except (RedisError, OSError) as error:
                failures.append(f"{host}:{port}: {error}")
                await self._client.aclose()
            else:
                self._host = host
                return self
        raise StorageUnavailable("; ".join(failures))

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def ask(self, *command: Any, timeout_s: float | None = None) -> Any:
        """The raw reply, after `timeout_s` at most, by default `redis_timeout_ms`. Raises EngineError, or StorageUnavailable."""
        connection = await self._client.connection_pool.get_connection()  # type: ignore[no-untyped-call]  # a client would change replies
        connection.socket_timeout = timeout_s or self._timeout_s  # the argument of a read lets a late reply pass for the next one
        try:
            await connection.send_command(*command)
            return await connection.read_response()
        except ResponseError as error:
            raise EngineError(f"{self._host} refuses {command[0]}: {error}") from error
        except (RedisError, OSError) as error:
            raise StorageUnavailable(f"{command[0]}: {error}") from error
        finally:
            await self._client.connection_pool.release(connection)

    async def named(self, slot: int) -> tuple[str, int]:
        """The address of the master that it names for a hash slot, and the epoch that it knows of it; "" and 0: none."""
        found = next((nodes[0] for first, last, *nodes in await self.ask("CLUSTER", "SLOTS") if first <= slot <= last), None)
        if found is None:
            return "", 0
        lines: bytes = await self.ask("CLUSTER", "NODES")
        epochs = {words[0]: int(words[6]) for words in map(bytes.split, lines.splitlines())}
        return "{}:{}".format(*address_of(found, self._host)), epochs[found[2]]

    async def nodes(self) -> dict[str, None]:
        """The addresses of those that it knows to have hash slots, and of their replicas, in order."""
        slots: Sequence[Any] = await self.ask("CLUSTER", "SLOTS")
        return dict.fromkeys("{}:{}".format(*address_of(node, self._host)) for _, _, *nodes in slots for node in nodes)
