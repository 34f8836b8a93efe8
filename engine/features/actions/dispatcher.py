"""Carries out the actions that fired, on every edge: reads them from the streams of their targets, calls, retries, gives up.

    timer fires at the shard of the user --conditions hold--> stream of the target (`engine.features.actions.store`), then the timer is done
    stream --read by one edge--> held --call--> done            the entry is deleted
                                      --failed, may pass------> held, tried again after 100 ms, 200 ms ... 5 s, with jitter
                                      --breaker is open-------> held, without a try
                                      --refused for good-----> dead letter, with the reason
                                      --failed, `action_give_up_s` after it fired--> likewise, unless the engine itself did not answer
                                      --erased with its user--> forgotten

| what dies, or is away | effect |
|---|---|
| the shard, between the append and its answer to the scheduler | the timer comes again; the append finds its effect |
| the edge, before or in a call, or before the deletion | its next process, or another edge after `action_claim_ms`, calls: the same key |
| an edge that was paused for longer than `action_claim_ms` | two edges may call at once, with the same key |
| Redis, after the call | the edge repeats the deletion until it is answered, and does not call again |
| the target | its breaker opens; its actions wait in its stream, and beyond `actions_waiting_max` as timers in storage |

So an action is called at least once, and its key is the same in every call. Actions of one target are called in parallel, in no order.

One lane per target. A lane has at most `action_parallel` calls, and reads one action at most while its breaker is open, so a target that is
slow or away holds up its own actions only. Actions that wait for another try take none of these places, up to `_WAITING_PER_CALL` for each:
they may fail for what they contain, or for whom they are, and hold up no others. The probe of a half-open breaker is one that has not
failed yet, where there is one. So memory is bounded by the number of targets, which rules and questions name. The edges share the
streams as consumers of one group; nobody coordinates them. Nothing is given up without a try: after an outage the backlog is done.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple

from engine.config import Config
from engine.core.edge.circuit_breaker import BreakerLimits, BreakerState, CircuitBreaker
from engine.core.model.action import CHANNELS, Target, parse_target
from engine.core.model.period import until_next
from engine.core.model.routing import mailbox_key
from engine.core.wire.outcomes import Outcome, OutcomeLog
from engine.errors import ActionFailed, Invalid, NobodyToReach, StorageUnavailable
from engine.features.actions.ray_targets import REASON_CHARS_MAX
from engine.features.actions.store import ActionStreams, QueuedAction
from engine.gateway.gateway import RecordCall
from engine.gateway.metrics import Figures
from engine.gateway.ports import TargetCall

log = logging.getLogger(__name__)

_TARGETS_MS: Final = 1000
"""Between looks for new targets."""

_FORGET_MS: Final = 60_000
"""A target without actions for so long is forgotten. Each question may name a URL of its own, and each look takes 50 us of an edge."""

_COUNTED_MAX: Final = 1000
"""Names of targets whose outcomes are counted; the oldest go."""

_HOLDS_PER_CLAIM: Final = 5
"""How often held entries are held again before another edge could claim them."""

_WAITING_PER_CALL: Final = 8
"""Actions between two tries that a lane holds for each call it may have, some 4 MB of the largest."""

Call = Callable[[Target, QueuedAction], Awaitable[None]]
"""Calls a target; returns when it has done the action. Raises ActionFailed, NobodyToReach."""


class ActionFigures(NamedTuple):
    """What an edge did with the actions of a target: `outcomes` by `done`, `failed` (a try) and `given_up`, and how many it holds now."""

    outcomes: Counter[str]
    held: int
    breaker: BreakerState


def families_of(figures: Mapping[str, ActionFigures]) -> Figures:
    """Figures by target as metrics."""
    targets = sorted(figures.items())
    return {
        "actions": [(target, outcome, found.outcomes[outcome]) for target, found in targets for outcome in ("done", "failed", "given_up")],
        "actions_held": [(target, found.held) for target, found in targets],
        "action_breakers": [(target, int(found.breaker)) for target, found in targets],
    }


def _label(target: str) -> str:
    try:
        return parse_target(target).label
    except Invalid:
        return ""


class _Lane:
    """One target: what this edge holds of it, and its breaker."""

    def __init__(self, target: str, breaker: CircuitBreaker, now_ms: int) -> None:
        self.target = target
        self.label = _label(target)
        self.breaker = breaker
        self.held: dict[str, asyncio.Task[None]] = {}
        self.waiting: set[str] = set()  # those of them that have failed, and wait for another try
        self.calling = 0
        self.taken_over = False  # what was pending for the edge's last process
        self.claims = False  # those that nobody holds are looked for next, when there is room
        self.used_ms = now_ms  # when it last held an action


class Dispatcher:
    """The dispatcher of one edge.

    Args:
        clock: milliseconds that never step.
        wall_ms: milliseconds since the epoch.
        outcomes: for the history; None: there is none.
        record_call: is told of each call that has ended; None: nobody records them.
    """

    def __init__(
        self,
        config: Config,
        streams: ActionStreams,
        call: Call,
        clock: Callable[[], int],
        wall_ms: Callable[[], int],
        outcomes: OutcomeLog | None = None,
        record_call: RecordCall | None = None,
    ) -> None:
        self._outcomes = outcomes
        self._record_call = record_call
        self._config = config
        self._streams = streams
        self._call = call
        self._clock = clock
        self._wall_ms = wall_ms
        self._lanes: dict[str, _Lane] = {}
        self._counted: dict[str, Counter[str]] = {}  # by label: `done` and `given_up` of actions, `failed` of tries
        self._targets_ms = clock() - _TARGETS_MS
        self._held_ms = clock()
        self._limits = BreakerLimits(
            config.breaker_error_ratio, config.breaker_window_ms, config.action_breaker_calls_min, config.action_breaker_open_ms, 1
        )

    async def run(self) -> None:
        """Carry out actions until cancelled; what is under way then is called again by whoever takes it over."""
        try:
            while True:
                try:
                    await self.turn()
                except StorageUnavailable as error:
                    log.info("actions wait: %s", error)
                pause_ms = self._config.action_poll_ms if self._lanes else _TARGETS_MS
                await asyncio.sleep(until_next(time.monotonic(), pause_ms / 1000))
        finally:
            for lane in self._lanes.values():
                for task in lane.held.values():
                    task.cancel()

    def breakers(self) -> dict[str, BreakerState]:
        return {lane.target: lane.breaker.state for lane in self._lanes.values()}

    def figures(self) -> dict[str, ActionFigures]:
        """Of each target that had an action here, by its name for metrics; several URLs of one host are one."""
        found = {label: ActionFigures(outcomes, 0, BreakerState.CLOSED) for label, outcomes in self._counted.items() if label}
        for lane in self._lanes.values():
            if lane.label and (lane.held or lane.label in found):
                outcomes, held, breaker = found.get(lane.label, ActionFigures(Counter(), 0, BreakerState.CLOSED))
                found[lane.label] = ActionFigures(outcomes, held + len(lane.held), max(breaker, lane.breaker.state))
        return found

    def families(self) -> Figures:
        """The figures as metrics, see `EdgeMetrics.figures`."""
        return families_of(self.figures())

    def reason(self) -> str:
        """Why this edge is degraded: how many targets do not answer; "" when all do. Which they are is not for everyone to see."""
        away = sum(state is not BreakerState.CLOSED for state in self.breakers().values())
        return f"targets of actions that do not answer: {away}" if away else ""

    async def turn(self) -> None:
        """Read what there is room for, and begin to carry it out. Raises StorageUnavailable."""
        now_ms = self._clock()
        if not self._lanes or now_ms - self._targets_ms >= _TARGETS_MS:
            known = await self._streams.targets()
            for target in [lane.target for lane in self._lanes.values() if lane.target not in known and not lane.held]:
                del self._lanes[target]
            for target in sorted(known - self._lanes.keys()):
                self._lanes[target] = _Lane(target, CircuitBreaker(self._limits, now_ms), now_ms)
            self._targets_ms = now_ms
        hold = now_ms - self._held_ms >= self._config.action_claim_ms / _HOLDS_PER_CLAIM
        for lane in self._lanes.values():
            lane.breaker.look(now_ms)
            if hold and lane.held:
                await self._hold(lane)
            lane.claims |= hold
            await self._fill(lane)
            if lane.held:
                lane.used_ms = now_ms
            elif now_ms - lane.used_ms >= _FORGET_MS:
                lane.used_ms = now_ms
                await self._streams.forget(lane.target)
        if hold:
            self._held_ms = now_ms

    async def _hold(self, lane: _Lane) -> None:
        entries = list(lane.held)
        kept = await self._streams.hold(lane.target, entries)
        for entry in entries:
            if entry not in kept and entry in lane.held:
                lane.held.pop(entry).cancel()  # erased with its user, or another edge has it

    async def _fill(self, lane: _Lane) -> None:
        """Read actions as far as the lane has room. While the breaker lets probes through, one is enough.

        That one is read before, where all that are held have failed: they would take its place.
        """
        parallel = self._config.action_parallel
        held_max = parallel * (1 + _WAITING_PER_CALL)
        room = {BreakerState.CLOSED: parallel, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: int(bool(lane.waiting))}[lane.breaker.state]
        room = min(room - len(lane.held) + len(lane.waiting), held_max - len(lane.held))
        if room <= 0:
            return
        if not lane.taken_over:
            # All that was pending for the last process, even beyond the room: they are as many as it had room for.
            self._begin(lane, await self._streams.read(lane.target, held_max, again=True))
            lane.taken_over = True
        elif lane.claims:
            self._begin(lane, await self._streams.claim(lane.target, room))
            lane.claims = False
        else:
            self._begin(lane, await self._streams.read(lane.target, room))

    def _begin(self, lane: _Lane, actions: Iterable[QueuedAction]) -> None:
        for action in actions:
            if action.entry not in lane.held:
                lane.held[action.entry] = asyncio.ensure_future(self._carry_out(lane, action))

    async def _carry_out(self, lane: _Lane, action: QueuedAction) -> None:
        try:
            unsent = ""
            try:
                reason, tries = await self._tried(lane, action)
            except NobodyToReach as error:
                reason, tries, unsent = "", 1, str(error)
            while True:
                try:
                    await (self._streams.give_up(action, reason, tries) if reason else self._streams.done(action))
                    break
                except StorageUnavailable as error:
                    log.info("an action waits to be settled: %s", error)
                    await asyncio.sleep(self._backoff_s(tries))
            self._count(lane.label, "given_up" if reason else "done")
            if self._outcomes is not None:
                kind = "step" if action.target.startswith(CHANNELS) else "action"
                key, word = mailbox_key(action.tenant, action.user), "failed" if reason else "unsent" if unsent else "done"
                self._outcomes.add(Outcome(key, self._wall_ms(), f"{kind}_{word}", action.id, reason=reason or unsent or lane.label))
            if reason:
                log.warning("the action %s of tenant %s is a dead letter: %s", action.key, action.tenant, reason)
        finally:
            lane.held.pop(action.entry, None)
            lane.waiting.discard(action.entry)

    def _count(self, label: str, outcome: str) -> None:
        if label not in self._counted and len(self._counted) >= _COUNTED_MAX:
            del self._counted[next(iter(self._counted))]
        self._counted.setdefault(label, Counter())[outcome] += 1

    async def _tried(self, lane: _Lane, action: QueuedAction) -> tuple[str, int]:
        """Call the target until it is done, or given up. Returns why it is given up, "" when it is done, and the number of tries.

        Raises NobodyToReach.
        """
        if action.damaged:
            return "damaged in storage", 0
        try:
            target = parse_target(action.target)
        except Invalid as error:
            return f"no target: {error.detail}", 0
        tries = 0
        while True:
            if not self._may_call(lane, tries):
                await asyncio.sleep(self._config.action_retry_first_ms / 1000)
                continue
            lane.calling += 1
            lane.waiting.discard(action.entry)
            tries += 1
            began_ms = self._clock()
            try:
                await self._call_recorded(lane.label, target, action, tries)
            except ActionFailed as error:
                self._count(lane.label, "failed")
                if error.final:
                    lane.breaker.succeeded(1)  # it answered
                    return f"refused: {error}", tries
                lane.breaker.failed(began_ms)
                left_s = self._config.action_give_up_s - (self._wall_ms() - action.since_ms) / 1000
                if left_s < 0 and not error.own:
                    return f"given up after {self._config.action_give_up_s} s: {error}", tries
                log.info("an action is tried again: %s", error)
                pause_s = max(self._backoff_s(tries), min(error.retry_after_s, left_s))
            else:
                lane.breaker.succeeded(1)
                return "", tries
            finally:
                lane.calling -= 1
                lane.breaker.look(self._clock())
            lane.waiting.add(action.entry)
            await asyncio.sleep(pause_s)

    def _may_call(self, lane: _Lane, tries: int) -> bool:
        """Whether an action may be called now that was called so often."""
        if lane.calling >= self._config.action_parallel or not lane.breaker.admits(lane.calling):
            return False
        # A probe that fails for what it contains says nothing of the target.
        return not tries or lane.breaker.state is BreakerState.CLOSED or len(lane.held) <= len(lane.waiting) + lane.calling

    async def _call_recorded(self, label: str, target: Target, action: QueuedAction, tries: int) -> None:
        if self._record_call is None:
            await self._call_in_time(target, action)
            return
        begun_ns, error = time.time_ns(), ""
        try:
            await self._call_in_time(target, action)
        except ActionFailed as failure:
            error = str(failure)
            raise
        finally:
            self._record_call(TargetCall(action.id, action.tenant, action.body, label, tries, begun_ns, error))

    async def _call_in_time(self, target: Target, action: QueuedAction) -> None:
        timeout_s = self._config.action_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                await self._call(target, action)
        except TimeoutError:
            raise ActionFailed(f"no answer within {timeout_s:g} s") from None
        except (ActionFailed, NobodyToReach):
            raise
        except Exception as error:  # a defect here: tried again, it would fail again, and hold up the others
            log.exception("the action %s of tenant %s could not be called", action.key, action.tenant)
            raise ActionFailed(f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX], final=True) from error

    def _backoff_s(self, tries: int) -> float:
        """Exponential, with up to half of it taken off at random, so that what failed together is not tried again together."""
        wait_ms = min(self._config.action_retry_first_ms << min(max(tries - 1, 0), 20), self._config.action_retry_cap_ms)
        return wait_ms * random.uniform(0.5, 1) / 1000
