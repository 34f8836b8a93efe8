"""`engine scale`, `engine rebalance` and `engine upgrade`: the request, and a display of how far the engine is from what is wanted."""

from __future__ import annotations

import time
from typing import Any, Final

from rich.console import Console

from engine.cli.local_engine import find_engine
from engine.cli.operator_request import ask
from engine.cli.progress import progress_bar
from engine.cli.status_report import ask_status, state_of
from engine.config import Config
from engine.core.model.formats import FORMATS
from engine.errors import EngineError

_POLL_S: Final = 0.5
_AWAY_S: Final = 30.0
"""So long the engine may leave the question for its status unanswered: an edge that leaves may have been the one that was asked."""


def request(data_dir: str | None, path: str, numbers: dict[str, int] | None) -> dict[str, Any]:
    """Ask the running engine for it; returns `scaling` of the status as it is then. Raises EngineError, one line."""
    target = find_engine(data_dir, None, None, path.replace("/v1/", "engine-"), ["operator"], "default")
    return ask(target, "POST", path, numbers, advice="`engine status` shows what it does")


def follow(config: Config, begun: dict[str, Any], console: Console) -> None:
    """Show slots that move and actors that come and go, until everything is as wanted. Raises EngineError when the engine is away.

    Args:
        begun: what `request` returned.
    """
    began, scaling, done, total = time.monotonic(), begun, 0, 0
    with progress_bar() as bar:
        task = bar.add_task("waiting", total=None)
        while not (scaling["settled"] and scaling["wanted_at_ms"] >= begun["wanted_at_ms"]):
            total = max(total, done + scaling["slots_left"])
            bar.update(task, description=state_of(scaling), completed=done, total=total or None)
            time.sleep(_POLL_S)
            before, scaling = scaling["slots_moved"], _status(config)
            # A controller that was started again counts from zero.
            done += scaling["slots_moved"] - before if scaling["slots_moved"] >= before else scaling["slots_moved"]
    have = ", ".join(f"{number} {role if number > 1 else role.removesuffix('s')}" for role, number in scaling["have"].items())
    console.print(f"{have}; {done} slots moved in {time.monotonic() - began:.1f} s", highlight=False)


def check_formats(config: Config) -> None:
    """Raises EngineError when the installed version is too old for the data: its processes would not start, and the upgrade would stop."""
    written = _status(config)["formats"]
    if written > FORMATS:
        raise EngineError(
            f"the engine writes formats {written} since its last upgrade, and the installed version reads {FORMATS}: install the version "
            "that runs, or a newer one"
        )


def follow_upgrade(config: Config, begun: dict[str, Any], console: Console) -> None:
    """Show which processes are replaced, until all are. Raises EngineError when the engine is away, or the upgrade has stopped.

    Args:
        begun: what `request` returned.
    """
    began, scaling, total = time.monotonic(), begun, len(begun["upgrading"])
    with progress_bar() as bar:
        task = bar.add_task("waiting", total=total)
        while not (scaling["settled"] and scaling["wanted_at_ms"] >= begun["wanted_at_ms"]):
            bar.update(task, description=state_of(scaling), completed=total - len(scaling["upgrading"]))
            time.sleep(_POLL_S)
            left, scaling = len(scaling["upgrading"]), _status(config)
            if scaling.get("stopped"):
                raise EngineError(
                    f"the upgrade has stopped: {scaling['stopped']}; {total - left} of {total} processes are replaced, and both versions "
                    "go on. The log of those that are not ready says why; then `engine upgrade` again"
                )
    console.print(f"{total} processes replaced in {time.monotonic() - began:.1f} s", highlight=False)


def _status(config: Config) -> dict[str, Any]:
    deadline = time.monotonic() + _AWAY_S
    while True:
        try:
            scaling: dict[str, Any] = ask_status(config)["scaling"]
        except EngineError:
            if time.monotonic() > deadline:
                raise
        else:
            if "wanted" in scaling:  # else the controller is starting
                return scaling
        time.sleep(_POLL_S)
