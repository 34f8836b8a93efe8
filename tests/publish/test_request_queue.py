"""The way into the parser: turns, priorities, refusals before any parsing."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from engine.config import Config
from engine.errors import Overloaded
from engine.publish.media_types import Content
from engine.publish.request_queue import RequestQueue
from tests.support.edge_world import edge_world
from tests.support.waiting import until

HIGH = b'[{"user":"u","type":"t","priority":"high"}]'
NORMAL = b'[{"user":"u","type":"t"}]'
LOW = b'[{"user":"u","type":"t","priority":"low"}]'
MUCH = b" " * 40_000
"""Makes any body one that fills a turn of the loop."""


class Shards:
    delay_ms = 0.0

    def __call__(self, tenant: str) -> float:
        return self.delay_ms


class Case:
    """A gate whose clock and shards the test moves."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.shards = Shards()
        self.refused: Counter[str] = Counter()
        self.request_queue = RequestQueue(Config(), lambda: self.now_ms, self.shards, lambda name: self.refused.update([name]))

    async def enter(self, body: bytes, tenant: str = "t") -> None:
        """Returns when it is the request's turn."""
        turn = self.request_queue.enter(body, Content(), tenant)
        if turn is not None:
            await turn

    async def outcome(self, body: bytes, tenant: str = "t") -> str:
        try:
            await self.enter(body, tenant)
        except Overloaded:
            return "refused"
        return "taken"


async def test_requests_of_one_moment_take_turns_of_the_loop_and_high_does_not_wait() -> None:
    case = Case()
    order: list[str] = []

    async def request(name: str, body: bytes) -> None:
        await case.enter(body + MUCH)
        order.append(name)

    tasks = [asyncio.ensure_future(request(f"low{n}", LOW)) for n in range(3)]
    tasks.append(asyncio.ensure_future(request("normal", NORMAL)))
    tasks.append(asyncio.ensure_future(request("high", HIGH)))
    await asyncio.sleep(0)
    assert order == ["low0", "high"]
    assert case.request_queue.waiting == 3
    await asyncio.gather(*tasks)
    assert order == ["low0", "high", "normal", "low1", "low2"]
    assert case.request_queue.waiting == 0
    assert case.request_queue.delay_ms("t") == 0


async def test_between_two_turns_other_work_is_done() -> None:
    case = Case()
    others = 0
    seen: list[int] = []

    def other() -> None:
        nonlocal others
        others += 1
        asyncio.get_running_loop().call_soon(other)

    async def request() -> None:
        await case.enter(NORMAL + MUCH)
        seen.append(others)

    other()
    await asyncio.gather(*(request() for _ in range(5)))
    others = -(10**9)
    assert len(set(seen)) == 5


async def test_small_requests_share_a_turn_and_the_rest_waits_for_the_next() -> None:
    case = Case()
    requests = [asyncio.ensure_future(case.outcome(NORMAL)) for _ in range(100)]
    await asyncio.sleep(0)
    first = 100 - case.request_queue.waiting
    assert 10 < first < 50, "as many as a request of the size of a turn costs"
    await asyncio.gather(*requests)


async def test_each_priority_is_refused_at_its_share_of_the_target() -> None:
    case = Case()
    told = []
    for delay_ms in (0, 250, 400, 500):
        case.shards.delay_ms = delay_ms
        told.append([await case.outcome(body) for body in (LOW, NORMAL, HIGH)])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert told == [["taken"] * 3, ["refused", "taken", "taken"], ["refused", "refused", "taken"], ["refused"] * 3]
    assert case.refused == {"low": 2, "normal": 1, "high": 3}, "what would be refused at any priority is, whatever it has"
    assert not case.request_queue.takes_unread("t")
    assert case.refused["high"] == 3
    with pytest.raises(Overloaded):
        case.request_queue.check_unread("t")
    assert case.refused["high"] == 4


async def test_a_request_is_as_important_as_its_least_important_item() -> None:
    case = Case()
    case.shards.delay_ms = 300
    assert await case.outcome(HIGH[:-1] + b"," + LOW[1:]) == "refused"
    assert await case.outcome(HIGH[:-1] + b"," + HIGH[1:]) == "taken"


