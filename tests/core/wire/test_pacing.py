"""Links share a budget: intervals depend on the CPU that all of them take, and on no number of peers."""

from __future__ import annotations

import msgspec
import pytest

from engine.core.wire.link import Caller, LinkLimits
from engine.core.wire.pacing import CallBudget
from engine.core.wire.records import Detach

SHARE = 0.35
RAY = LinkLimits(
    pacing_ms=1,
    pacing_max_ms=4,
    pacing_records=64,
    lazy_pacing_ms=20,
    call_ms=0.8,
    budget_pacing_max_ms=50,
    park_ms=1000,
    timeout_ms=3000,
    inflight_max=8,
    batch_bytes_max=1 << 20,
    queue_bytes_max=1 << 20,
)
SOCKET = msgspec.structs.replace(RAY, call_ms=0.05, budget_pacing_max_ms=4)


def share_taken(limits: LinkLimits, peers: int, every_ms: float, for_ms: int = 4000) -> float:
    """The share of a core that the calls of so many links take, over the last half, when each gets a record that often.

    What is called is answered at once, so that links have calls to make.
    """
    budget = CallBudget(SHARE)
    links = [Caller(f"edge-0/{number}", limits, 0, budget) for number in range(peers)]
    due = [every_ms * number / peers for number in range(peers)]
    taken_ms = 0.0
    for now_ms in range(for_ms):
        for number, link in enumerate(links):
            if due[number] <= now_ms:
                due[number] += every_ms
                link.outbox.push([Detach(1, 0)], now_ms)
            while calls := link.calls(now_ms):
                for seq, batch in calls:
                    taken_ms += limits.call_ms * (now_ms >= for_ms / 2)
                    answer = seq.to_bytes(8, "big") + msgspec.msgpack.encode([])
                    if len(batch) > 1 or seq == 0:
                        link.reply(seq, answer, now_ms)
    return taken_ms / (for_ms / 2)


def test_without_load_no_link_waits_longer_however_many_there_are() -> None:
    budget = CallBudget(SHARE)
    for now_ms in range(0, 10_000, 10):
        budget.spend(0.8, now_ms)  # 8 % of a core
    assert budget.factor == 1
    assert RAY.interval_ms(1, budget.factor) == SOCKET.interval_ms(1, budget.factor) == 1


@pytest.mark.parametrize("cost", [2.0, 10.0, 30.0])
def test_intervals_grow_until_links_that_always_have_records_keep_to_the_share(cost: float) -> None:
    """`cost` is the share of a core that they would take at their shortest interval, 1 ms."""
    budget = CallBudget(SHARE)
    now_ms = last_ms = 0.0
    spent: list[tuple[float, float]] = []
    while now_ms < 5000:
        now_ms += RAY.interval_ms(1, budget.factor)
        budget.spend(cost, now_ms)
        spent.append((now_ms, cost))
        last_ms = now_ms
    late = [cost_ms for at_ms, cost_ms in spent if at_ms > last_ms - 2000]
    bound = cost / RAY.budget_pacing_max_ms
    assert sum(late) / 2000 == pytest.approx(max(SHARE, bound), rel=0.2)


def test_the_interval_of_a_carrier_is_bounded_whatever_the_load() -> None:
    budget = CallBudget(SHARE)
    for now_ms in range(5000):
        budget.spend(100, now_ms)
    assert RAY.interval_ms(1, budget.factor) == 50
    assert SOCKET.interval_ms(1, budget.factor) == 4


def test_when_the_load_ends_so_does_the_waiting() -> None:
    budget = CallBudget(SHARE)
    for now_ms in range(5000):
        budget.spend(100, now_ms)
    for now_ms in range(5000, 5500, 10):
        budget.spend(0.05, now_ms)
    assert budget.factor == 1


def test_links_share_one_budget() -> None:
    assert share_taken(RAY, 1, 1.0) > SHARE / 2
    few, many = share_taken(RAY, 8, 1.0), share_taken(RAY, 16, 1.0)
    assert few == pytest.approx(many, rel=0.3)
