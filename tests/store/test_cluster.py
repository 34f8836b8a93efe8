"""A real Redis Cluster: where a store is, how its keys are named, and what a client notices when it moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.exceptions import ConnectionError, TimeoutError

from engine.config import STORES_ALLOWED, Config
from engine.errors import ConfigError, EngineError, StorageUnavailable
from engine.features.redis_cluster import cluster_moves
from engine.features.redis_cluster.cluster_moves import move, places
from engine.store.cluster import HASH_SLOTS, STORES_MAX, _Topology, node_of, slot_of_tag, tag_of, with_tag
from engine.store.lua import Script
from engine.store.redis_client import connect, durability_warnings, wait_ready
from engine.store.stores import connect_each
from tests.support.chaos.cluster_group import ClusterGroup
from tests.support.chaos.sentinel_group import PASSWORD
from tests.support.waiting import until_done

SWAP = Script("slot_map_swap")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterGroup]:
    with ClusterGroup(tmp_path_factory.mktemp("cluster"), replicas=1) as group:
        yield group


@pytest.fixture
async def clients(cluster: ClusterGroup) -> AsyncIterator[list[Redis]]:
    """One of each store."""
    await asyncio.to_thread(cluster.settled)  # what the test before has moved
    made = connect_each(connect, Config(redis_url=cluster.url, redis_timeout_ms=2000))
    yield made
    for client in made:
        await client.aclose()


@pytest.mark.parametrize("stores", STORES_ALLOWED)
def test_stores_are_spread_evenly_and_the_first_has_always_one_tag(stores: int) -> None:
    slots = [slot_of_tag(tag_of(store, stores)) for store in range(stores)]
    assert [slot * stores // HASH_SLOTS for slot in slots] == list(range(stores))
    assert slots == [slot_of_tag(tag_of(store * STORES_MAX // stores, STORES_MAX)) for store in range(stores)]


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5), st.lists(st.binary(), max_size=3))
def test_the_tag_is_put_before_keys_of_scripts_alone(keys: list[str], arguments: list[bytes]) -> None:
    tagged = with_tag("{7}", ["EVALSHA", "sha", len(keys), *keys, *arguments])
    assert tagged == ["EVALSHA", "sha", len(keys), *(f"{{7}}{key}" for key in keys), *arguments]


@pytest.mark.parametrize(
    ("command", "tagged"),
    [
        (["GET", "a"], ["GET", "{7}a"]),
        (["GET", b"a"], ["GET", b"{7}a"]),
        (["HSET", "a", "b", "c"], ["HSET", "{7}a", "b", "c"]),
        (["DEL", "a", "b"], ["DEL", "{7}a", "{7}b"]),
        (["LREM", "a", 1, "b"], ["LREM", "{7}a", 1, "b"]),
        (["XINFO STREAM", "a"], ["XINFO", "STREAM", "{7}a"]),
        (["XREADGROUP", "GROUP", "g", "c", "COUNT", 1, b"STREAMS", "a", "b", ">", "0"], None),
        (["SCAN", 0, b"COUNT", 9], ["SCAN", 0, b"COUNT", 9, b"MATCH", "{7}*"]),
        (["SCAN", 0, b"MATCH", "a*"], ["SCAN", 0, b"MATCH", "{7}a*"]),
        (["SCRIPT LOAD", "return 1"], ["SCRIPT", "LOAD", "return 1"]),
        (["WAIT", 1, 100], ["WAIT", 1, 100]),
    ],
)
def test_the_tag_is_put_where_each_command_has_its_keys(command: list[object], tagged: list[object] | None) -> None:
    expected = tagged or [*command[:6], b"STREAMS", "{7}a", "{7}b", ">", "0"]
    assert with_tag("{7}", command) == expected


def test_a_command_whose_keys_are_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="FLUSHALL"):
        with_tag("{7}", ["FLUSHALL"])


async def test_stores_share_key_names_and_do_not_see_others(clients: list[Redis]) -> None:
    for number, client in enumerate(clients):
        await client.set("same", number)
        await client.xadd("stream", {"store": number})
    for number, client in enumerate(clients):
        assert await client.get("same") == b"%d" % number
        assert {key async for key in client.scan_iter(count=1000)} == {b"same", b"stream"}
        ((name, entries),) = await client.xread({"stream": "0"})
        assert (name, [fields for _, fields in entries]) == (b"stream", [{b"store": b"%d" % number}])
        pipeline = client.pipeline(transaction=True)
        pipeline.delete("same", "stream")
        pipeline.exists("same")
        assert await pipeline.execute() == [2, 0]


async def test_a_client_follows_its_store_to_the_replica_that_is_promoted(cluster: ClusterGroup, clients: list[Redis]) -> None:
    await clients[1].set("kept", "value")
    assert await clients[1].execute_command("WAIT", 1, 5000) == 1
    before = await asyncio.to_thread(cluster.fail_over, 1)
    assert await until_done(lambda: clients[1].get("kept"), ConnectionError, OSError, within_s=30) == b"value"
    assert node_of(clients[1]) == f"127.0.0.1:{cluster.master(1).port}"
    await clients[1].delete("kept")
    before.start()
    await asyncio.to_thread(cluster.settled)


async def test_a_node_that_is_cut_off_does_not_keep_a_client(cluster: ClusterGroup) -> None:
    """It still names itself as the master of all, and takes no command."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        commands = hiredis.Reader()
        while data := await reader.read(4096):
            commands.feed(data)
            while (command := commands.gets()) is not False:
                writer.write(answers.get(command[0], b"-CLUSTERDOWN The cluster is down\r\n"))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    slots = b"*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:%d\r\n$1\r\na\r\n" % port
    answers = {
        b"HELLO": b"%1\r\n$5\r\nproto\r\n:3\r\n",
        b"CLIENT": b"+OK\r\n",
        b"CLUSTER": slots,
        b"ROLE": b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n",
    }
    url = cluster.url.replace("127.0.0.1", f"127.0.0.1:{port},127.0.0.1", 1)
    (client, *_) = connect_each(connect, Config(redis_url=url, redis_durability="reported"))
    try:
        with pytest.raises(ConnectionError, match="cluster is down"):
            await client.get("a")
        assert await client.get("a") is None
    finally:
        await client.aclose()
        server.close()


