"""Arithmetic on measurements: quantiles, medians over runs, growth."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any


def quantile(ordered: Sequence[float], q: float) -> float:
    """The smallest sample that at least the share `q` of the samples does not exceed (nearest rank). `ordered` rises, and has samples."""
    rank = -(-q * len(ordered) // 1)
    return ordered[max(0, min(len(ordered), int(rank)) - 1)]


def latency_ms(samples_s: Iterable[float], *quantiles: float) -> dict[str, float]:
    """`{"p50": ..., "p99": ..., "max": ...}` in milliseconds, of the given quantiles (0.5 and 0.99); empty without samples."""
    ordered = sorted(samples_s)
    if not ordered:
        return {}
    found = {f"p{100 * q:g}": quantile(ordered, q) for q in quantiles or (0.5, 0.99)}
    return {name: round(value * 1000, 2) for name, value in [*found.items(), ("max", ordered[-1])]}


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Growth of the second figure per unit of the first: the least-squares line through the points."""
    return statistics.linear_regression([x for x, _ in points], [y for _, y in points]).slope


def by_quarter(readings: Sequence[float]) -> list[float]:
    """By how much the median of each quarter but the first is above that of the one before; empty below four readings."""
    size = len(readings) // 4
    medians = [statistics.median(readings[at : at + size]) for at in range(0, 4 * size, size)] if size else []
    return [round(after - before, 2) for before, after in pairwise(medians)]


def spread(results: Sequence[Any]) -> Any:
    """The same result over several runs: every number becomes `{"median", "min", "max"}`; what differs and is no number is dropped."""
    first = results[0]
    if isinstance(first, Mapping):
        shared = [key for key in first if all(key in result for result in results)]
        merged = {key: spread([result[key] for result in results]) for key in shared}
        return {key: value for key, value in merged.items() if value is not None}
    if isinstance(first, int | float) and not isinstance(first, bool):
        low, high = min(results), max(results)
        return {"median": round(statistics.median(results), 3), "min": low, "max": high}
    return first if all(result == first for result in results) else None


def summaries(results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One summary per benchmark, system and case of several runs; `runs` says how many there were."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault(repr((result["bench"], result.get("system"), result.get("case"))), []).append(result)
    merged = []
    for group in groups.values():
        same = {key: group[0][key] for key in ("bench", "system", "case") if key in group[0]}
        figures = [{key: value for key, value in result.items() if key not in same} for result in group]
        merged.append({**same, "runs": len(group), **spread(figures)})
    return merged
