"""The peers' programs serve, and the generator speaks their protocols: else a comparison would compare nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.books import Books
from bench.peers.channels import ChannelsCelery
from bench.peers.mosquitto import Mosquitto, packet, packets
from bench.peers.peer import Peer
from bench.peers.socketio import SocketIo
from bench.workloads import connect_all, full_load, senders

pytestmark = pytest.mark.slow


WITHOUT_MOSQUITTO = pytest.mark.skipif(Mosquitto.program() is None, reason="no Mosquitto")
KINDS = [SocketIo, ChannelsCelery, pytest.param(Mosquitto, marks=WITHOUT_MOSQUITTO)]


@pytest.mark.parametrize("kind", KINDS)
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
        assert set(system.processes.roles().values()) >= ({"web", "redis"} if system.needs_redis else {"broker"})
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


@WITHOUT_MOSQUITTO
async def test_who_returns_to_the_broker_gets_what_was_sent_meanwhile() -> None:
    books = Books(3)
    async with Mosquitto() as system:
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
