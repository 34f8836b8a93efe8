"""An edge follows the rules that are stored: at its start, after each change, and not when they cannot be used."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from engine.config import Config
from engine.errors import CorruptRecord, StorageUnavailable
from engine.features.rules.core.versions import NOTHING_ASKED, AskedByRules, VersionInfo
from engine.features.rules.rule_book import RuleBook
from engine.features.rules.rules_follower import RulesFollower
from engine.features.rules.rules_store import StoredState
from tests.support.rules_storage import FakeRulesStore
from tests.support.waiting import until

RULES = '[[rule]]\nname = "{}"\nevent = "e"\nrecipients = ["user"]\ntype = "t"\n'


class World:
    """An edge's rules, and storage that an operator changes."""

    def __init__(self, store: FakeRulesStore | None = None, **settings: Any) -> None:
        config = Config(rules_poll_ms=5, **settings)
        self.store = store or FakeRulesStore()
        self.book = RuleBook(config, lambda: 0)
        self.follower = RulesFollower(config, self.store, self.book)

    async def change(self, *names: str, share: float = 1.0, text: str = "", asked: AskedByRules = NOTHING_ASKED) -> None:
        """Store a version with rules of these names and put it in force."""
        stored = self.store.stored
        text = text or "".join(RULES.format(name) for name in names)
        number = stored.state.last + 1
        state = stored.state.stored(VersionInfo(number, 0, "ann", len(names), 0, text, asked), 9)
        if share:
            state = state.staged_to(number, share, "ann", 0)
        assert await self.store.change(stored, state, text) is not None

    @property
    def names(self) -> list[str]:
        return [rule.name for rule in self.book.rules().rules]


async def test_an_edge_starts_with_the_stored_version_and_follows_every_change() -> None:
    world = World()
    await world.change("a")
    await world.follower.catch_up()
    assert world.names == ["a"]
    running = asyncio.ensure_future(world.follower.run())
    await world.change("b", "c")
    await until(lambda: world.names == ["b", "c"])
    await world.change("d", share=0.5)
    await until(lambda: world.book.in_force().staged_version == 3)
    assert (world.names, world.book.in_force().share) == (["b", "c"], 0.5)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_an_event_that_has_begun_keeps_the_version_it_began_with() -> None:
    world = World()
    await world.change("a")
    await world.follower.catch_up()
    begun = world.book.in_force()
    await world.change("b")
    await world.follower.catch_up()
    assert ([rule.name for rule in begun.active.rules], begun.version, world.names) == (["a"], 1, ["b"])
    assert world.book.in_force() is world.book.in_force(), "made once per change"


async def test_an_edge_that_starts_knows_the_conditions_of_versions_before() -> None:
    store = FakeRulesStore()
    world = World(store)
    await world.change("a", asked=AskedByRules(frozenset({"paid"}), activity=True))
    await world.change("b", share=0.0, asked=AskedByRules(frozenset({"never"})))
    await world.change("c")
    world = World(store)
    await world.follower.catch_up()
    found = world.book.in_force()
    assert (world.names, found.events_asked, found.activity_asked) == (["c"], frozenset({"paid"}), True)


async def test_an_edge_goes_on_with_what_it_has_while_storage_is_away() -> None:
    world = World()
    await world.change("a")
    await world.follower.catch_up()
    world.store.away = True
    with pytest.raises(StorageUnavailable):
        await world.follower.catch_up()
    running = asyncio.ensure_future(world.follower.run())
    assert (world.names, world.book.reason()) == (["a"], "")
    world.store.away = False
    await world.change("b")
    await until(lambda: world.names == ["b"])
    running.cancel()


async def test_a_version_that_cannot_be_used_here_is_refused_and_seen_and_the_one_before_stays_in_force() -> None:
    world = World()
    await world.change("a")
    await world.follower.catch_up()
    await world.change(text="[[rule]]\nname = 'of a later release'\n")
    await world.follower.catch_up()
    assert world.names == ["a"]
    assert "version 2" in world.book.reason()
    reads = world.store.reads
    await world.follower.catch_up()
    assert world.store.reads == reads, "it is not parsed again until storage has another state"
    await world.change("c")
    await world.follower.catch_up()
    assert (world.names, world.book.reason()) == (["c"], "")


async def test_a_version_whose_text_is_gone_is_looked_for_again() -> None:
    world = World()
    await world.change("a")
    text = world.store.kept.pop(1)
    await world.follower.catch_up()
    assert "not in storage any more" in world.book.reason()
    assert world.book.unread, "and an edge without rules does not take events for unmatched ones"
    world.store.kept[1] = text
    await world.follower.catch_up()
    assert (world.names, world.book.reason()) == (["a"], "")


async def test_a_state_that_cannot_be_read_leaves_what_is_in_force() -> None:
    class Corrupt(FakeRulesStore):
        corrupt = False

        async def read(self) -> StoredState:
            if self.corrupt:
                raise CorruptRecord("the stored versions of the rules cannot be read")
            return await super().read()

    store = Corrupt()
    world = World(store)
    await world.change("a")
    await world.follower.catch_up()
    await world.change("b")
    store.corrupt = True
    await world.follower.catch_up()
    assert (world.names, "cannot be read" in world.book.reason()) == (["a"], True)
    store.corrupt = False
    await world.follower.catch_up()
    assert (world.names, world.book.reason()) == (["b"], "")


async def test_storage_that_has_lost_its_last_changes_is_followed_back() -> None:
    world = World()
    await world.change("a")
    before, kept = world.store.stored, dict(world.store.kept)
    await world.change("b")
    await world.follower.catch_up()
    world.store.stored, world.store.kept = before, kept
    await world.follower.catch_up()
    assert world.names == ["a"]
