"""How many shards, schedulers and edges the load needs. A pure policy: measurements and the time go in, decisions come out.

The load of an actor is one number, a share of what it can do: the greatest of how busy its process is, how full its memory, its queue and
its table of connections are, and how late it is. Lateness counts only where the actor works, or would if its machine had a core for it.
The load of a role is the mean over its actors.

    mean at `up_share` or more, for `up_ms`        as many more as bring it to `target_share`, at most twice as many
    mean at `down_share` or less, for `down_ms`    as many fewer as bring the highest load of that time to `target_share`, at least half
    one shard at `up_share`, far above the mean    its slots are moved to the others (`engine.core.controller.slot_moves`), unless there are
                                                   to be more; every `down_ms` at most: one slot as hot as a shard cannot be divided
    late for `up_ms`, and not busy                 nothing, with a reason: what they wait for is slow, storage or a shard, and more of them
                                                   would wait for it too. Nothing is removed meanwhile

`target_share` lies between both thresholds, so that a change is not undone by its own effect. While slots move, or actors start and leave,
measurements say little about the numbers that are wanted: nothing is decided, and all times begin anew afterwards. Actors that wait for a
machine for long are no such change: what serves is measured, and when that has become little, they are no longer wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Final, Literal

from msgspec import Struct

from engine.config import Config

_UNEVEN: Final = 1.3
"""Times the mean load that one shard has to have before its slots are moved."""

Role = Literal["shards", "schedulers", "edges"]
Mode = Literal["off", "dry run", "on"]
ScalingAction = Literal["scale", "rebalance", "none"]


class ActorLoad(Struct, frozen=True):
    """One actor's measurements, each as a share of its limit; more than 1 is beyond it."""

    busy: float  # seconds of CPU per second
    queued: float = 0.0  # seconds per second in which it was ready to run and had no core
    lag: float = 0.0  # age of what waits longest for its commit
    memory: float = 0.0
    backlog: float = 0.0  # time that what waits will take
    connections: float = 0.0


class ScalingDecision(Struct, frozen=True):
    """What the policy decided, and why; `wanted` is `have` unless the action is `scale`."""

    at_ms: int
    role: Role
    action: ScalingAction
    have: int
    wanted: int
    reason: str


