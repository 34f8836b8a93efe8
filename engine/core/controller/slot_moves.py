"""Which slots move from which shard to which, so that all shards have their share of them.

Plans, each of the fewest slots that reach its aim:

`even_moves` is for another number of shards. Afterwards the numbers of slots differ by at most one; growing from n shards to n + 1 moves
one slot of n + 1, all of them to the new shard, and shrinking moves what the removed shards have. `load_moves` is for shards of different
load: it moves a slot from the busiest shard to the idlest, again and again, as the greedy rule for multiprocessor scheduling does
(Graham 1969), and takes the slot whose load is nearest to half of the difference.

`away_moves` empties shards that are to be replaced, into the shards that have the fewest slots.

A plan is for the slot map of one store, and so for the shards that use it: slots stay in their store.

Nothing remembers a plan. It is computed again from the slot map before each step, and what is left of it comes out: a step of an
`even_moves` plan makes the next plan smaller by just its slots.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from heapq import heapify, heapreplace
from typing import Final

import msgspec
from msgspec import Struct

from engine.core.model.routing import SlotMap

TOLERANCE: Final = 0.1
"""A shard this far above the mean load is busy enough to move slots: below it, a move costs its users more than it gives the shard."""

_IDLE_SHARE: Final = 0.1
"""Of the mean load of a slot, added to each: users who are sent nothing take memory, and connections."""


class Move(Struct, frozen=True):
    """Slots that go from one shard to another."""

    source: int
    target: int
    slots: tuple[int, ...]


def even_moves(slot_map: SlotMap, shards: int) -> list[Move]:
    """The moves after which those of the first `shards` shards that use this store have its slots, evenly.

    Slots of no shard that exists stay where they are: nobody could hand them over.

    Args:
        shards: no more than exist, and one of them at least uses this store.
    """
    kept = slot_map.local(shards)
    assert kept, "each store needs a shard"
    assert shards <= slot_map.shards, "slots move between shards that exist"
    held = _held(slot_map)
    share, more = divmod(sum(map(len, held.values())), len(kept))
    # Those that have the most keep one more than the others: it need not move then.
    richest = sorted(kept, key=lambda shard: (-len(held[shard]), shard))
    shares = dict.fromkeys(held, 0) | {shard: share + (rank < more) for rank, shard in enumerate(richest)}
    surplus = [(shard, slot) for shard, slots in held.items() for slot in slots[shares[shard] :]]
    owners = list(slot_map.owners)
    for target in kept:
        for _ in range(shares[target] - len(held[target])):
            _, slot = surplus.pop()
            owners[slot] = target
    return _difference(slot_map.owners, owners)


def away_moves(slot_map: SlotMap, sources: Iterable[int], homes: Iterable[int]) -> list[Move]:
    """The moves after which the sources have no slots. Each slot goes to the shard of `homes` that has the fewest then.

    Those that use other stores are left out of both.
    """
    held = _held(slot_map)
    counts = [(len(held[home]), home) for home in homes if home in held]
    heapify(counts)
    owners = list(slot_map.owners)
    if counts:
        for source in sources:
            for slot in held.get(source, ()):
                count, owners[slot] = counts[0]
                heapreplace(counts, (count + 1, owners[slot]))
    return _difference(slot_map.owners, owners)


def load_moves(slot_map: SlotMap, loads: Mapping[int, float], slots_max: int) -> list[Move]:
    """The moves after which no shard has more than `TOLERANCE` above the mean load, or as near to it as moving `slots_max` slots gets.

    Args:
        loads: by slot, in any unit; a slot that is not in it has none.
    """
    held = _held(slot_map)
    count = sum(map(len, held.values()))
    if not count:
        return []
    idle = _IDLE_SHARE * sum(loads.get(slot, 0.0) for slots in held.values() for slot in slots) / count or 1.0
    ranked = {shard: sorted((loads.get(slot, 0.0) + idle, slot) for slot in slots) for shard, slots in held.items()}
    sums = {shard: sum(load for load, _ in slots) for shard, slots in ranked.items()}
    enough = (1 + TOLERANCE) * sum(sums.values()) / len(sums)
    owners = list(slot_map.owners)
    for _ in range(slots_max):
        busiest = max(sums, key=sums.__getitem__)
        idlest = min(sums, key=sums.__getitem__)
        gap = sums[busiest] - sums[idlest]
        at = _nearest(ranked[busiest], gap / 2)
        if sums[busiest] <= enough or ranked[busiest][at][0] >= gap:
            break
        load, slot = ranked[busiest].pop(at)
        ranked[idlest].insert(bisect_left(ranked[idlest], (load, slot)), (load, slot))
        sums[busiest] -= load
        sums[idlest] += load
        owners[slot] = idlest
    return _difference(slot_map.owners, owners)


def next_sets(moves: Iterable[Move], slots_max: int) -> list[Move]:
    """The first step of a plan: at most one set of each shard, so that a user waits for one set only. Small sets are short pauses."""
    chosen: dict[int, Move] = {}
    for move in moves:
        if move.source not in chosen:
            chosen[move.source] = Move(move.source, move.target, move.slots[:slots_max])
    return list(chosen.values())


def moved(slot_map: SlotMap, moves: Iterable[Move]) -> SlotMap:
    """The next version of the map, after all of these moves."""
    after = slot_map
    for move in moves:
        after = after.with_owner(move.slots, move.target)
    return msgspec.structs.replace(after, version=slot_map.version + 1)


def slots_in(moves: Iterable[Move]) -> int:
    """How many slots they move."""
    return sum(len(move.slots) for move in moves)


def _held(slot_map: SlotMap) -> dict[int, list[int]]:
    """The slots of each shard that uses the store."""
    held: dict[int, list[int]] = {shard: [] for shard in slot_map.local(slot_map.shards)}
    for slot, owner in enumerate(slot_map.owners):
        if owner in held:
            held[owner].append(slot)
    return held


def _nearest(ranked: list[tuple[float, int]], load: float) -> int:
    """Where the slot is whose load is nearest to this one."""
    at = bisect_left(ranked, (load, 0))
    return min((index for index in (at - 1, at) if 0 <= index < len(ranked)), key=lambda index: abs(ranked[index][0] - load))


def _difference(before: Iterable[int], after: Iterable[int]) -> list[Move]:
    sets: dict[tuple[int, int], list[int]] = {}
    for slot, (source, target) in enumerate(zip(before, after, strict=True)):
        if source != target:
            sets.setdefault((source, target), []).append(slot)
    return [Move(source, target, tuple(slots)) for (source, target), slots in sorted(sets.items())]
