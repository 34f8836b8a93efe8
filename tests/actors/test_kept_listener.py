"""A socket that connections wait at while the edge that listens on it is replaced; edges and keeper in one process."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.actors import kept_listener
from engine.actors.kept_listener import Keeper, KeptListener

ADDRESS = "127.0.0.1:1"
"""A name for the keeper: the sockets have free ports."""


class Edge:
    """One that has just begun."""

    def __init__(self, address: str) -> None:
        self.began_anew = False
        self.listener = KeptListener(address, self._bind)
        self.listener.socket.listen()
        self.port: int = self.listener.socket.getsockname()[1]

    def _bind(self) -> socket.socket:
        self.began_anew = True
        one = socket.socket()
        one.bind(("127.0.0.1", 0))
        return one

    def accept(self) -> socket.socket:
        self.listener.socket.settimeout(10)
        return self.listener.socket.accept()[0]

    def close(self) -> None:
        """Its files, as the kernel does when its process ends."""
        self.listener.socket.close()
        if self.listener._keeper is not None:
            self.listener._keeper.close()


class Machine:
    """The keeper, and the loop of the process that it is in."""

    def __init__(self, path: Path) -> None:
        self.now_s = 0.0
        self.keeper = Keeper(lambda: self.now_s)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        self._threads = ThreadPoolExecutor(1)  # for edges, which wait for the keeper
        self._edges: list[Edge] = []

    def begin(self, address: str = ADDRESS) -> Edge:
        edge = self._threads.submit(Edge, address)
        owner, _ = self._listener.accept()
        request = owner.recv(512)
        assert Keeper.is_asked(request)
        self.keeper.adopt(owner, request)
        if edge.result(10).began_anew:
            self.keeper.take_news(owner)
        self._edges.append(edge.result())
        return edge.result()

    def kill(self, edge: Edge) -> None:
        edge.close()
        self._hear()

    def release(self, edge: Edge) -> None:
        """An edge leaves on purpose."""
        edge.listener.release()
        self._hear()
        edge.close()

    def _hear(self) -> None:
        ready, _, _ = select.select(self.keeper.owners(), [], [], 10)
        for owner in ready:
            self.keeper.take_news(owner)

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        self.keeper.expire()

    def close(self) -> None:
        self._threads.shutdown()
        self._listener.close()
        self.keeper.close()
        for edge in self._edges:
            edge.close()


def refuses(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    path = tmp_path / "keeper.sock"
    monkeypatch.setattr(kept_listener, "keeper_path", str(path))
    one = Machine(path)
    yield one
    one.close()


def test_a_connection_waits_for_the_next_process_of_a_killed_edge(machine: Machine) -> None:
    killed = machine.begin()
    machine.kill(killed)
    with socket.create_connection(("127.0.0.1", killed.port)) as client:
        client.sendall(b"waits")
        edge = machine.begin()
        assert (edge.port, edge.began_anew) == (killed.port, False)
        with edge.accept() as accepted:
            assert accepted.recv(5) == b"waits"


def test_each_next_process_takes_over_from_the_one_before(machine: Machine) -> None:
    edge = first = machine.begin()
    for _ in range(3):
        machine.kill(edge)
        edge = machine.begin()
    with socket.create_connection(("127.0.0.1", first.port)), edge.accept():
        pass


def test_clients_are_refused_when_no_edge_comes_in_time(machine: Machine) -> None:
    edge = machine.begin()
    machine.kill(edge)
    assert machine.keeper.until_expiry() == 3.0
    machine.pass_s(2.9)
    assert not refuses(edge.port)
    machine.pass_s(0.1)
    assert refuses(edge.port)
    assert machine.keeper.until_expiry() is None


def test_an_edge_stops_listening_before_the_keeper_knows(machine: Machine) -> None:
    edge = machine.begin()
    edge.listener.release()
    edge.listener.stop()
    edge.close()
    assert refuses(edge.port)
    edge.listener.stop()  # once more: no effect


def test_an_edge_that_waits_no_more_takes_nothing(machine: Machine) -> None:
    killed = machine.begin()
    machine.kill(killed)
    machine.pass_s(2.0)
    owner, gone = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    gone.close()
    machine.keeper.adopt(owner, b"listener " + ADDRESS.encode())
    machine.pass_s(1.0)
    assert refuses(killed.port), "clients would wait for longer than they may"
    assert machine.keeper.owners() == []


def test_a_released_socket_is_kept_by_nobody(machine: Machine) -> None:
    edge = machine.begin()
    machine.release(edge)
    assert refuses(edge.port)
    assert machine.begin().began_anew
    edge.listener.release()  # once more: no effect


def test_clients_of_a_killed_edge_go_to_another_one_of_its_address(machine: Machine) -> None:
    killed, other = machine.begin(), machine.begin()
    machine.kill(killed)
    assert refuses(killed.port)
    machine.kill(other)
    assert not refuses(other.port), "nobody else has the address now"


def test_an_edge_takes_no_socket_of_another_address(machine: Machine) -> None:
    machine.kill(machine.begin())
    assert machine.begin("127.0.0.1:2").began_anew


@pytest.mark.parametrize("path", ["", "/nothing/there"])
def test_without_a_keeper_an_edge_binds_by_itself(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(kept_listener, "keeper_path", path)
    edge = Edge(ADDRESS)
    with socket.create_connection(("127.0.0.1", edge.port)), edge.accept():
        assert edge.began_anew
    edge.listener.release()
    edge.close()