async def test_a_late_event_loop_is_a_delay_that_fades() -> None:
    case = Case()
    case.request_queue.tick(360, 260)
    case.request_queue.tick(720, 260)
    assert await case.outcome(LOW) == "refused"
    for now_ms in range(800, 1600, 100):
        case.request_queue.tick(now_ms, 0)
    assert await case.outcome(LOW) == "taken"


async def test_a_single_pause_of_the_process_refuses_nobody() -> None:
    case = Case()
    case.request_queue.tick(2100, 2000)
    assert await case.outcome(LOW) == "taken"
    case.request_queue.tick(2200, 0)
    case.request_queue.tick(4300, 2000)
    assert await case.outcome(LOW) == "taken"


async def test_bytes_that_wait_for_their_turn_are_a_delay() -> None:
    case = Case()
    big = b'[{"user":"u","type":"t","data":"%b"}]' % (b"x" * 900_000)
    tasks = [asyncio.ensure_future(case.outcome(big)) for _ in range(20)]
    assert "refused" in await asyncio.gather(*tasks)


async def test_a_lane_that_is_passed_all_the_time_closes_and_who_has_waited_for_the_target_is_refused() -> None:
    case = Case()
    low = [asyncio.ensure_future(case.outcome(LOW + MUCH)) for _ in range(2)]
    normal = [asyncio.ensure_future(case.outcome(NORMAL + MUCH)) for _ in range(100)]
    await asyncio.sleep(0)
    case.now_ms = 260
    assert await case.outcome(LOW) == "refused"
    assert [task.done() for task in low] == [True, False], "the first had its turn before the others came"
    case.now_ms = 520
    case.request_queue.tick(520, 0)
    assert await low[1] == "refused"
    assert await normal[-1] == "refused"
    assert case.request_queue.waiting == 0


async def test_a_tenant_with_many_requests_waits_for_them_and_is_refused_while_another_has_its_turn_soon() -> None:
    case = Case()
    big = b'[{"user":"u","type":"t","data":"%b"}]' % (b"x" * 900_000)
    flood = [asyncio.ensure_future(case.outcome(big, "flood")) for _ in range(20)]
    await asyncio.sleep(0)
    assert await case.outcome(big, "flood") == "refused"
    order: list[str] = []
    for task in flood:
        task.add_done_callback(lambda task: order.append(task.result()))
    other = asyncio.ensure_future(case.outcome(NORMAL, "other"))
    assert await other == "taken"
    assert order.count("taken") <= 2, "one that had its turn, and one that began before"
    assert "refused" in await asyncio.gather(*flood)
    assert case.request_queue.waiting == 0
    assert case.request_queue.queued_ms == 0


async def test_a_client_that_leaves_gives_its_turn_away() -> None:
    case = Case()
    tasks = [asyncio.ensure_future(case.outcome(NORMAL + MUCH)) for _ in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [result for result in results if result == "taken"] == ["taken"] * 3
    assert case.request_queue.delay_ms("t") == 0


async def test_while_shards_do_not_answer_an_edge_refuses_with_retry_after_and_then_takes_again() -> None:
    # 3 000 high ones are a backlog of 30 s: too long for low, and 10 s from too long for high, whatever stalls this machine meanwhile.
    slow: dict[str, Any] = {"publish_rate_initial_per_s": 100, "publish_delay_target_ms": 40_000, "publish_timeout_ms": 60_000}
    async with edge_world(**slow) as world, world.http() as client:
        for shard in world.shards:
            shard.connected = False
        patience = asyncio.gather(
            *(
                client.post("/v1/notifications", json=[{"user": f"u{n}", "type": "t", "priority": "high"} for n in range(1000)])
                for _ in range(3)
            )
        )
        await until(lambda: len(world.gateway.pending_calls) == 3000)
        refused = await client.post("/v1/notifications", json={"user": "u1", "type": "t", "priority": "low"})
        assert refused.status_code == 429
        assert refused.headers["content-type"] == "application/problem+json"
        assert int(refused.headers["retry-after"]) >= 1
        assert world.gateway.metrics.shed_requests == {"low": 1}
        for shard in world.shards:
            shard.reset()
        assert {answer.status_code for answer in await patience} == {202}
        taken = await client.post("/v1/notifications", json={"user": "u1", "type": "t", "priority": "low"})
        assert taken.status_code == 202
