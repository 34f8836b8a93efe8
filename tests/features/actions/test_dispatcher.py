"""Actions from the stream to the target: done, tried again, given up, taken over; a target that is away holds up nobody else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from engine.actors.edge import clock, wall_ms
from engine.config import Config
from engine.core.edge.circuit_breaker import BreakerState
from engine.core.model.action import Action, ActorTarget, Target, WebhookTarget
from engine.core.model.constants import NORMAL
from engine.core.model.envelope import Envelope
from engine.core.wire.outcomes import Outcome, OutcomeLog
from engine.core.wire.records import Timer
from engine.errors import ActionFailed, StorageUnavailable
from engine.features.actions import dispatcher as dispatcher_module
from engine.features.actions.dispatcher import Dispatcher
from engine.features.actions.store import ActionStreams, QueuedAction, append_actions
from engine.features.actions.webhooks import Webhooks
from engine.features.dead_letters.store import DeadLetterStream, StoredLetter
from engine.store.keys import ACTION_TARGETS_KEY, action_stream_key
from engine.store.user_entries import drop_user_entries
from tests.support.waiting import until
from tests.support.webhook_target import SECRET, webhook_server

TARGET, OTHER = "ray://shop/carts.touch", "ray://shop/others.touch"
SETTINGS: dict[str, Any] = {
    "action_retry_first_ms": 1, "action_retry_cap_ms": 20, "action_claim_ms": 200, "action_poll_ms": 5, "action_breaker_open_ms": 50,
}  # fmt: skip


class Targets:
    """Calls of targets, by actor; `answers` of the first ones, then all succeed."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []  # (actor, key)
        self.answers: list[ActionFailed] = []
        self.failures: dict[str, ActionFailed] = {}  # by key, of every call
        self.silent: set[str] = set()  # actors that never answer

    async def call(self, target: Target, action: QueuedAction) -> None:
        assert isinstance(target, ActorTarget)
        self.calls.append((target.actor, action.key))
        while target.actor in self.silent:
            await asyncio.sleep(0.005)
        if action.key in self.failures:
            raise self.failures[action.key]
        if self.answers:
            raise self.answers.pop(0)

    def keys(self, actor: str = "carts") -> list[str]:
        return [key for called, key in self.calls if called == actor]


async def act(client: Redis, *numbers: int, target: str = TARGET, user: str = "ann") -> None:
    for number in numbers:
        envelope = Envelope(f"m{number}", b"d" * 8, NORMAL, True, b'"id":"m%d","type":"t"' % number)
        timer = Timer(f"3-{number}", f"acme:{user}", 1000, 0, 60_000, envelope, None, Action(target, f"k{number}"))
        assert await append_actions(client, Config(), [timer]) == ([timer.sid], [])


async def end(running: asyncio.Future[None]) -> None:
    """Cancel it. `asyncio.wait_for` of Python 3.11, in the client of the tests, forgets a cancellation that comes with the answer."""
    while not running.done():
        running.cancel()
        await asyncio.wait([running], timeout=0.1)


@asynccontextmanager
async def dispatching(client: Redis, targets: Targets, name: str = "edge-0", **settings: Any) -> AsyncIterator[Dispatcher]:
    config = Config(**SETTINGS | settings)
    dispatcher = Dispatcher(config, ActionStreams(client, config, name), targets.call, clock, wall_ms)
    running = asyncio.ensure_future(dispatcher.run())
    try:
        yield dispatcher
    finally:
        await end(running)


async def is_empty(client: Redis, target: str = TARGET) -> bool:
    return await client.xlen(action_stream_key(target)) == 0


async def letters(client: Redis) -> list[StoredLetter]:
    return (await DeadLetterStream(client, Config()).page("acme")).letters


async def test_an_action_is_done_once_and_gone(redis_client: Redis) -> None:
    targets = Targets()
    async with dispatching(redis_client, targets):
        await act(redis_client, 1, 2)
        await until(lambda: is_empty(redis_client))
    assert sorted(targets.keys()) == ["k1", "k2"]


async def test_a_failure_that_may_pass_is_tried_again_under_the_same_key(redis_client: Redis) -> None:
    targets = Targets()
    targets.answers = [ActionFailed("busy") for _ in range(3)]
    await act(redis_client, 1)
    async with dispatching(redis_client, targets):
        await until(lambda: is_empty(redis_client))
    assert targets.keys() == ["k1"] * 4
    assert await letters(redis_client) == []


