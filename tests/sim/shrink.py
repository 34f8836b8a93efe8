"""From a failing seed to the smallest run that still fails, and what it shows.

A run is a function of the seed and the fault classes that are switched on, so it is made smaller by leaving things out: first every
class that is not needed, one after another; then the faults after the last one that is needed. The failure may change its words
on the way; what counts is that a promise is still broken.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.world import Options, Outcome, World

_SHOWN_LINES = 60
_ROUNDS = 12


def smallest(options: Options, run: Callable[[Options], Outcome] | None = None) -> Outcome:
    """The outcome of the smallest failing run found; its options are in `reduced`."""
    return reduced(options, run)[1]


def reduced(options: Options, run: Callable[[Options], Outcome] | None = None) -> tuple[Options, Outcome]:
    """The smallest failing run found. `options` must fail."""
    run = run or (lambda smaller: World(smaller).run())
    outcome = run(options)
    assert outcome.failure, "only what fails can be made smaller"
    for name in sorted(options.enabled):
        if not outcome.struck[name]:
            options = Options(options.seed, options.steps, options.enabled - {name}, options.fault_steps)
    for name in sorted(options.enabled, key=lambda name: outcome.struck[name]):
        smaller = Options(options.seed, options.steps, options.enabled - {name}, options.fault_steps)
        found = run(smaller)
        if found.failure:
            options, outcome = smaller, found
    low, high = 0, min(options.fault_steps, outcome.failed_step)
    for _ in range(_ROUNDS):
        if high - low < 2:
            break
        middle = (low + high) // 2
        smaller = Options(options.seed, options.steps, options.enabled, middle)
        found = run(smaller)
        if found.failure:
            options, outcome, high = smaller, found, middle
        else:
            low = middle
    return options, outcome


def report(options: Options) -> str:
    """What to print about a failing run: how to replay it, what broke, and the trace of the user concerned."""
    options, outcome = reduced(options)
    lines: list[str] = []
    outcome = World(options, lambda user, line: lines.append(line) if user in {"", outcome.user} else None).run()
    left_out = len(lines) - _SHOWN_LINES
    return "\n".join(
        [
            f"seed {options.seed} breaks a promise at step {outcome.failed_step} ({outcome.seconds:.3f} s of simulated time):",
            f"    {outcome.failure}",
            f"faults that are needed: {', '.join(sorted(options.enabled)) or 'none'}"
            + (f", before step {options.fault_steps}" if options.fault_steps < outcome.failed_step else ""),
            f"replay: make sim SEED={options.seed}" + (f" FAULTS={','.join(sorted(options.enabled)) or 'none'}"),
            f"what happened to {outcome.user or 'everybody'} ({left_out} earlier lines left out)"
            if left_out > 0
            else f"what happened to {outcome.user or 'everybody'}",
            *lines[-_SHOWN_LINES:],
        ]
    )
