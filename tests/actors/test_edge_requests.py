"""Requests of a feature's actor, to edges that this test controls."""

from __future__ import annotations

from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from engine.actors.edge_requests import EdgeRequests
from engine.errors import Unavailable

PATH, BODIES = "/v1/notifications", [b"[1]", b"[2]"]


class Ingest:
    """The method of a handle."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[Any, ...]] = []

    async def remote(self, *arguments: Any, proof: bytes) -> Any:
        self.asked.append((*arguments, proof))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Edge:
    """The handle of an edge with these answers."""

    def __init__(self, *answers: Any) -> None:
        self.ingest = Ingest(*answers)


def requests_to(*edges: Edge) -> EdgeRequests:
    """Requests that find these edges, one after another."""
    left = list(edges)

    async def find() -> Any:
        if not left:
            raise ValueError("no edge runs")
        return left.pop(0)

    return EdgeRequests(find, lambda method: method.encode())


def answer(status: int) -> tuple[int, dict[str, str], bytes]:
    return status, {}, b"{}"


async def test_requests_keep_to_an_edge_that_answers_and_carry_a_proof() -> None:
    edge = Edge([answer(202), answer(202)], [answer(422), answer(202)])
    requests = requests_to(edge)
    assert await requests.publish("shop", PATH, BODIES) == [answer(202), answer(202)]
    assert await requests.publish("shop", PATH, BODIES) == [answer(422), answer(202)]
    assert edge.ingest.asked == [("shop", PATH, BODIES, b"ingest")] * 2


@pytest.mark.parametrize("failure", [ActorDiedError(), TimeoutError(), Unavailable("this edge does not serve now")])
async def test_requests_find_another_edge_after_a_failure(failure: Exception) -> None:
    requests = requests_to(Edge(failure), Edge([answer(202)]))
    with pytest.raises(Unavailable, match="no edge answers"):
        await requests.publish("shop", PATH, BODIES)
    assert await requests.publish("shop", PATH, BODIES[:1]) == [answer(202)]


@pytest.mark.parametrize("status", [429, 503])
async def test_requests_leave_an_edge_that_refuses_for_load(status: int) -> None:
    requests = requests_to(Edge([answer(status)]), Edge([answer(202)]))
    assert await requests.publish("shop", PATH, BODIES) == [answer(status)]
    assert await requests.publish("shop", PATH, BODIES[:1]) == [answer(202)]


async def test_requests_without_an_edge_are_unavailable() -> None:
    with pytest.raises(Unavailable, match="no edge runs"):
        await requests_to().publish("shop", PATH, BODIES)