async def test_a_target_that_names_a_pause_gets_it_until_the_action_is_given_up(redis_client: Redis) -> None:
    targets = Targets()
    targets.answers = [ActionFailed("answered 429", retry_after_s=100)]
    began_ms = clock()
    await act(redis_client, 1)
    async with dispatching(redis_client, targets, action_give_up_s=1):
        await until(lambda: is_empty(redis_client))
    assert clock() - began_ms > 900
    assert targets.keys() == ["k1", "k1"]
    assert await letters(redis_client) == []


@pytest.mark.parametrize(("count", "pause_s"), [(3, 100), (8, 0)])
async def test_actions_between_two_tries_hold_up_no_other(redis_client: Redis, count: int, pause_s: int) -> None:
    """Some that wait for long, or as many as open the breaker: they may fail for what they contain, or for whom they are."""
    targets = Targets()
    targets.failures = {f"k{number}": ActionFailed("answered 429", retry_after_s=pause_s) for number in range(count)}
    await act(redis_client, *range(count))
    async with dispatching(redis_client, targets, action_parallel=count, action_retry_cap_ms=5) as dispatcher:
        await until(lambda: dispatcher.figures().get(TARGET) and dispatcher.figures()[TARGET].outcomes["failed"] >= count)
        await act(redis_client, 20, 21)
        await until(lambda: {"k20", "k21"} <= set(targets.keys()))
        await until(lambda: redis_client.xlen(action_stream_key(TARGET)), holds=lambda left: left == count)


async def test_what_became_of_actions_is_counted_by_target(redis_client: Redis) -> None:
    targets = Targets()
    targets.answers = [ActionFailed("busy"), ActionFailed("answered 410", final=True)]
    await act(redis_client, 1)
    async with dispatching(redis_client, targets) as dispatcher:
        await until(lambda: is_empty(redis_client))
        await act(redis_client, 2)
        counted = {"failed": 2, "given_up": 1, "done": 1}
        await until(lambda: dispatcher.figures()[TARGET], holds=lambda found: found == (counted, 0, BreakerState.CLOSED))


async def test_what_is_refused_for_good_is_a_dead_letter_with_the_reason(redis_client: Redis) -> None:
    targets = Targets()
    targets.answers = [ActionFailed("busy"), ActionFailed("answered 410", final=True)]
    await act(redis_client, 1)
    async with dispatching(redis_client, targets):
        await until(lambda: is_empty(redis_client))
    (letter,) = await letters(redis_client)
    assert (letter.reason, letter.attempts, letter.action, letter.key) == ("refused: answered 410", 2, TARGET, "k1")


async def test_a_failure_that_no_target_tells_is_a_dead_letter_after_one_try(redis_client: Redis, caplog: pytest.LogCaptureFixture) -> None:
    targets = Targets()
    targets.answers = [KeyError("a defect")]  # type: ignore[list-item]
    await act(redis_client, 1, 2)
    async with dispatching(redis_client, targets) as dispatcher:
        await until(lambda: is_empty(redis_client))
        await until(lambda: dispatcher.figures()[TARGET].outcomes, holds=lambda found: found == {"failed": 1, "given_up": 1, "done": 1})
    (letter,) = await letters(redis_client)
    assert (letter.reason, letter.attempts) == ("refused: KeyError: 'a defect'", 1)
    assert len(targets.calls) == 2
    assert "could not be called" in caplog.text


async def test_a_target_without_actions_is_forgotten_until_the_next(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher_module, "_FORGET_MS", 50)
    monkeypatch.setattr(dispatcher_module, "_TARGETS_MS", 20)
    targets = Targets()
    await act(redis_client, 1)
    async with dispatching(redis_client, targets) as one, dispatching(redis_client, targets, "edge-1") as other:
        await until(lambda: len(targets.calls) == 1)
        await until(lambda: redis_client.exists(ACTION_TARGETS_KEY), holds=lambda there: not there)
        await until(lambda: not one.breakers() and not other.breakers())
        assert not await redis_client.exists(action_stream_key(TARGET))
        assert sum(found.outcomes["done"] for edge in (one, other) for found in edge.figures().values()) == 1  # a counter never falls
        await act(redis_client, 2)
        await until(lambda: targets.keys() == ["k1", "k2"])
        await until(lambda: is_empty(redis_client))


