"""What would become of a message is what does become of it, and asking changes nothing; what became of one is told as far as known."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import example, given, settings
from msgspec.structs import replace

from engine.core.inbox.inbox import InboxLimits
from engine.core.journal.journal_records import page_of
from engine.core.model.category import DIGEST, INBOX, OFF, Category, PolicyTerms
from engine.core.model.constants import HIGH, LOW, NORMAL
from engine.core.model.envelope import Envelope, Merge
from engine.core.policy.profile import Profile, QuietHours
from engine.core.wire import records as wire
from tests.support.policy_world import (
    CAPPED,
    DIGEST_MS,
    HOUR_MS,
    MANDATORY,
    NIGHT,
    NOON,
    ONCE,
    SEVEN_AM,
    TEN_PM,
    WithoutWindows,
    at,
    fire,
    later,
    told,
    wants,
)
from tests.support.shard_world import World, connected_world, of

OPT_IN = PolicyTerms("offers", Category(default=OFF))
KEPT = InboxLimits(messages_max=20, keep_ms=HOUR_MS, pinned_max=2, numbers_max=100)
WORDS = {wire.ACCEPTED: "deliver", wire.SUPPRESSED: "suppress", wire.DEFERRED: "defer", wire.DUPLICATE: "duplicate"}


def post(
    world: World, id: str, type: str = "a", policy_terms: PolicyTerms | None = None, priority: int = NORMAL, **fields: Any
) -> wire.Post:
    body = b'"id":"%b","type":"%b","target":"t:1","data":1' % (id.encode(), type.encode())
    idempotent = fields.pop("idempotent", True)
    envelope = Envelope(id, b"d" * 8, priority, True, body, policy_terms=policy_terms)
    return wire.Post(1, "t:u", idempotent, world.now_ms + 40 * HOUR_MS, replace(envelope, **fields))


def ask(world: World, wanted: wire.Post, at_ms: int = 0) -> wire.Explained:
    (answer,) = of(world.ask(wire.Explain(900, "t:u", at_ms, wanted)), wire.Explained)
    return answer


def do(world: World, wanted: wire.Post) -> wire.Posted:
    world.refs += 1
    (answer,) = of(world.ask(replace(wanted, ref=world.refs)), wire.Posted)
    return answer


def state(world: World) -> Any:
    mailbox = world.core.mailboxes["t:u"]
    return msgspec.to_builtins((page_of(mailbox), mailbox.active_ms, mailbox.weight, sorted(mailbox.hot)), builtin_types=(bytes,))


def codes(answer: wire.Explained) -> list[str]:
    return [code for code, _ in answer.reasons]


def test_each_decision_is_explained_with_its_reasons() -> None:
    world = at(NOON)
    wants(world, Profile(zone="Europe/Berlin", quiet=NIGHT.quiet, muted_types=("promo",), digest_types=("forum.*",)))
    asked = ask(world, post(world, "m"))
    assert (asked.decision, codes(asked), asked.until_ms) == ("deliver", ["allowed", "offline"], 0)
    world.connect(1)
    assert codes(ask(world, post(world, "m"))) == ["allowed"]
    assert ask(world, post(world, "m", "promo")).decision == "suppress"
    asked = ask(world, post(world, "m", "forum.like"))
    assert (asked.decision, codes(asked), asked.until_ms) == ("digest", ["digest"], world.now_ms + DIGEST_MS)
    asked = ask(world, post(world, "m", collapse="k", merge=Merge(500)))
    assert (asked.decision, codes(asked), asked.until_ms) == ("merge", ["window"], world.now_ms + 500)
    asked = ask(world, post(world, "m"), at_ms=TEN_PM + 1)
    assert (asked.decision, codes(asked), asked.until_ms) == ("defer", ["delay", "quiet_hours"], SEVEN_AM)
    asked = ask(world, post(world, "m"), at_ms=TEN_PM - 1)
    assert (asked.decision, codes(asked), asked.until_ms) == ("deliver", ["delay", "allowed"], TEN_PM - 1)
    do(world, post(world, "known"))
    asked = ask(world, post(world, "known"))
    assert (asked.decision, asked.seq) == ("duplicate", 1)
    assert ask(world, post(world, "known", digest=b"e" * 8)).decision == "conflict"
    world.detach(1)
    assert codes(ask(world, post(world, "m", retain=False))) == ["nobody_connected"]


def test_no_window_or_digest_is_promised_without_the_feature() -> None:
    world = WithoutWindows()
    wants(world, Profile(digest_types=("forum.*",)))
    for wanted, reasons in (
        (post(world, "m1", "forum.like"), ["digest", "no_digest", "offline"]),
        (post(world, "m2", collapse="k", merge=Merge(500)), ["allowed", "offline"]),
    ):
        asked = ask(world, wanted)
        assert (asked.decision, codes(asked), asked.until_ms) == ("deliver", reasons, 0)
        assert do(world, wanted).status == wire.ACCEPTED


messages = st.tuples(
    st.sampled_from(["a", "b", "promo.x", "forum.y"]),
    st.sampled_from([None, None, CAPPED, ONCE, MANDATORY, OPT_IN]),
    st.sampled_from([HIGH, NORMAL, NORMAL, LOW]),
    st.sampled_from([None, None, None, Merge(600_000), Merge(600_000, True)]),
    st.sampled_from(["1", "2", "3", "new", "new", "new"]),
    st.integers(0, 8 * HOUR_MS),
)
profiles = st.sampled_from([
    Profile(), NIGHT, Profile(digest_types=("forum.*",), muted_targets=("t:1",)),
    Profile(quiet=(QuietHours(60, 30),), digest_types=("forum.*",)),
    Profile(categories={"touch": OFF, "news": DIGEST, "law": OFF}, on_types=("b",)),
    Profile(categories={"touch": INBOX}, inbox_types=("promo.*",), on_types=("b",)),
])  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(profiles, st.lists(messages, max_size=12), st.booleans())
@example(NIGHT, [("promo.x", None, HIGH, None, "1", 10 * HOUR_MS), ("a", None, NORMAL, None, "1", 0)], False)
def test_what_was_explained_happens_and_asking_changed_nothing(profile: Profile, history: list[Any], connected: bool) -> None:
    world = at(NOON, inbox=KEPT)
    wants(world, profile)
    if connected:
        world.connect(1)
    for number, (type_, policy_terms, priority, merge, id_, pause_ms) in enumerate(history):
        world.now_ms += pause_ms
        world.core.tick(world.now_ms)
        world.settle()
        wanted = post(
            world, f"n{number}" if id_ == "new" else id_, type_, policy_terms, priority, collapse="k" if merge else "", merge=merge
        )
        before = state(world)
        asked = ask(world, wanted)
        assert state(world) == before
        found = do(world, wanted)
        if found.status == wire.MERGED:
            assert asked.decision in ("merge", "digest")
            assert f"window until {asked.until_ms}" == found.detail
        elif asked.decision == "conflict":
            assert found.detail.startswith("the same id")
        elif asked.decision in ("merge", "digest"):
            assert found.status == wire.DUPLICATE, "an id that counts in the window, and has no number of its own"
        elif found.status == wire.DEFERRED and asked.decision == "suppress":
            # Storage remembers it, which the scheduler finds when the edge schedules what the shard puts off.
            assert asked.reasons[-1][1].endswith("a repeat of this id gets the same answer")
        else:
            assert asked.decision == (
                "inbox" if found.detail.startswith("inbox: ") and found.status == wire.ACCEPTED else WORDS[found.status]
            )
            assert (asked.until_ms, asked.seq) == (found.until_ms, found.seq if found.status == wire.DUPLICATE else 0)


# -- What became of a message. -------------------------------------------------------------------------------------------
def traced(world: World, id: str) -> wire.Traced:
    (answer,) = of(world.ask(wire.Trace(901, "t:u", id)), wire.Traced)
    return answer


def events(answer: wire.Traced) -> list[str]:
    return [step.event for step in answer.steps]


def test_of_a_message_nobody_knows_nothing_is_told() -> None:
    assert traced(World(), "m") == wire.Traced(901, "", 0, [])


def test_a_message_is_followed_from_its_acceptance_to_its_acknowledgement() -> None:
    world = World()
    told(world, id="m")
    answer = traced(world, "m")
    assert (answer.state, answer.seq, events(answer)) == ("pending", 1, ["accepted"])
    assert answer.steps[0].at_ms == world.now_ms
    world.now_ms += 5
    world.connect(1)
    answer = traced(world, "m")
    assert (answer.state, events(answer)) == ("sent", ["accepted", "sent"])
    assert (answer.steps[1].at_ms, answer.steps[1].reason) == (world.now_ms, "attempts: 1")
    world.wait(600)
    assert traced(world, "m").steps[1].reason != "attempts: 1"
    world.acknowledge(1, 1)
    answer = traced(world, "m")
    assert (answer.state, [(step.event, step.at_ms) for step in answer.steps]) == ("acknowledged", [("acknowledged", 0)])


def test_what_left_memory_or_is_gone_or_was_refused_is_told_as_such() -> None:
    world = World(offline_max=2)
    told(world, id="m1")
    told(world, id="m2")
    world.checkpoint()
    world.core.mailbox_store.cool(world.core.mailboxes["t:u"])
    assert traced(world, "m1").state == "pending"
    told(world, id="m3")
    assert (traced(world, "m1").state, traced(world, "m3").state) == ("gone", "pending")
    world.connect(1)
    world.nack(1, "m3")
    assert traced(world, "m3").state == "refused"


def test_why_a_message_was_not_delivered_is_told_with_its_time() -> None:
    world = at(TEN_PM)
    wants(world, replace(NIGHT, digest_types=("forum.*",)))
    told(world, id="m1", type="promo.x")
    told(world, id="m2", type="forum.like", ttl_ms=40 * HOUR_MS)
    assert fire(world)
    muted, digested, deferred = (traced(world, id) for id in ("m1", "m2", "late"))
    assert (muted.state, events(muted), muted.steps[0].at_ms) == ("suppressed", ["suppressed"], TEN_PM)
    assert muted.steps[0].reason.startswith("muted_type: ")
    assert (digested.state, events(digested), digested.steps[0].until_ms) == ("merged", ["digested"], TEN_PM + DIGEST_MS)
    assert (deferred.state, events(deferred), deferred.steps[0].until_ms) == ("deferred", ["deferred"], SEVEN_AM)
    world.now_ms = SEVEN_AM
    world.core.fire(
        [wire.Timer("3-abc", "t:u", SEVEN_AM, 5, HOUR_MS, Envelope("late", b"d" * 8, NORMAL, True, b'"id":"late","type":"a"'))], SEVEN_AM
    )
    world.settle()
    deferred = traced(world, "late")
    assert (deferred.state, events(deferred)) == ("pending", ["deferred", "accepted"])


def test_what_is_in_the_inbox_only_is_predicted_and_found_there() -> None:
    world = World(inbox=KEPT)
    wants(world, Profile(inbox_types=("feed.*",)))
    assert ask(world, post(world, "m1", "feed.like")).decision == "inbox"
    told(world, id="m1", type="feed.like")
    found = traced(world, "m1")
    assert (found.state, found.seq, events(found)) == ("inboxed", 1, ["inboxed"])


def test_a_summary_that_was_kept_back_is_found_under_its_own_id() -> None:
    world = connected_world()
    told(world, CAPPED, merge=Merge(300), collapse="k", id="only")
    told(world, CAPPED)
    told(world, CAPPED)
    assert later(world) == []
    assert events(traced(world, "only")) == ["suppressed"]


@pytest.mark.parametrize("id", ["timer:3-abc", ""])
def test_the_engines_own_marks_are_no_messages(id: str) -> None:
    world = World()
    fire(world)
    assert traced(world, id).state == ""
