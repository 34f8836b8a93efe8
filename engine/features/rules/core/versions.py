"""The versions of the rules: which one is in force, which one is tried on a share of the users, and how that changed.

    store      a new version joins; nothing is in force that was not
    stage      a version is in force for a share of the users, another share, or (0) for nobody any more
    activate   a version is in force for everyone; nothing is staged then
    roll back  nothing is staged any more; when nothing was, the version that was in force before is in force again

Version 0 is the rules file, or no rules where there is none. Versions are numbered in their order and never change. At most `versions_max`
are kept: the oldest that are not in use go. Every transition returns a new state; `engine.features.rules.rules_store` stores
it only when nobody else has stored one meanwhile.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Final, Literal

import msgspec
from msgspec import Struct

from engine.errors import Invalid

FILE: Final = 0
"""The version that stands for the rules file."""

CHANGES_MAX: Final = 100

Deed = Literal["stored", "staged", "unstaged", "activated", "rolled back"]


class AskedByRules(Struct, frozen=True):
    """What the conditions of rules refer to, which shards record therefore.

    Attributes:
        events: names, of `unless_event`.
        activity: of users.
    """

    events: frozenset[str] = frozenset()
    activity: bool = False

    def __or__(self, other: AskedByRules) -> AskedByRules:
        return AskedByRules(self.events | other.events, self.activity or other.activity)


NOTHING_ASKED: Final = AskedByRules()


class VersionInfo(Struct, frozen=True):
    """About one version: who stored it and when (ms since the epoch), its size, a digest of its text, and what its conditions refer to."""

    version: int
    at: int
    by: str
    rules: int
    bytes: int
    digest: str
    asked: AskedByRules = NOTHING_ASKED


class RulesChange(Struct, frozen=True):
    """Who changed what; `share` of the users for whom the version is in force since then."""

    at: int
    by: str
    what: Deed
    version: int
    share: float


class VersionState(Struct, frozen=True):
    """Which versions there are and which are in force.

    Attributes:
        active: the version in force.
        staged: the one in force for `share` of the users instead; 0 for none.
        last: the number given last.
        before: the versions that were active before, the newest last.
        versions: those that are kept, ascending.
        changes: the newest first.
    """

    active: int = FILE
    staged: int = 0
    share: float = 0.0
    last: int = 0
    before: tuple[int, ...] = ()
    versions: tuple[VersionInfo, ...] = ()
    changes: tuple[RulesChange, ...] = ()

    def of(self, version: int) -> VersionInfo | None:
        """What is known of a version; None when it is not kept."""
        return next((info for info in self.versions if info.version == version), None)

    @property
    def asked(self) -> AskedByRules:
        """What the conditions refer to of every version that is kept and was in force: what it has scheduled may still wait."""
        in_force = {change.version for change in self.changes if change.share > 0} | {self.active, self.staged, *self.before}
        return reduce(or_, (info.asked for info in self.versions if info.version in in_force), NOTHING_ASKED)

    def stored(self, info: VersionInfo, versions_max: int) -> VersionState:
        """A new version joins; `info.version` is `last + 1`."""
        assert info.version == self.last + 1, "versions are numbered in their order"
        kept = (*self.versions, info)
        for oldest in self.versions:
            if len(kept) <= versions_max:
                break
            if oldest.version not in (self.active, self.staged):
                kept = tuple(one for one in kept if one is not oldest)
        numbers = {FILE, *(one.version for one in kept)}
        state = msgspec.structs.replace(
            self, last=info.version, versions=kept, before=tuple(version for version in self.before if version in numbers)
        )
        return state._changed("stored", info.version, 0.0, info.by, info.at)

    def staged_to(self, version: int, share: float, by: str, at_ms: int) -> VersionState:
        """A version is in force for a share of the users: 0 for none, 1 for all.

        Raises:
            Invalid: there is no such version, or it is in force for everyone.
        """
        if share >= 1:
            return self.activated(version, by, at_ms)
        self._check(version)
        if share <= 0:
            if not version or version != self.staged:
                raise Invalid("it is not staged", "$.version")
            return msgspec.structs.replace(self, staged=0, share=0.0)._changed("unstaged", version, 0.0, by, at_ms)
        if version == self.active:
            raise Invalid("it is in force for everyone; stage another version, or roll back to another one first", "$.version")
        if version == FILE:
            raise Invalid("the file cannot be staged: it may be another one on each machine; store its text as a version", "$.version")
        return msgspec.structs.replace(self, staged=version, share=share)._changed("staged", version, share, by, at_ms)

    def activated(self, version: int, by: str, at_ms: int) -> VersionState:
        """A version is in force for everyone. Raises Invalid when there is no such version."""
        self._check(version)
        before = self.before if version == self.active else (*self.before, self.active)[-CHANGES_MAX:]
        state = msgspec.structs.replace(self, active=version, staged=0, share=0.0, before=before)
        return state._changed("activated", version, 1.0, by, at_ms)

    def rolled_back(self, version: int | None, by: str, at_ms: int) -> VersionState:
        """The newest step is taken back, or a version that is named is in force for everyone again.

        Raises:
            Invalid: there is no such version, or none before.
        """
        if version is None and self.staged:
            return self.staged_to(self.staged, 0.0, by, at_ms)
        if version is None:
            if not self.before:
                raise Invalid("no version was in force before this one", "$.version")
            version = self.before[-1]
        self._check(version)
        latest = max((place for place, earlier in enumerate(self.before) if earlier == version), default=None)
        before = (*self.before, self.active) if latest is None else self.before[:latest]
        if version == self.active:
            before = self.before
        state = msgspec.structs.replace(self, active=version, staged=0, share=0.0, before=before[-CHANGES_MAX:])
        return state._changed("rolled back", version, 1.0, by, at_ms)

    def _check(self, version: int) -> None:
        if version != FILE and self.of(version) is None:
            there = ", ".join(str(info.version) for info in self.versions)
            raise Invalid(f"there is no version {version}; there are 0 (the file){f' and {there}' if there else ''}", "$.version")

    def _changed(self, what: Deed, version: int, share: float, by: str, at_ms: int) -> VersionState:
        return msgspec.structs.replace(self, changes=(RulesChange(at_ms, by, what, version, share), *self.changes)[:CHANGES_MAX])