async def test_no_script_runs_while_its_store_moves_key_by_key(cluster: ClusterGroup, clients: list[Redis]) -> None:
    """Not even one whose keys are all still there: it might look for others."""
    client = clients[0]
    for number in range(20):
        await client.set(f"key-{number}", "before")
    before = cluster.master(0)
    to = next(cluster.master(store) for store in (2, 3) if cluster.master(store) is not before)
    for _ in cluster.move(0, to):
        there = [key for key in range(20) if not await is_away(client, f"key-{key}")]
        for number in there[:2]:
            with pytest.raises(StorageUnavailable):
                await SWAP.run(client, [f"key-{number}"], ["before", "after"])
    assert cluster.master(0) is to
    await asyncio.to_thread(cluster.settled)
    values = [await until_done(lambda key=f"key-{number}": client.get(key), ConnectionError, within_s=30) for number in range(20)]  # type: ignore[misc]
    assert values == [b"before"] * 20
    assert await SWAP.run(client, ["key-1"], ["before", "after"]) == [b"OK", 1]


@pytest.mark.parametrize("whole", [True, False], ids=["as a whole", "key by key"])
async def test_a_store_moves_to_another_master_and_back_with_all_its_keys(
    cluster: ClusterGroup, clients: list[Redis], whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other servers than Valkey 9 do not know the command that moves it as a whole."""
    if not whole:
        monkeypatch.setattr(cluster_moves, "_AS_A_WHOLE", "NONE")
    config = Config(redis_url=cluster.url)
    await clients[2].set("a", "1")
    first, other = cluster.master(2), next(server for store in (0, 3) if (server := cluster.master(store)) is not cluster.master(2))
    for target in (other, first):
        left = [keys async for keys in move(config, 2, f"127.0.0.1:{target.port}")]
        assert left == sorted(left, reverse=True)
        assert cluster.master(2) is target
        place = (await places(config))[2]
        assert (place.node, place.keys) == (f"127.0.0.1:{target.port}", 1)
        assert await until_done(lambda: clients[2].get("a"), ConnectionError, within_s=30) == b"1"
    await clients[2].delete("a")


async def test_a_move_goes_on_with_a_key_on_both_nodes(
    cluster: ClusterGroup, clients: list[Redis], monkeypatch: pytest.MonkeyPatch
) -> None:
    """MIGRATE restores keys at the target before it deletes them at the source, and may end in between."""
    monkeypatch.setattr(cluster_moves, "_AS_A_WHOLE", "NONE")
    await clients[2].set("a", "1")
    first, other = cluster.master(2), next(server for store in (0, 3) if (server := cluster.master(store)) is not cluster.master(2))
    next(cluster.move(2, other, "COPY"))  # and no further
    for target in (other, first):
        _ = [keys async for keys in move(Config(redis_url=cluster.url), 2, f"127.0.0.1:{target.port}")]
    assert await until_done(lambda: clients[2].get("a"), ConnectionError, within_s=30) == b"1"
    await clients[2].delete("a")


@pytest.mark.parametrize("patient", [True, False])
async def test_keys_may_take_longer_to_move_than_a_command_takes(
    cluster: ClusterGroup, clients: list[Redis], monkeypatch: pytest.MonkeyPatch, patient: bool
) -> None:
    """Without patience the move ends with an error: its late reply must not pass for that of the next command."""
    monkeypatch.setattr(cluster_moves, "_AS_A_WHOLE", "NONE")
    await clients[2].set("a", "1")
    first, other = cluster.master(2), next(server for store in (0, 3) if (server := cluster.master(store)) is not cluster.master(2))
    config = Config(redis_url=cluster.url, redis_timeout_ms=300 if patient else 2000)
    with contextlib.nullcontext() if patient else pytest.raises(StorageUnavailable, match="MIGRATE"), monkeypatch.context() as patch:
        if not patient:
            patch.setattr(cluster_moves, "_MIGRATE_S", 0.1)
        async for _ in move(config, 2, f"127.0.0.1:{other.port}"):
            with other.client() as node:
                node.execute_command("CLIENT", "PAUSE", 1000, "ALL")  # a large key blocks both ends as long
    for target in (other, first):
        _ = [keys async for keys in move(Config(redis_url=cluster.url), 2, f"127.0.0.1:{target.port}")]
        assert cluster.master(2) is target
    assert await until_done(lambda: clients[2].get("a"), ConnectionError, within_s=30) == b"1"
    await clients[2].delete("a")


async def test_a_source_that_started_again_tells_that_the_move_ended() -> None:
    """It has forgotten the move, and has the store."""

    class Source:
        async def ask(self, *_command: object) -> list[object]:
            return []

    source: Any = Source()
    with pytest.raises(EngineError, match=r"the move ended: .*where it was"):
        _ = [left async for left in cluster_moves._as_a_whole(source, 7)]


async def test_a_move_waits_until_all_nodes_know_of_the_former_one(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [
        {"a:1": ("a:1", 7), "b:2": ("", 0)},
        {"a:1": ("a:1", 7), "b:2": ("b:2", 8)},
        {"a:1": ("b:2", 7), "b:2": ("b:2", 8)},
        {"a:1": ("b:2", 8), "b:2": ("b:2", 8)},
    ]

    async def named(*_: object) -> dict[str, tuple[str, int]]:
        return told.pop(0) if len(told) > 1 else told[0]

    monkeypatch.setattr(cluster_moves, "_named", named)
    monkeypatch.setattr(cluster_moves, "_LOOK_S", 0)
    assert await cluster_moves._agreed(Config(), 7, "b:2") == "b:2"
    assert len(told) == 1


async def test_a_move_that_the_nodes_know_nothing_of_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target may be away when the source has handed the store over."""

    async def named(*_: object) -> dict[str, tuple[str, int]]:
        return {"a:1": ("a:1", 7)}

    async def moved(*_: object) -> AsyncIterator[int]:
        yield 3

    monkeypatch.setattr(cluster_moves, "_named", named)
    monkeypatch.setattr(cluster_moves, "_moved", moved)
    with pytest.raises(EngineError, match="the nodes name a:1"):
        _ = [left async for left in move(Config(redis_url="redis+cluster://127.0.0.1:1/4"), 0, "c:3")]


async def test_no_store_moves_while_the_nodes_name_several_masters(monkeypatch: pytest.MonkeyPatch) -> None:
    async def named(*_: object) -> dict[str, tuple[str, int]]:
        return {"a:1": ("b:2", 7), "b:2": ("", 0)}

    monkeypatch.setattr(cluster_moves, "_named", named)
    monkeypatch.setattr(cluster_moves, "_AGREED_S", 0.05)
    with pytest.raises(EngineError, match="a:1 names b:2, epoch 7, b:2 names none"):
        _ = [left async for left in move(Config(redis_url="redis+cluster://127.0.0.1:1/4"), 0, "c:3")]


async def test_a_move_that_a_node_refuses_is_an_error_of_the_engine(cluster: ClusterGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_moves, "_AS_A_WHOLE", "NONE")
    target = next(server for store in (0, 3) if (server := cluster.master(store)) is not cluster.master(2))
    with target.client() as node:
        node.execute_command("ACL", "SETUSER", "default", "-cluster|setslot")
        try:
            with pytest.raises(EngineError, match="refuses CLUSTER"):
                _ = [left async for left in move(Config(redis_url=cluster.url), 2, f"127.0.0.1:{target.port}")]
        finally:
            node.execute_command("ACL", "SETUSER", "default", "+cluster|setslot")


async def test_a_node_without_a_name_is_found_where_it_was_asked(cluster: ClusterGroup, clients: list[Redis]) -> None:
    def prefer(endpoint: str) -> None:
        for server in cluster.servers:
            with server.client() as node:
                node.config_set("cluster-preferred-endpoint-type", endpoint)

    prefer("hostname")
    try:
        assert [await client.exists("none") for client in clients] == [0, 0, 0, 0]
        found = await places(Config(redis_url=cluster.url))
    finally:
        prefer("ip")
    assert [place.node for place in found] == [f"127.0.0.1:{cluster.master(store).port}" for store in range(4)]


async def test_a_move_to_a_replica_or_of_no_store_is_refused(cluster: ClusterGroup) -> None:
    config, masters = Config(redis_url=cluster.url), {cluster.master(store).port for store in range(4)}
    replica = next(server for server in cluster.servers if server.port not in masters)
    with pytest.raises(EngineError, match="is no master"):
        _ = [left async for left in move(config, 0, f"127.0.0.1:{replica.port}")]
    with pytest.raises(EngineError, match="from 0 to 3"):
        _ = [left async for left in move(config, 4, f"127.0.0.1:{cluster.master(0).port}")]


async def test_settings_of_a_cluster_that_keep_publishers_waiting_are_warned_of(cluster: ClusterGroup, clients: list[Redis]) -> None:
    assert await durability_warnings(clients[0], Config(redis_replicas_min=1)) == []
    with cluster.client(0) as node:
        node.config_set("cluster-require-full-coverage", "yes")
        found = await durability_warnings(clients[0], Config(commit_retry_ms=900))
        node.config_set("cluster-require-full-coverage", "no")
    assert [text.partition(" ")[0] for text in found] == ["cluster-require-full-coverage", "cluster-node-timeout"]


async def test_a_node_that_keeps_less_than_required_is_refused(cluster: ClusterGroup) -> None:
    def sync(when: str) -> None:
        for server in cluster.servers:
            with server.client() as node:
                node.config_set("appendfsync", when)

    sync("everysec")
    try:
        for client in connect_each(connect, Config(redis_url=cluster.url)):
            with pytest.raises(ConnectionError, match="redis_durability"):
                await client.get("a")
            await client.aclose()
    finally:
        sync("always")


async def test_a_cluster_node_given_as_one_server_is_refused(cluster: ClusterGroup) -> None:
    config = Config(redis_url=f"redis://:{PASSWORD}@127.0.0.1:{cluster.servers[0].port}")
    client = connect(config)
    with pytest.raises(StorageUnavailable, match=r"redis\+cluster://HOST"):
        await wait_ready(client, config, 5)
    await client.aclose()


async def is_away(client: Redis, key: str) -> bool:
    try:
        return await client.get(key) is None
    except ConnectionError:
        return True


async def test_a_cluster_of_which_no_node_answers_is_told_by_its_nodes() -> None:
    client = connect(Config(redis_url="redis+cluster://127.0.0.1:9,127.0.0.1:7/2"))
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:9.*127\.0\.0\.1:7"):
        await client.ping()
    await client.aclose()


class Node:
    """A connection to a node that needs so long for its answer."""

    def __init__(self, asked: list[float], needs_s: float, socket_timeout: float) -> None:
        self.asked = asked
        self.needs_s = needs_s
        self.timeout_s = socket_timeout

    async def connect(self) -> None:
        self.asked.append(self.timeout_s)
        await asyncio.sleep(0)
        if self.timeout_s < self.needs_s:
            raise TimeoutError("Timeout connecting to server")

    async def send_command(self, *_words: str, check_health: bool) -> None:
        pass

    async def read_response(self) -> list[Any]:
        return [[0, 16383, [b"master", 6380, b"id"]]]

    async def disconnect(self) -> None:
        pass


def topology_of(asked: list[float], needs_s: float) -> _Topology:
    nodes = [("a", 1), ("b", 1)]
    return _Topology(nodes, 0, lambda socket_timeout, **_: Node(asked, needs_s, socket_timeout), 0.25)  # type: ignore[arg-type, return-value]


async def test_connections_that_open_at_once_ask_for_the_master_once() -> None:
    asked: list[float] = []
    topology = topology_of(asked, 0.1)
    assert set(await asyncio.gather(*[topology.master() for _ in range(20)])) == {("master", 6380)}
    assert len(asked) == 1
    await topology.master()
    assert len(asked) == 2, "a later connection asks anew"


async def test_nodes_too_busy_to_answer_in_time_get_more_time() -> None:
    asked: list[float] = []
    topology = topology_of(asked, 0.8)
    for _ in range(2):
        with pytest.raises(ConnectionError, match="no node"):
            await topology.master()
    assert await topology.master() == ("master", 6380)
    assert asked == [0.25, 0.25, 0.5, 0.5, 1.0]
    with pytest.raises(ConnectionError, match="no node"):
        await topology.master()
    assert asked[5:] == [0.5] * 3, "half of it after an answer, of three nodes now"


@pytest.mark.parametrize("url", ["redis+cluster://:1/2", "redis+cluster://h:none/2"])
def test_a_url_that_names_no_node_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="redis_url"):
        connect(Config(redis_url=url))