class Autoscaler:
    """The policy for one role. `counts`: how many actors there may be, FIRST-LAST."""

    def __init__(self, role: Role, counts: str, config: Config) -> None:
        self._role = role
        self._allowed = count_range(counts)
        self._count_max = self._allowed.stop - 1
        self._config = config
        self._hot_ms: int | None = None  # since when it is
        self._cool_ms: int | None = None
        self._cool_peak = 0.0
        self._late_ms: int | None = None
        self._uneven_ms: int | None = None
        self._rebalanced_ms: int | None = None

    def observe(self, loads: Sequence[ActorLoad], now_ms: int, settled: bool, waiting: int = 0) -> ScalingDecision | None:
        """The decision that these measurements lead to, if any.

        Args:
            loads: of each actor of the role that serves.
            now_ms: milliseconds that never step.
            settled: neither does a slot move nor an actor start or leave.
            waiting: further actors that are wanted and wait for a machine.
        """
        if not settled or not loads:
            self._begin()
            return None
        have, config = len(loads), self._config
        if have + waiting not in self._allowed:
            self._begin()
            wanted = max(self._allowed.start, min(have, self._count_max))
            return ScalingDecision(now_ms, self._role, "scale", have, wanted, f"{self._allowed.start} to {self._count_max} are allowed")
        mean = _mean(loads)
        load, what = _strain(mean, config)
        late, late_what = max((mean.lag, "lag"), (mean.backlog, "backlog"))
        is_late = late >= config.autoscale_up_share and not _works(mean, config)
        self._hot_ms = _since(self._hot_ms, load >= config.autoscale_up_share, now_ms)
        self._late_ms = _since(self._late_ms, is_late, now_ms)
        self._cool_ms = _since(self._cool_ms, load <= config.autoscale_down_share and not is_late, now_ms)
        self._cool_peak = 0.0 if self._cool_ms is None else max(self._cool_peak, load)
        if _lasts(self._hot_ms, config.autoscale_up_ms, now_ms):
            decision = self._up(have, waiting, load, what, now_ms)
            if decision.action == "scale":
                return decision
            return self._even(loads, load, now_ms) or decision
        if _lasts(self._cool_ms, config.autoscale_down_ms, now_ms):
            return self._down(have, waiting, now_ms)
        if even := self._even(loads, load, now_ms):
            return even
        if not _lasts(self._late_ms, config.autoscale_up_ms, now_ms):
            return None
        self._late_ms = now_ms
        reason = (
            f"{late_what} {_percent(late)} for {_seconds(config.autoscale_up_ms)}, but CPU {_percent(mean.busy)}: "
            f"it waits for something slow, and more {self._role} would wait for it too"
        )
        return ScalingDecision(now_ms, self._role, "none", have, have, reason)

    def _begin(self) -> None:
        self._hot_ms = self._cool_ms = self._late_ms = self._uneven_ms = None
        self._cool_peak = 0.0

    def _up(self, have: int, waiting: int, load: float, what: str, now_ms: int) -> ScalingDecision:
        config = self._config
        wanted = min(max(have + 1, ceil(have * load / config.autoscale_target_share)), 2 * have, self._count_max)
        reason = f"{what} {_percent(load)} for {_seconds(config.autoscale_up_ms)}, above {_percent(config.autoscale_up_share)}"
        if wanted > have + waiting:
            self._begin()
            return ScalingDecision(now_ms, self._role, "scale", have, wanted, reason)
        self._hot_ms = now_ms
        why_not = f"{waiting} more wait for a machine already" if waiting else f"{self._count_max} is the maximum"
        return ScalingDecision(now_ms, self._role, "none", have, have, f"{reason}, but {why_not}")

    def _down(self, have: int, waiting: int, now_ms: int) -> ScalingDecision | None:
        config, peak = self._config, self._cool_peak
        self._begin()
        wanted = max(ceil(have * peak / config.autoscale_target_share), ceil(have / 2), self._allowed.start)
        if wanted >= have + waiting:
            return None
        reason = (
            f"at most {_percent(peak)} of the load for {_seconds(config.autoscale_down_ms)}, below {_percent(config.autoscale_down_share)}"
        )
        return ScalingDecision(now_ms, self._role, "scale", have, min(wanted, have), reason)

    def _even(self, loads: Sequence[ActorLoad], mean: float, now_ms: int) -> ScalingDecision | None:
        """The decision to move slots away from one shard. What other actors have is spread by itself."""
        if self._role != "shards":
            return None
        config = self._config
        highest, what = max(_strain(load, config) for load in loads)
        self._uneven_ms = _since(self._uneven_ms, highest >= config.autoscale_up_share and mean * _UNEVEN < highest, now_ms)
        if not _lasts(self._uneven_ms, config.autoscale_up_ms, now_ms):
            return None
        if self._rebalanced_ms is not None and now_ms - self._rebalanced_ms < config.autoscale_down_ms:
            return None
        self._begin()
        self._rebalanced_ms = now_ms
        reason = f"{what} of one is {_percent(highest)} for {_seconds(config.autoscale_up_ms)}, of all {_percent(mean)}"
        return ScalingDecision(now_ms, self._role, "rebalance", len(loads), len(loads), reason)


def _since(since_ms: int | None, holds: bool, now_ms: int) -> int | None:
    if not holds:
        return None
    return now_ms if since_ms is None else since_ms


def _lasts(since_ms: int | None, for_ms: int, now_ms: int) -> bool:
    return since_ms is not None and now_ms - since_ms >= for_ms


def _mean(loads: Sequence[ActorLoad]) -> ActorLoad:
    count = len(loads)
    return ActorLoad(*(sum(getattr(load, name) for load in loads) / count for name in ActorLoad.__struct_fields__))


