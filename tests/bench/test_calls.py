"""What a message costs in Python calls and bytecode instructions may not grow unseen: `python -m bench calls`, held to recorded figures."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from bench import calls
from bench.calls import Tracer, package_of

MARGIN = 0.05
"""A change that costs more, or saves more, records its figures here and says why in its commit."""

FIGURES: dict[str, tuple[float, int]] = {
    "publish": (200.0, 7606),
    "ack": (80.0, 3066),
    "batch": (30.0, 2162),
    "batch_ack": (24.4, 1047),
    "timer": (725.0, 24058),
    "timer_batch": (110.5, 4776),
    "reconnect": (347.0, 11341),
    "broadcast": (25.5, 1365),
}
"""Calls and instructions of one message, by leg, on CPython 3.11: other versions have other bytecode."""


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the figures are those of the bytecode of CPython 3.11")
def test_a_message_costs_as_many_calls_as_recorded() -> None:
    rows = list(calls.run(SimpleNamespace(packages=False)))
    measured = {row["case"]: (row["calls"], row["instructions"]) for row in rows}
    assert measured.keys() == FIGURES.keys()
    changed = {leg: (FIGURES[leg], figures) for leg, figures in measured.items() if not _is_close(FIGURES[leg], figures)}
    assert not changed, f"recorded and measured figures differ by more than {MARGIN:.0%}: {changed}"


def _is_close(recorded: tuple[float, int], measured: tuple[float, int]) -> bool:
    return all(abs(now - then) <= MARGIN * then for then, now in zip(recorded, measured, strict=True))


def test_the_tracer_counts_the_code_inside_its_block_only() -> None:
    namespace: dict[str, Any] = {}
    source = "def inner():\n    return 1\ndef outer():\n    return inner() + inner()\n"
    exec(compile(source, f"{calls._ROOT}/engine/gateway/made.py", "exec"), namespace)
    tracer = Tracer()
    namespace["outer"]()
    with tracer:
        namespace["outer"]()
    counted = tracer.counted
    assert counted.calls == {"gateway": 3}
    assert counted.instructions["gateway"] > 3 * 2
    with tracer:
        pass
    assert tracer.counted.calls == {}


def test_files_count_for_packages_and_stubs_for_nothing() -> None:
    root = calls._ROOT
    assert package_of(f"{root}/engine/core/mailbox/mailbox.py") == "core.mailbox"
    assert package_of(f"{root}/engine/gateway/gateway.py") == "gateway"
    assert package_of(f"{root}/engine/routes.py") == "routes"
    assert package_of("/usr/lib/python3/site-packages/starlette/routing.py") == "(starlette)"
    assert package_of("/usr/lib/python3.11/json/__init__.py") == "(json)"
    assert package_of(f"{root}/tests/sim/loop.py") == ""
    assert package_of("/usr/lib/python3.11/asyncio/events.py") == ""
