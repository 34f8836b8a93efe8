"""How many shards and edges the load needs. A pure policy: measurements and the time go in, decisions with their reasons come out.

The load of an actor is one number, a share of what it can do: the greatest of how busy its thread is, how full its memory, its queue and
its table of connections are, and how late it is. Lateness counts only where the thread is busy as well, else what it waits for is slow,
storage or a shard, and more actors of its role would not help. The load of a role is the mean over its actors.

    mean at UP_SHARE or more, for `up_ms`         as many more as bring it to TARGET_SHARE, at most twice as many
    mean at DOWN_SHARE or less, for `down_ms`     as many fewer as bring the highest load of that time to TARGET_SHARE, at least half
    one shard at UP_SHARE, far above the mean     its slots are moved to the others (`engine.core.controller.slot_moves`); every `down_ms`
                                                  at most, since one slot that is as hot as a shard cannot be divided

TARGET_SHARE lies between both thresholds, so that a change is not undone by its own effect. While slots move, or actors start and leave,
measurements say little about the numbers that are wanted: nothing is decided, and both times begin anew afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any, Final, Literal

from msgspec import Struct

from engine.config import Config, count_range

UP_SHARE: Final = 0.7
DOWN_SHARE: Final = 0.3
TARGET_SHARE: Final = 0.5

_UNEVEN: Final = 1.3
"""Times the mean load that one shard has to have before its slots are moved."""

Role = Literal["shards", "edges"]
Mode = Literal["off", "dry run", "on"]
Action = Literal["scale", "rebalance", "none"]


class ScalingLimits(Struct, frozen=True):
    """Of one role. No fewer actors than `count_min`, no more than `count_max`."""

    count_min: int
    count_max: int
    up_ms: int
    down_ms: int


class ActorLoad(Struct, frozen=True):
    """One actor's measurements, each as a share of its limit; more than 1 is beyond it."""

    busy: float  # seconds of CPU per second
    lag: float = 0.0  # age of what waits longest for its commit
    memory: float = 0.0
    backlog: float = 0.0  # time that what waits will take
    connections: float = 0.0


class ScalingDecision(Struct, frozen=True):
    """What the policy decided, and why; `wanted` is `have` unless the action is `scale`."""

    at_ms: int
    role: Role
    action: Action
    have: int
    wanted: int
    reason: str


class Autoscaler:
    """The policy for one role."""

    def __init__(self, role: Role, limits: ScalingLimits) -> None:
        self._role = role
        self._limits = limits
        self._hot_ms: int | None = None  # since when it is
        self._cool_ms: int | None = None
        self._cool_peak = 0.0
        self._uneven_ms: int | None = None
        self._rebalanced_ms: int | None = None

    def observe(self, loads: Sequence[ActorLoad], now_ms: int, settled: bool) -> ScalingDecision | None:
        """The decision that these measurements lead to, if any.

        Args:
            loads: of each actor of the role.
            now_ms: milliseconds that never step.
            settled: neither does a slot move nor an actor start or leave.
        """
        if not settled or not loads:
            self._begin()
            return None
        have, (mean, what) = len(loads), _mean(loads)
        limits = self._limits
        if not limits.count_min <= have <= limits.count_max:
            self._begin()
            wanted = max(limits.count_min, min(have, limits.count_max))
            return ScalingDecision(now_ms, self._role, "scale", have, wanted, f"{limits.count_min} to {limits.count_max} are allowed")
        self._hot_ms = _since(self._hot_ms, mean >= UP_SHARE, now_ms)
        self._cool_ms = _since(self._cool_ms, mean <= DOWN_SHARE, now_ms)
        self._cool_peak = 0.0 if self._cool_ms is None else max(self._cool_peak, mean)
        if self._hot_ms is not None and now_ms - self._hot_ms >= limits.up_ms:
            return self._up(have, mean, what, now_ms)
        if self._cool_ms is not None and now_ms - self._cool_ms >= limits.down_ms:
            return self._down(have, now_ms)
        return self._even(loads, mean, now_ms)

    def _begin(self) -> None:
        self._hot_ms = self._cool_ms = self._uneven_ms = None
        self._cool_peak = 0.0

    def _up(self, have: int, mean: float, what: str, now_ms: int) -> ScalingDecision:
        limits = self._limits
        self._begin()
        wanted = min(max(have + 1, ceil(have * mean / TARGET_SHARE)), 2 * have, limits.count_max)
        reason = f"{what} {mean:.0%} for {_seconds(limits.up_ms)}, above {UP_SHARE:.0%}"
        if wanted == have:
            return ScalingDecision(now_ms, self._role, "none", have, have, f"{reason}, but {limits.count_max} is the maximum")
        return ScalingDecision(now_ms, self._role, "scale", have, wanted, reason)

    def _down(self, have: int, now_ms: int) -> ScalingDecision | None:
        limits, peak = self._limits, self._cool_peak
        self._begin()
        wanted = max(ceil(have * peak / TARGET_SHARE), ceil(have / 2), limits.count_min)
        if wanted >= have:
            return None
        reason = f"at most {peak:.0%} of the load for {_seconds(limits.down_ms)}, below {DOWN_SHARE:.0%}"
        return ScalingDecision(now_ms, self._role, "scale", have, wanted, reason)

    def _even(self, loads: Sequence[ActorLoad], mean: float, now_ms: int) -> ScalingDecision | None:
        """The decision to move slots away from one shard. Connections of an edge stay where they are."""
        if self._role == "edges":
            return None
        limits, (highest, what) = self._limits, max(map(_strain, loads))
        self._uneven_ms = _since(self._uneven_ms, highest >= UP_SHARE and mean * _UNEVEN < highest, now_ms)
        if self._uneven_ms is None or now_ms - self._uneven_ms < limits.up_ms:
            return None
        if self._rebalanced_ms is not None and now_ms - self._rebalanced_ms < limits.down_ms:
            return None
        self._begin()
        self._rebalanced_ms = now_ms
        reason = f"{what} of one is {highest:.0%} for {_seconds(limits.up_ms)}, of all {mean:.0%}"
        return ScalingDecision(now_ms, self._role, "rebalance", len(loads), len(loads), reason)


