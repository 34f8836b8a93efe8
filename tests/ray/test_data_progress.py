"""The call-back of Ray Data: what it reads of an execution, and that it stops none."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.missing_programs import missing

if importlib.util.find_spec("pyarrow") is None or importlib.util.find_spec("pandas") is None:
    missing("Ray Data: install ray[data]")

from ray.data import DataContext

from engine.ray import DataProgress
from engine.ray.data_progress import blocks_of


class Told:
    """In place of `RunMessages`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def progress(self, value: float, **texts: str) -> None:
        self.calls.append(("progress", (value, texts)))

    def done(self, **data: Any) -> None:
        self.calls.append(("done", data))

    def failed(self, error: Exception, **data: Any) -> None:
        self.calls.append((f"failed: {error}", data))


class Operator:
    """The last of an execution."""

    name = "map"

    def __init__(self, of: int | None) -> None:
        self._of = of

    def num_outputs_total(self) -> int | None:
        return self._of


def execution(blocks: int, of: int | None) -> Any:
    return SimpleNamespace(_dataset_id="d", _topology={Operator(of): SimpleNamespace(num_completed_tasks=blocks)})


def test_the_variable_of_ray_data_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_DATA_EXECUTION_CALLBACKS", "ray_notifications.ray.DataProgress")
    assert DataProgress in DataContext.get_current().execution_callback_classes


def test_progress_only_grows_while_ray_corrects_its_estimate() -> None:
    progress, told = DataProgress(), Told()
    progress._messages = told  # type: ignore[assignment]
    for blocks, of in ((1, 4), (2, 20), (9, 10)):
        progress.on_execution_step(execution(blocks, of))
    progress.after_execution_succeeds(execution(10, 10))
    *progressed, done = told.calls
    assert [data[0] for _, data in progressed] == [0.25, 0.25, 0.9]
    assert progressed[-1] == ("progress", (0.9, {"text": "9 of 10 blocks", "step": "map"}))
    assert done == ("done", {"operator": "map", "blocks": 10, "of": 10, "pct": 100})


def test_a_failure_is_told_with_its_reason() -> None:
    progress, told = DataProgress(), Told()
    progress._messages = told  # type: ignore[assignment]
    progress.after_execution_fails(execution(1, 4), ValueError("kaboom"))
    assert told.calls[0][0] == "failed: kaboom"


@pytest.mark.parametrize("strange", [object(), SimpleNamespace(_topology={}), execution(1, None), execution(0, 0)])
def test_another_version_of_ray_says_nothing_and_fails_nothing(strange: Any) -> None:
    assert blocks_of(strange) == {}
    DataProgress().on_execution_step(strange)


def test_nobody_to_notify_costs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_NOTIFY", raising=False)
    progress = DataProgress()
    progress.before_execution_starts(execution(0, 1))
    assert progress._messages is not None
    assert progress._messages._thread is None
