"""The peers' programs serve, and the generator speaks their protocols: else a comparison would compare nothing."""

from __future__ import annotations

import pytest

from bench.books import Books
from bench.peers.channels import ChannelsCelery
from bench.peers.peer import Peer
from bench.peers.socketio import SocketIo
from bench.workloads import connect_all, full_load, senders

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", [SocketIo, ChannelsCelery])
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
        assert set(system.processes.roles().values()) >= {"web", "redis"}
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
