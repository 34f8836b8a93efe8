"""When periodic work of a process is done: at whole multiples of its period, so that all of it is done in one wake-up.

A wake-up of an idle process costs 100 to 500 us of CPU, with cold caches, whatever it does then. Tasks that each sleep for a second have
one each; tasks that sleep until the next whole second share one. Kernels round timers for the same reason (Linux, `round_jiffies`).
"""

from __future__ import annotations

from typing import Final

_TOO_NEAR: Final = 0.1
"""A multiple that is nearer than this part of the period is skipped: timers of event loops are whole milliseconds, and may be early."""


def until_next(now_s: float, period_s: float) -> float:
    """Seconds from `now_s` until the next whole multiple of the period: a tenth of it at least, eleven tenths at most."""
    wait_s = period_s - now_s % period_s
    return wait_s if wait_s >= _TOO_NEAR * period_s else wait_s + period_s
