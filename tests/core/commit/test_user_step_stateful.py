"""Preferences over random histories of a whole shard: devices that change them at once, messages, crashes between append and commit,
refused groups, pages and evictions. The algorithm of RFC 7396 says what the profile is, and a table what becomes of a message."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.core.commit.group import Group
from engine.core.inbox.inbox import InboxLimits
from engine.core.journal.journal_records import Decided, Profiled, StoredMessage
from engine.core.model.category import DIGEST, INBOX, OFF, ON, Category, PolicyTerms
from engine.core.model.defined_categories import DefinedCategories
from engine.core.policy.profile import NO_PROFILE, Profile
from engine.core.wire.records import OK, ChangeProfile, ProfileIs, SetProfile
from engine.features.policy.core.preferences_json import parse_patch, patch_decoder, preferences_of
from engine.features.policy.core.profile_json import ProfileLimits
from engine.features.policy.time_zones import zone
from engine.features.windows.core.aggregation_window import Counted
from tests.support.merge_patch import DEFAULTS, merge_patch
from tests.support.shard_world import World, of

CATEGORIES = {
    "social": Category(),
    "news": Category(default=OFF),
    "weekly": Category(default=DIGEST),
    "billing": Category(user_may=1 << ON | 1 << DIGEST),
    "feed": Category(default=INBOX),
    "law": Category(mandatory=True, user_may=1 << ON),
}
EVERYTHING = "on inbox digest off"
MAY = {"social": EVERYTHING, "news": EVERYTHING, "weekly": EVERYTHING, "billing": "on digest", "feed": EVERYTHING, "law": "on"}
DEFAULT = {"social": "on", "news": "off", "weekly": "digest", "billing": "on", "feed": "inbox", "law": "on"}
TYPES = ("a.x", "a.y", "b")
PATTERNS = ("a.x", "a.*", "b")
USERS = ("ann", "bob")
LIMITS = ProfileLimits(20, 40)


def expected(preferences: dict[str, Any], category: str, type_: str) -> str:
    """What becomes of a message, from the words of PROTOCOL.md."""
    if category == "law":
        return "on"
    may = MAY[category].split()
    by_type = preferences["types"].get(type_) or preferences["types"].get(f"{type_[0]}.*" if "." in type_ else "", "")
    by_category = preferences["categories"].get(category, "")
    if "off" in may and "off" in (by_type, by_category):
        return "off"
    return next(choice for choice in (by_type, by_category, DEFAULT[category]) if choice in may)


CHOICE = st.sampled_from(EVERYTHING.split())
MEMBERS = {
    "categories": st.dictionaries(st.sampled_from(["social", "news", "weekly", "feed"]), CHOICE | st.none(), min_size=1, max_size=3)
    | st.just({"billing": "digest"})
    | st.none(),
    "types": st.dictionaries(st.sampled_from(PATTERNS), CHOICE | st.none(), min_size=1, max_size=3) | st.none(),
}
PATCHES = st.fixed_dictionaries(MEMBERS) | st.fixed_dictionaries(
    {}, optional={"zone": st.sampled_from([None, "UTC", "Asia/Tokyo"]), **MEMBERS}
)


class PreferencesMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.world = World(inbox=InboxLimits(messages_max=1000, keep_ms=10**9, pinned_max=2, numbers_max=10_000))
        self.journal: dict[str, dict[str, Any]] = {f"t:{user}": dict(DEFAULTS) for user in USERS}
        self.levels = dict.fromkeys(self.journal, "")
        self.asked: dict[int, tuple[str, dict[str, Any] | str]] = {}  # in the order of asking; a text is a level that is set
        self.posts: dict[str, tuple[str, str, str]] = {}

    @rule(user=st.sampled_from(USERS), bodies=st.lists(PATCHES, min_size=1, max_size=3))
    def devices_change_them_at_once(self, user: str, bodies: list[dict[str, Any]]) -> None:
        for body in bodies:
            self.world.refs += 1
            patch = parse_patch(patch_decoder.decode(json.dumps(body)), CATEGORIES, zone, LIMITS)
            self.asked[self.world.refs] = (f"t:{user}", body)
            self.world.tell(ChangeProfile(self.world.refs, f"t:{user}", patch, LIMITS.entries_max))

    @rule(user=st.sampled_from(USERS), level=st.sampled_from(["vip", "low"]))
    def the_application_sets_the_rest(self, user: str, level: str) -> None:
        self.world.refs += 1
        self.asked[self.world.refs] = (f"t:{user}", level)
        self.world.tell(SetProfile(self.world.refs, f"t:{user}", Profile(level=level), keep_categories=True))

    @rule(user=st.sampled_from(USERS), at_once=st.booleans())
    def publish_one_of_each(self, user: str, at_once: bool) -> None:
        if not at_once:
            self.work()
        for category, type_ in product(CATEGORIES, TYPES):
            id = f"m{len(self.posts)}"
            self.posts[id] = (f"t:{user}", category, type_)
            terms = PolicyTerms(category, CATEGORIES[category])
            more = b',"type":"%b"' % type_.encode()
            self.world.post(user, id, ttl_ms=2 * self.world.config.digest_ms, policy_terms=terms, more=more)

    @rule()
    def work(self) -> None:
        while self.world.fetch() or self.commit():
            pass
        self.answered()

    def commit(self, *, only_append: bool = False) -> bool:
        return self.world.commit(self.check, only_append=only_append)

    def check(self, group: Group) -> None:
        """The group is in the journal now: its messages were decided by the profiles of before, and its changes hold from now on."""
        for record in group.records:
            assert isinstance(record, StoredMessage | Decided | Counted)
            if isinstance(record, Counted):
                id, found = record.item.envelope.id, "digest"
            elif isinstance(record, StoredMessage):
                id, found = record.envelope.id, "inbox" if record.inbox_only else "on"
            else:
                id, found = record.entry.id, {"suppressed": "off", "digested": "digest", "inboxed": "inbox"}[record.entry.event]
            key, category, type_ = self.posts[id]
            assert found == expected(self.journal[key], category, type_), (record, self.journal[key])
        for note in group.riders.notes:
            assert isinstance(note.done, ProfileIs)
            assert isinstance(note.record, Profiled)
            key, asked = self.asked.pop(note.done.ref)
            self.apply(key, asked)
            self.compare(note.record.profile, key)

    def apply(self, key: str, asked: dict[str, Any] | str) -> None:
        before = self.journal[key]
        if isinstance(asked, str):
            self.levels[key] = asked
            self.journal[key] = {
                **DEFAULTS,
                **{name: before[name] for name in ("categories", "channels", "quiet_categories", "mail_digest")},
            }
        else:
            self.journal[key] = {**DEFAULTS, **merge_patch(before, asked)}

    def compare(self, profile: Profile | None, key: str) -> None:
        found = preferences_of(profile or NO_PROFILE, DefinedCategories(categories=CATEGORIES))
        assert {name: found[name] for name in DEFAULTS} == self.journal[key]
        assert (profile or NO_PROFILE).level == self.levels[key]

    def answered(self) -> None:
        for answer in of(self.world.said(), ProfileIs):
            if answer.status == OK:
                assert answer.ref not in self.asked, "answered before it was in the journal"
            self.asked.pop(answer.ref, None)

    @rule()
    def storage_refuses_a_group(self) -> None:
        self.world.fetch()
        if self.world.core.take_group(self.world.now_ms) is not None:
            self.world.core.group_refused()
            self.world.core.storage_back()
        self.answered()

    @rule(written=st.sampled_from(["nothing", "journal", "checkpoint"]))
    def crash(self, written: str) -> None:
        self.world.fetch()
        if written == "journal":
            self.commit(only_append=True)
        elif written == "checkpoint":
            self.world.checkpoint(meanwhile=self.commit)
        self.world.crash()
        self.asked.clear()  # those of before the crash are not answered: devices repeat them

    @rule(full=st.booleans())
    def checkpoint_and_evict(self, full: bool) -> None:
        self.world.checkpoint(full=full, meanwhile=self.commit)
        self.world.now_ms += 60_000
        self.world.core.evict(self.world.now_ms)

    @precondition(lambda self: not self.asked)
    @rule()
    def look(self) -> None:
        for key, mailbox in self.world.core.mailboxes.items():
            self.compare(mailbox.user_state.profile if mailbox.user_state else None, key)


TestPreferences = PreferencesMachine.TestCase
TestPreferences.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
