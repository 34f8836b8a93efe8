"""The versions of the rules: numbered, staged, put in force, rolled back, and bounded."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import Invalid
from engine.features.rules.core.versions import CHANGES_MAX, FILE, AskedByRules, VersionInfo, VersionState


def with_versions(count: int, versions_max: int = 50) -> VersionState:
    state = VersionState()
    for number in range(1, count + 1):
        state = state.stored(VersionInfo(number, number, "ann", 1, 1, f"d{number}"), versions_max)
    return state


def steps(state: VersionState) -> list[tuple[str, int, float]]:
    return [(change.what, change.version, change.share) for change in reversed(state.changes)]


def test_what_is_stored_is_not_in_force_until_it_is_staged_or_activated() -> None:
    state = with_versions(2)
    assert (state.active, state.staged, state.last) == (FILE, 0, 2)
    state = state.activated(1, "bob", 5).staged_to(2, 0.1, "bob", 6).staged_to(2, 0.5, "cem", 7)
    assert (state.active, state.staged, state.share) == (1, 2, 0.5)
    state = state.staged_to(2, 1, "cem", 8)
    assert (state.active, state.staged, state.share) == (2, 0, 0.0)
    assert steps(state)[2:] == [("activated", 1, 1.0), ("staged", 2, 0.1), ("staged", 2, 0.5), ("activated", 2, 1.0)]
    assert (state.changes[0].by, state.changes[0].at) == ("cem", 8)


def test_rolling_back_first_ends_the_staging_then_goes_back_version_by_version_to_the_file() -> None:
    state = with_versions(3).activated(1, "a", 1).activated(2, "a", 2).staged_to(3, 0.2, "a", 3)
    found = []
    for _ in range(3):
        state = state.rolled_back(None, "a", 4)
        found.append((state.active, state.staged))
    assert found == [(2, 0), (1, 0), (FILE, 0)]
    with pytest.raises(Invalid, match="no version was in force before"):
        state.rolled_back(None, "a", 5)


def test_rolling_back_to_a_version_forgets_those_that_came_after_it() -> None:
    state = with_versions(4).activated(1, "a", 1).activated(2, "a", 2).activated(3, "a", 3).rolled_back(1, "a", 4)
    assert (state.active, state.before) == (1, (FILE,))
    state = state.rolled_back(4, "a", 5)
    assert (state.active, state.before) == (4, (FILE, 1))


def test_a_kept_version_asks_for_its_events_however_many_changes_follow() -> None:
    asking = VersionInfo(1, 1, "ann", 1, 1, "d1", AskedByRules(frozenset({"paid"})))
    state = VersionState().stored(asking, 50).activated(1, "a", 1)
    state = state.stored(VersionInfo(2, 2, "ann", 1, 1, "d2"), 50).activated(2, "a", 2)
    for _ in range(CHANGES_MAX):
        state = state.stored(VersionInfo(state.last + 1, 3, "ann", 1, 1, "d"), 500)
    assert state.asked.events == {"paid"}


@pytest.mark.parametrize(
    ("version", "share", "reason"),
    [
        (9, 0.5, "there is no version 9; there are 0"),
        (9, 1, "no version 9"),
        (1, 0.5, "in force for everyone"),
        (2, 0, "not staged"),
        (0, 0, "not staged"),
        (0, 0.5, "file"),
    ],
)
def test_what_makes_no_sense_is_refused(version: int, share: float, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        with_versions(2).activated(1, "a", 1).staged_to(version, share, "a", 2)


def test_the_oldest_versions_that_are_not_in_use_make_room() -> None:
    state = with_versions(3, 3).activated(1, "a", 1).activated(2, "a", 2).staged_to(1, 0.5, "a", 3)
    state = state.stored(VersionInfo(4, 4, "a", 1, 1, "d4"), 3)
    assert [info.version for info in state.versions] == [1, 2, 4]
    assert state.before == (FILE, 1)
    state = state.staged_to(1, 0, "a", 5).stored(VersionInfo(5, 5, "a", 1, 1, "d5"), 3)
    assert ([info.version for info in state.versions], state.before) == ([2, 4, 5], (FILE,))


actions = st.tuples(
    st.sampled_from(["store", "stage", "activate", "back", "back to"]), st.integers(0, 12), st.sampled_from([0, 0.1, 0.9, 1])
)


@given(st.lists(actions, max_size=40))
def test_whatever_operators_do_the_state_is_whole(history: list[tuple[str, int, float]]) -> None:
    state = VersionState()
    for at_ms, (what, version, share) in enumerate(history):
        try:
            if what == "store":
                state = state.stored(VersionInfo(state.last + 1, at_ms, "a", 1, 1, "d"), 4)
            elif what == "stage":
                state = state.staged_to(version, share, "a", at_ms)
            elif what == "activate":
                state = state.activated(version, "a", at_ms)
            else:
                state = state.rolled_back(None if what == "back" else version, "a", at_ms)
        except Invalid:
            continue
        kept = {FILE, *(info.version for info in state.versions)}
        assert len(kept) <= 5
        assert {state.active, state.staged, *state.before} <= kept
        assert (state.staged == 0) == (state.share == 0)
        assert state.staged != state.active or state.staged == 0
        assert len(state.changes) <= CHANGES_MAX
        assert msgspec.json.decode(msgspec.json.encode(state), type=VersionState) == state