async def test_what_fails_for_too_long_is_given_up_but_never_without_a_try(redis_client: Redis) -> None:
    targets = Targets()
    targets.answers = [ActionFailed("busy")] * 10_000
    await act(redis_client, 1)
    async with dispatching(redis_client, targets, action_give_up_s=1, breaker_error_ratio=1.0, action_breaker_calls_min=100_000):
        await until(lambda: is_empty(redis_client))
    (letter,) = await letters(redis_client)
    assert letter.reason == "given up after 1 s: busy"
    assert letter.attempts == len(targets.calls) > 1
    targets.answers.clear()
    await act(redis_client, 2)
    await asyncio.sleep(1.1)  # as after an outage: it is older than `action_give_up_s` when it is read
    async with dispatching(redis_client, targets, action_give_up_s=1):
        await until(lambda: is_empty(redis_client))
    assert len(await letters(redis_client)) == 1


async def test_an_action_that_the_engine_holds_up_is_not_given_up(redis_client: Redis) -> None:
    targets = Targets()
    targets.answers = [ActionFailed("no shard", own=True) for _ in range(3)]
    await act(redis_client, 1)
    await asyncio.sleep(1.1)  # as after an outage: it is older than `action_give_up_s` when it is read
    async with dispatching(redis_client, targets, action_give_up_s=1):
        await until(lambda: is_empty(redis_client))
    assert targets.keys() == ["k1"] * 4
    assert await letters(redis_client) == []


async def test_a_call_without_an_answer_ends_in_time(redis_client: Redis) -> None:
    targets = Targets()
    targets.silent.add("carts")
    await act(redis_client, 1)
    async with dispatching(redis_client, targets, action_timeout_ms=20):
        await until(lambda: len(targets.calls) > 1)
        targets.silent.clear()
        await until(lambda: is_empty(redis_client))


async def test_a_dispatcher_that_dies_in_a_call_is_followed_by_a_call_with_the_same_key(redis_client: Redis) -> None:
    targets = Targets()
    targets.silent.add("carts")
    await act(redis_client, 1)
    async with dispatching(redis_client, targets):
        await until(lambda: targets.keys() == ["k1"])
    targets.silent.clear()
    assert not await is_empty(redis_client)
    async with dispatching(redis_client, targets):  # its next process, at once
        await until(lambda: is_empty(redis_client))
    assert targets.keys() == ["k1", "k1"]


async def test_another_edge_takes_over_what_a_dead_one_had(redis_client: Redis) -> None:
    targets = Targets()
    targets.silent.add("carts")
    await act(redis_client, 1, 2)
    async with dispatching(redis_client, targets, "edge-1"):
        async with dispatching(redis_client, targets, "edge-0"):
            await until(lambda: len(targets.calls) == 2)
        targets.silent.clear()
        await until(lambda: is_empty(redis_client))
    assert set(targets.keys()) == {"k1", "k2"}


async def test_lost_actions_are_claimed_once_a_busy_edge_has_room(redis_client: Redis) -> None:
    targets, now_ms = Targets(), [0]
    config = Config(**SETTINGS | {"action_parallel": 1})
    await act(redis_client, 1)
    await ActionStreams(redis_client, config, "edge-0").read(TARGET, 1)  # and it dies
    await act(redis_client, 2, 3)
    dispatcher = Dispatcher(config, ActionStreams(redis_client, config, "edge-1"), targets.call, lambda: now_ms[0], wall_ms)
    targets.silent.add("carts")
    await dispatcher.turn()
    await dispatcher.turn()
    await until(lambda: targets.keys() == ["k2"])
    await asyncio.sleep(config.action_claim_ms / 1000)
    now_ms[0] = config.action_claim_ms
    await dispatcher.turn()
    targets.silent.clear()
    await until(lambda: not dispatcher.figures()[TARGET].held)
    await dispatcher.turn()
    await until(lambda: dispatcher.figures()[TARGET].outcomes["done"] == 2)
    assert targets.keys() == ["k2", "k1"], "before those that are new"


async def test_an_edge_that_lives_keeps_what_it_has_however_long_it_takes(redis_client: Redis) -> None:
    targets = Targets()
    targets.silent.add("carts")
    await act(redis_client, 1)
    async with dispatching(redis_client, targets, "edge-0"):
        await until(lambda: len(targets.calls) == 1)
        async with dispatching(redis_client, Targets(), "edge-1") as second:
            held_ms = clock()
            await until(lambda: clock() - held_ms > 3 * SETTINGS["action_claim_ms"])
            assert second.breakers() == {TARGET: BreakerState.CLOSED}
        targets.silent.clear()
        await until(lambda: is_empty(redis_client))
    assert targets.keys() == ["k1"]


