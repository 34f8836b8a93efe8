"""The sample of events for dry runs is bounded whatever comes, and costs no event anything."""

from __future__ import annotations

from engine.config import Config
from engine.features.rules.core.rules import RulesOutcome, Skipped
from engine.features.rules.core.staging import AppliedRules
from engine.features.rules.core.toml_loader import parse_rules
from engine.features.rules.event_sample import EventSample
from tests.support.rules_storage import FakeSampleStore


async def test_a_second_holds_so_many_events_and_not_all_of_one_tenant() -> None:
    store = FakeSampleStore()
    sample = EventSample(Config(recorded_events_per_s=5, recorded_events_of_tenant_per_s=2, recorded_event_bytes_max=10), store)
    for number in range(9):
        sample.add("busy", f"b{number}", number, b"{}")
    for tenant in ("t1", "t2", "t3", "t4"):
        sample.add(tenant, "e", 9, b"{}")
    sample.add("t1", "large", 9, b"x" * 11)
    await sample.flush()
    assert [(event.tenant, event.delivery) for event in store.events] == [
        ("busy", "b0"),
        ("busy", "b1"),
        ("t1", "e"),
        ("t2", "e"),
        ("t3", "e"),
    ]
    none = EventSample(Config(recorded_events_per_s=0), store)
    none.add("t", "e", 1, b"{}")
    await none.flush()
    assert len(store.events) == 5
    sample.add("busy", "next second", 10, b"{}")
    await sample.flush()
    assert store.events[-1].delivery == "next second"


async def test_what_storage_does_not_take_is_dropped() -> None:
    store = FakeSampleStore()
    sample = EventSample(Config(), store)
    store.away = True
    sample.add("t", "lost", 1, b"{}")
    await sample.flush()
    store.away = False
    await sample.flush()
    assert store.events == []


def test_what_rules_made_is_counted_by_rule() -> None:
    rules = parse_rules('[[rule]]\nname = "r"\nevent = "e"\ntype = "t"\nrecipients = ["users[]"]\nnotify_self = true\n', "x")
    sample = EventSample(Config(), FakeSampleStore())
    outcome = rules.apply("e", {"users": ["a", "b", ""]}, "d")
    for fresh in (True, False):  # the second one is a repeat
        applied = [AppliedRules(1, rules, outcome), AppliedRules(2, rules, RulesOutcome(["r"], [], []))]
        sample.count(applied, [fresh, fresh])  # staged: it is in two versions
    sample.count([AppliedRules(1, rules, RulesOutcome([], [], [Skipped("other", "", "why")]))], [])
    assert sample.counts == {"r": [2, 2, 2], "other": [0, 0, 1]}
