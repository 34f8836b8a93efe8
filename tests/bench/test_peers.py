"""The peers' programs serve, and the generator speaks their protocols: else a comparison would compare nothing."""

from __future__ import annotations

import asyncio
from argparse import Namespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import peers
from bench.books import Books, Data
from bench.peers.centrifugo import Centrifugo, Position, published, replies, subscribe
from bench.peers.channels import ChannelsCelery
from bench.peers.mosquitto import Mosquitto, packet, packets
from bench.peers.peer import Peer
from bench.peers.socketio import SocketIo
from bench.progress import Phases
from bench.workloads import BATCH, connect_all, full_load, senders
from tests.support.load.poster import Poster

pytestmark = pytest.mark.slow


WITHOUT_MOSQUITTO = pytest.mark.skipif(Mosquitto.program() is None, reason="no Mosquitto")
WITHOUT_CENTRIFUGO = pytest.mark.skipif(Centrifugo.program() is None, reason="no Centrifugo")
BROKERS = [pytest.param(Mosquitto, marks=WITHOUT_MOSQUITTO), pytest.param(Centrifugo, marks=WITHOUT_CENTRIFUGO)]
ROLES: dict[type[Peer], set[str]] = {
    SocketIo: {"web", "redis"},
    ChannelsCelery: {"web", "redis"},
    Mosquitto: {"broker"},
    Centrifugo: {"broker", "redis"},
}


@pytest.mark.parametrize("kind", [SocketIo, ChannelsCelery, *BROKERS])
async def test_a_peer_delivers_every_message_to_its_user_and_broadcasts_to_all(kind: type[Peer]) -> None:
    books = Books(5)
    async with kind() as system:
        listeners, failed = await connect_all(system, books, books.ledgers)
        (sender,) = await senders(system, books, 1)
        await full_load([sender], books, 50)
        assert (books.received, books.repeated, failed) == (50, 0, 0)  # workers of Celery may overtake each other
        publisher = await system.publisher(5)
        await publisher.broadcast(books.write_broadcast(books.clock()))
        assert await books.reach(55)
        await system.digested()
        assert [ledger.newest for ledger in books.ledgers] == [11] * 5
        assert set(system.processes.roles().values()) >= ROLES[kind]
        system.programs.check()
        sender.close()
        publisher.close()
        for listener in listeners:
            listener.drop()
    assert system.processes.roles() == {}


async def test_a_program_that_ended_is_noticed_with_what_it_said() -> None:
    async with SocketIo() as system:
        process = system.programs.start("broken", "sh", "-c", "echo no reason given >&2")
        process.wait(10)
        with pytest.raises(RuntimeError, match="no reason given"):
            system.programs.check()


@pytest.mark.parametrize("kind", BROKERS)
async def test_a_returning_client_gets_messages_sent_meanwhile(kind: type[Peer]) -> None:
    books = Books(3)
    async with kind() as system:
        listeners, _ = await connect_all(system, books, books.ledgers)
        (sender,) = await senders(system, books, 1)
        for listener in listeners:
            listener.drop()
        await sender.send([books.clock()] * 6)
        listeners, _ = await connect_all(system, books, books.ledgers)
        assert await books.reach(6)
        assert (books.repeated, books.out_of_order) == (0, 0)
        sender.close()
        for listener in listeners:
            listener.drop()


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=300))), st.data())
def test_packets_are_read_as_they_were_written_however_they_are_cut(written: list[tuple[int, bytes]], data: st.DataObject) -> None:
    whole = b"".join(packet(kind, body) for kind, body in written)
    buffer, read, at = bytearray(), list[tuple[int, bytes]](), 0
    while at < len(whole):
        size = data.draw(st.integers(1, len(whole) - at))
        buffer += whole[at : at + size]
        at += size
        read += packets(buffer)
    assert (read, buffer) == (written, b"")