async def test_a_target_that_is_away_opens_its_breaker_and_is_probed_and_others_are_not_held_up(redis_client: Redis) -> None:
    targets = Targets()
    targets.answers = [ActionFailed("away")] * 1000
    await act(redis_client, *range(1, 21))
    async with dispatching(redis_client, targets) as dispatcher:
        await until(lambda: dispatcher.breakers().get(TARGET) is BreakerState.OPEN)
        assert dispatcher.reason() == "targets of actions that do not answer: 1"
        tried = len(targets.calls)
        assert tried < 100, "a breaker that opens spares the target"
        await until(lambda: len(targets.calls) > tried)  # half-open: a probe
        targets.answers.clear()
        await act(redis_client, 50, target=OTHER)
        await until(lambda: is_empty(redis_client, OTHER))
        await until(lambda: is_empty(redis_client))
        assert dispatcher.breakers()[TARGET] is BreakerState.CLOSED
        assert dispatcher.reason() == ""
    assert {f"k{number}" for number in range(1, 21)} == set(targets.keys())
    assert await letters(redis_client) == []


async def test_a_slow_target_has_a_bounded_number_of_calls_and_holds_up_nobody(redis_client: Redis) -> None:
    targets = Targets()
    targets.silent.add("carts")
    await act(redis_client, *range(1, 21))
    async with dispatching(redis_client, targets, action_parallel=3):
        await act(redis_client, 50, target=OTHER)
        await until(lambda: is_empty(redis_client, OTHER))
        await until(lambda: len(targets.keys()) >= 3)
        assert len(targets.keys()) == 3


async def test_an_action_of_an_erased_user_is_forgotten(redis_client: Redis) -> None:
    targets = Targets()
    targets.answers = [ActionFailed("busy")] * 100_000
    await act(redis_client, 1)
    async with dispatching(redis_client, targets, breaker_error_ratio=1.0, action_breaker_calls_min=100_000):
        await until(lambda: len(targets.calls) > 2)
        await drop_user_entries(redis_client, "acme:ann")
        calls = [-1]

        def quiet() -> bool:
            calls.append(len(targets.calls))
            return calls[-1] == calls[-2]

        await until(quiet)
    assert await letters(redis_client) == []


async def test_a_done_action_is_not_called_again_because_storage_was_away(redis_client: Redis) -> None:
    targets = Targets()
    config = Config(**SETTINGS)

    class Flaky(ActionStreams):
        failures = 5

        async def done(self, action: QueuedAction) -> None:
            Flaky.failures -= 1
            if Flaky.failures >= 0:
                raise StorageUnavailable("away")
            await super().done(action)

        async def targets(self) -> set[str]:
            if time.monotonic() < away_until:
                raise StorageUnavailable("away")
            return await super().targets()

    away_until = time.monotonic() + 0.05
    await act(redis_client, 1)
    running = asyncio.ensure_future(Dispatcher(config, Flaky(redis_client, config, "edge-0"), targets.call, clock, wall_ms).run())
    try:
        await until(lambda: is_empty(redis_client))
    finally:
        await end(running)
    assert targets.keys() == ["k1"]


async def test_a_webhook_that_was_away_gets_its_action_verified_by_its_signature(redis_client: Redis) -> None:
    config = Config(webhook_hosts=("127.0.0.1",), webhook_networks=("127.0.0.0/8",), webhook_secret=SECRET, **SETTINGS)
    async with webhook_server() as server:
        server.statuses = [503, 500]
        webhooks = Webhooks(config, wall_ms)

        async def call(target: ActorTarget | WebhookTarget, action: QueuedAction) -> None:
            assert isinstance(target, WebhookTarget)
            await webhooks.call(target, action)

        outcomes = OutcomeLog()
        await act(redis_client, 1, target=server.url())
        streams = ActionStreams(redis_client, config, "edge-0")
        running = asyncio.ensure_future(Dispatcher(config, streams, call, clock, wall_ms, outcomes).run())
        try:
            await until(lambda: is_empty(redis_client, server.url()))
        finally:
            await end(running)
        assert [received.headers["webhook-id"] for received in server.received] == ["k1"] * 3
        assert all(received.verified(SECRET) for received in server.received)
        (outcome,) = outcomes.take(9)
        assert isinstance(outcome, Outcome)
        assert f"{outcome.reason}/hook" == server.url()  # users read it, and a path may be a secret
