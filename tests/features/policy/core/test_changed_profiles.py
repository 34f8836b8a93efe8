"""Preferences: whether a patch adds to a list that is full. `tests/features/policy/core` tests the effect of patches."""

from __future__ import annotations

from engine.core.model.category import OFF, ON
from engine.core.policy.preferences import PreferencesPatch
from engine.core.policy.profile import UNCHOSEN, Profile
from engine.features.policy.core.changed_profiles import outgrown, patched


def test_a_profile_outgrows_its_limit_only_by_what_adds_to_it() -> None:
    full = Profile(muted_types=("a", "b", "c", "d", "e"))
    assert not outgrown(full, patched(full, PreferencesPatch(zone="Asia/Tokyo", types={"a": UNCHOSEN})), 4)
    assert outgrown(full, patched(full, PreferencesPatch(types={"f": OFF})), 4)
    assert not outgrown(full, patched(full, PreferencesPatch(types={"f": ON})), 4)