@WITHOUT_CENTRIFUGO
async def test_a_returning_client_of_centrifugo_gets_missed_broadcasts() -> None:
    books = Books(2)
    async with Centrifugo() as system:
        publisher = await system.publisher(2)
        listeners, _ = await connect_all(system, books, books.ledgers)
        await publisher.broadcast(books.write_broadcast(books.clock()))
        assert await books.reach(2)
        for listener in listeners:
            listener.drop()
        await publisher.broadcast(books.write_broadcast(books.clock()))
        listeners, _ = await connect_all(system, books, books.ledgers)
        assert await books.reach(4)
        assert (books.repeated, books.out_of_order) == (0, 0)
        publisher.close()
        for listener in listeners:
            listener.drop()


@WITHOUT_CENTRIFUGO
async def test_centrifugo_takes_a_whole_batch_in_one_request() -> None:
    books = Books(BATCH)
    async with Centrifugo() as system:
        listeners, _ = await connect_all(system, books, books.ledgers)
        (sender,) = await senders(system, books, 1)
        await sender.send([books.clock()] * BATCH)
        assert await books.reach(BATCH)
        sender.close()
        for listener in listeners:
            listener.drop()


def test_a_frame_of_centrifugo_holds_replies_pushes_and_pings() -> None:
    data = {"to": 4, "n": 1, "due": 0.5}
    lines = [
        {"id": 1, "connect": {"client": "c", "ping": 25, "pong": True}},
        {"id": 2, "subscribe": {"recoverable": True, "epoch": "e", "offset": 7, "publications": [{"data": data, "offset": 7}]}},
        {"push": {"channel": "user:4", "pub": {"data": data, "offset": 8}}},
        {"id": 3, "error": {"code": 103, "message": "permission denied"}},
        {},
    ]
    connected, subscribed, pushed, refused, ping = replies(b"\n".join(map(msgspec.json.encode, lines)))
    assert connected.id == 1
    assert subscribed.subscribe is not None
    assert (subscribed.subscribe.epoch, [missed.offset for missed in subscribed.subscribe.publications]) == ("e", [7])
    assert pushed.push is not None
    assert pushed.push.pub is not None
    assert (pushed.push.channel, pushed.push.pub.offset, pushed.push.pub.data) == ("user:4", 8, Data(4, 1, 0.5))
    assert refused.error == {"code": 103, "message": "permission denied"}
    assert (ping.id, ping.push, ping.subscribe, ping.error) == (0, None, None, None)


def test_a_subscription_asks_for_recovery_only_from_a_position() -> None:
    assert msgspec.json.decode(subscribe(2, "user:4", Position())) == {"id": 2, "subscribe": {"channel": "user:4"}}
    recovery = {"channel": "user:4", "recover": True, "offset": 7, "epoch": "e"}
    assert msgspec.json.decode(subscribe(2, "user:4", Position(7, "e"))) == {"id": 2, "subscribe": recovery}


@pytest.mark.parametrize(
    ("channels", "path", "parallel"), [("a", "/api/publish", None), ("ab", "/api/batch", True), ("aba", "/api/batch", False)]
)
def test_a_batch_runs_in_parallel_unless_a_channel_repeats(channels: str, path: str, parallel: bool | None) -> None:
    at, body = published([(channel, Data(0, n, 0.5)) for n, channel in enumerate(channels)])
    told = msgspec.json.decode(body)
    commands = [command["publish"] for command in told["commands"]] if "commands" in told else [told]
    assert (at, told.get("parallel")) == (path, parallel)
    assert [(command["channel"], command["data"]["n"]) for command in commands] == [(channel, n) for n, channel in enumerate(channels)]


@pytest.mark.parametrize("kind", [Mosquitto, Centrifugo])
def test_an_absent_peer_is_left_out_aloud(kind: type[Peer], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(kind, "program", lambda: None)
    args = Namespace(systems=kind.name, workloads="delivery", quick=True, phases=Phases("peers"))
    assert list(peers.run(args)) == []
    assert f"peers: {kind.name} is left out: there is no" in capsys.readouterr().err
    assert kind.version() == ""


async def test_a_publisher_reads_an_answer_in_chunks() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        poster = await Poster.open(server.sockets[0].getsockname()[1])
        for _ in range(2):  # the second answer begins where the first ended
            status, _, body = await poster.request("GET", "/")
            assert (status, body) == (200, b"abc0123456789")
        poster.close()
