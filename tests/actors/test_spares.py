"""Which node is to have a spare process next."""

from __future__ import annotations

from typing import Any

import pytest

from engine.actors.spares import AGAIN_MS, EVERY_MS, SOON_MS, Spares


class World:
    """Nodes with actors, and a clock."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.rows: list[dict[str, Any]] = []
        self.away: set[str] = set()
        self.seen: dict[str, int] = {}  # by node; 0 when absent
        self.spares = Spares(lambda: self.now_ms, kept=True)

    def start(self, role: str, index: int, node: str) -> None:
        """A process of an actor, which ends the one it had."""
        self.now_ms += 1
        self.rows = [row for row in self.rows if (row["role"], row["index"]) != (role, index)]
        self.rows.append({"role": role, "index": index, "node_id": node, "started_ms": int(self.now_ms)})

    def told(self) -> list[dict[str, Any]]:
        """What the actors say."""
        return [row | {"spares": self.seen.get(row.get("node_id", ""), 0)} for row in self.rows]

    @property
    def expected(self) -> bool:
        return self.spares.expected(self.told())

    def next(self) -> str:
        """When another may be made; of nodes that are not in `away`."""
        self.now_ms += EVERY_MS
        node = self.spares.bare(self.told())
        if node and node not in self.away:
            self.spares.asked()
        return node


@pytest.fixture
def world() -> World:
    made = World()
    made.start("shard", 0, "a")
    made.start("shard", 1, "b")
    return made


def test_every_node_that_has_users_gets_one_spare_and_then_no_other(world: World) -> None:
    world.start("scheduler", 0, "c")
    assert [world.next() for _ in range(3)] == ["a", "b", ""]


def test_a_machine_whose_processes_are_forks_gets_none(world: World) -> None:
    world.spares = Spares(lambda: world.now_ms, kept=False)
    assert [world.next(), world.expected] == ["", False]


def test_a_node_gets_another_when_a_process_has_started_on_it(world: World) -> None:
    assert [world.next(), world.next()] == ["a", "b"]
    world.start("scheduler", 0, "b")
    assert [world.next(), world.next()] == ["b", ""]


def test_a_process_that_ended_without_a_successor_took_no_spare(world: World) -> None:
    world.start("edge", 0, "a")
    assert [world.next(), world.next()] == ["a", "b"]
    world.rows.pop()
    assert world.next() == ""


def test_spares_are_made_one_after_the_other_however_many_processes_start(world: World) -> None:
    assert world.next() == "a"
    world.start("shard", 0, "a")
    assert world.spares.bare(world.rows) == ""


def test_a_spare_that_could_not_be_started_is_tried_again_after_those_of_other_nodes(world: World) -> None:
    world.away = {"a"}
    assert [world.next() for _ in range(4)] == ["a", "b", "a", "a"]
    world.start("shard", 2, "b")
    assert [world.next() for _ in range(3)] == ["b", "a", "a"]
    world.away = set()
    assert [world.next(), world.next()] == ["a", ""]


def test_a_spare_that_does_not_come_is_asked_for_again_ever_later(world: World) -> None:
    """Where everything was killed at once the actors that start again take it, and none may start for days."""
    assert [world.next(), world.next()] == ["a", "b"]
    world.seen = {"b": 1}
    asked_ms = []
    while len(asked_ms) < 3:
        if world.next():
            asked_ms.append(world.now_ms)
    first, second, third = asked_ms
    assert first - EVERY_MS <= AGAIN_MS + 2 * EVERY_MS
    assert abs((third - second) - 2 * (second - first)) <= 2 * EVERY_MS
    world.seen = {"a": 1, "b": 1}
    assert world.next() == ""
    world.start("shard", 0, "a")
    world.seen = {"b": 1}
    assert world.next() == "a"


def test_a_process_that_starts_while_a_spare_is_asked_for_may_have_taken_it(world: World) -> None:
    world.now_ms += EVERY_MS
    assert world.spares.bare(world.told()) == "a"
    world.start("edge", 0, "a")
    world.spares.asked()
    assert [world.next(), world.next(), world.next()] == ["b", "a", ""]


def test_a_node_that_was_lost_and_is_back_is_a_new_one(world: World) -> None:
    assert [world.next(), world.next()] == ["a", "b"]
    world.seen = {"a": 1}
    gone, world.rows = world.rows, world.rows[:1]
    assert world.next() == ""
    world.rows = gone
    assert [world.next(), world.next()] == ["b", ""]


def test_an_actor_whose_node_is_not_known_counts_for_none(world: World) -> None:
    world.rows = [{}, {"role": "shard", "index": 0, "started_ms": 1}]
    assert world.next() == ""


def test_a_node_whose_actors_see_a_spare_gets_another_when_the_last_one_is_taken(world: World) -> None:
    world.seen = {"a": 2, "b": 1}
    assert world.next() == ""
    world.start("shard", 0, "a")
    world.seen["a"] = 1
    assert world.next() == ""
    world.start("edge", 0, "a")
    world.seen["a"] = 0
    assert [world.next(), world.next()] == ["a", ""]


def test_a_spare_is_expected_from_when_a_node_needs_one_until_it_is_seen(world: World) -> None:
    world.seen = {"a": 1, "b": 1}
    assert not world.expected
    world.start("shard", 0, "a")
    world.seen["a"] = 0
    assert world.expected
    assert world.next() == "a"
    assert world.expected
    world.seen["a"] = 1
    assert not world.expected


def test_no_spare_is_expected_where_the_last_one_has_not_come_until_one_is_seen(world: World) -> None:
    world.rows = world.rows[:1]
    world.seen = {"a": 0}
    assert world.next() == "a"
    assert world.expected
    world.now_ms += SOON_MS
    assert not world.expected
    world.start("edge", 0, "a")
    assert not world.expected
    assert world.next() == "a"
    world.seen["a"] = 1
    assert not world.expected
    world.start("edge", 0, "a")
    world.seen["a"] = 0
    assert world.expected


def test_what_a_dead_process_said_of_spares_does_not_hide_that_its_successor_took_one(world: World) -> None:
    rows = [{"role": "shard", "index": index, "node_id": "a", "started_ms": index, "spares": spares} for index, spares in enumerate((1, 0))]
    assert world.spares.expected(rows)