def _works(load: ActorLoad, config: Config) -> bool:
    """Whether it works, or would with a core: what is late then is late because there is much to do."""
    return load.busy + load.queued > config.autoscale_down_share


def _strain(load: ActorLoad, config: Config) -> tuple[float, str]:
    """The highest measurement that more actors would lower, and its name."""
    works = _works(load, config)
    return max(
        (load.busy, "CPU"),
        (load.lag if works else 0.0, "lag"),
        (load.backlog if works else 0.0, "backlog"),
        (load.memory, "memory"),
        (load.connections, "connections"),
    )


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def _seconds(ms: int) -> str:
    return f"{ms / 1000:g} s"


class ScalingPolicy:
    """The policy for an engine. `mode`: whether its decisions are carried out, or shown only, or none are made."""

    def __init__(self, config: Config) -> None:
        self._config = config
        wanted: dict[Role, str] = {
            "shards": config.autoscale_shards,
            "schedulers": config.autoscale_schedulers,
            "edges": config.autoscale_edges,
        }
        self._roles: dict[Role, Autoscaler] = {role: Autoscaler(role, counts, config) for role, counts in wanted.items() if counts}
        self._shown: dict[str, ScalingDecision] = {}
        self.mode: Mode = "off" if not self._roles else "dry run" if config.autoscale_dry_run else "on"

    def observe(
        self,
        shards: Sequence[Mapping[str, Any]],
        schedulers: Sequence[Mapping[str, Any]],
        edges: Sequence[Mapping[str, Any]],
        now_ms: int,
        settled: bool,
        waiting: Mapping[str, int] | None = None,
    ) -> list[ScalingDecision]:
        """The decisions that these rows of the status lead to; one that says what the last one of its role did is not repeated.

        Args:
            shards, schedulers, edges: a row of the status for each that serves.
            now_ms, settled: as of `Autoscaler.observe`.
            waiting: of each role, as there.
        """
        config, waits = self._config, waiting or {}
        loads: dict[Role, list[ActorLoad]] = {
            "shards": [_shard_load(row, config) for row in shards],
            "schedulers": [_scheduler_load(row, config) for row in schedulers],
            "edges": [_edge_load(row, config) for row in edges],
        }
        found = (scaler.observe(loads[role], now_ms, settled, waits.get(role, 0)) for role, scaler in self._roles.items())
        return [decision for decision in found if decision is not None and self._is_new(decision)]

    def _is_new(self, decision: ScalingDecision) -> bool:
        before = self._shown.get(decision.role)
        self._shown[decision.role] = decision
        if before is None or (self.mode == "on" and decision.action != "none"):
            return True
        return (before.action, before.have, before.wanted) != (decision.action, decision.have, decision.wanted)


def _shard_load(row: Mapping[str, Any], config: Config) -> ActorLoad:
    return ActorLoad(
        min(row["cpu_pct"] / 100, 1.0),
        row.get("queued_pct", 0.0) / 100,
        lag=row.get("lag_ms", 0) / config.pressure_lag_ms,
        memory=row.get("memory_bytes", 0) / config.shard_memory_bytes_max,
    )


def _edge_load(row: Mapping[str, Any], config: Config) -> ActorLoad:
    return ActorLoad(
        min(row["cpu_pct"] / 100, 1.0),
        row.get("queued_pct", 0.0) / 100,
        backlog=row.get("delay_ms", 0) / config.publish_delay_target_ms,
        connections=sum((row.get("connections") or {}).values()) / config.connections_max,
    )


def _scheduler_load(row: Mapping[str, Any], config: Config) -> ActorLoad:
    return ActorLoad(min(row["cpu_pct"] / 100, 1.0), row.get("queued_pct", 0.0) / 100, lag=row.get("lag_ms", 0) / config.pressure_lag_ms)


def count_range(counts: str) -> range:
    """The numbers of a setting `FIRST-LAST`. Raises ValueError."""
    first, last = (int(part) if part.isascii() and part.isdigit() else 0 for part in counts.split("-"))
    if not 1 <= first <= last:
        raise ValueError(counts)
    return range(first, last + 1)