def _since(since_ms: int | None, holds: bool, now_ms: int) -> int | None:
    if not holds:
        return None
    return now_ms if since_ms is None else since_ms


def _mean(loads: Sequence[ActorLoad]) -> tuple[float, str]:
    """The mean of the measurement that has the highest, and its name."""
    count = len(loads)
    names = ActorLoad.__struct_fields__
    return _strain(ActorLoad(*(sum(getattr(load, name) for load in loads) / count for name in names)))


def _strain(load: ActorLoad) -> tuple[float, str]:
    """The highest of an actor's measurements, and its name."""
    return max(
        (load.busy, "CPU"),
        (load.lag if load.busy > DOWN_SHARE else 0.0, "lag"),
        (load.backlog if load.busy > DOWN_SHARE else 0.0, "backlog"),
        (load.memory, "memory"),
        (load.connections, "connections"),
    )


def _seconds(ms: int) -> str:
    return f"{ms / 1000:g} s"


class ScalingPolicy:
    """The policy for an engine. `mode`: whether its decisions are carried out, or shown only, or none are made."""

    def __init__(self, config: Config) -> None:
        self._config = config
        wanted = {"shards": config.autoscale_shards, "edges": config.autoscale_edges}
        self._roles = {role: _autoscaler(role, counts, config) for role, counts in wanted.items() if counts}
        self._shown: dict[str, ScalingDecision] = {}
        self.mode: Mode = "off" if not self._roles else "dry run" if config.autoscale_dry_run else "on"

    def observe(
        self, shards: Iterable[Mapping[str, Any]], edges: Iterable[Mapping[str, Any]], now_ms: int, settled: bool
    ) -> list[ScalingDecision]:
        """The decisions that these rows of the status lead to; one that says what the last one of its role did is not repeated.

        Args: as of `Autoscaler.observe`.
        """
        loads = {"shards": [_shard_load(row, self._config) for row in shards], "edges": [_edge_load(row, self._config) for row in edges]}
        found = (scaler.observe(loads[role], now_ms, settled) for role, scaler in self._roles.items())
        return [decision for decision in found if decision is not None and self._is_new(decision)]

    def _is_new(self, decision: ScalingDecision) -> bool:
        before = self._shown.get(decision.role)
        self._shown[decision.role] = decision
        if before is None or (self.mode == "on" and decision.action != "none"):
            return True
        return (before.action, before.have, before.wanted) != (decision.action, decision.have, decision.wanted)


def _autoscaler(role: Any, counts: str, config: Config) -> Autoscaler:
    allowed = count_range(counts)
    return Autoscaler(role, ScalingLimits(allowed.start, allowed.stop - 1, config.autoscale_up_ms, config.autoscale_down_ms))


def _shard_load(row: Mapping[str, Any], config: Config) -> ActorLoad:
    return ActorLoad(
        min(row["cpu_pct"] / 100, 1.0),
        lag=row.get("lag_ms", 0) / config.pressure_lag_ms,
        memory=row.get("memory_bytes", 0) / config.shard_memory_bytes_max,
    )


def _edge_load(row: Mapping[str, Any], config: Config) -> ActorLoad:
    return ActorLoad(
        min(row["cpu_pct"] / 100, 1.0),
        backlog=row.get("delay_ms", 0) / config.publish_delay_target_ms,
        connections=sum((row.get("connections") or {}).values()) / config.connections_max,
    )
