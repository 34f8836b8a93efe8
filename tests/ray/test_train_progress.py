"""The call-back of Ray Train, as the controller of a run calls it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from ray.train import UserCallback

from engine.ray import TrainProgress, train_progress
from engine.ray.train_progress import numbers


class Told:
    made: list[tuple[Any, ...]] = []  # noqa: RUF012

    def __init__(self, *arguments: Any, **options: Any) -> None:
        Told.made.append((arguments, options))
        self.data: dict[str, Any] = {}

    def progress(self, **data: Any) -> None:
        self.data = data


def test_reports_and_failures_of_workers_are_progress_of_the_drivers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_progress, "RunMessages", Told)
    progress: Any = pickle.loads(pickle.dumps(TrainProgress("run-7", ["ann"])))
    assert isinstance(progress, UserCallback)
    progress.after_report(None, [{"loss": 0.5, "note": "x"}, {"loss": 0.6}], None)
    assert progress._messages.data == {"reports": 1, "checkpoint": False, "metrics": {"loss": 0.5}}
    progress.after_exception(None, {3: ValueError("kaboom")})
    assert progress._messages.data == {"reports": 1, "failed": "worker 3: ValueError: kaboom"}
    ((arguments, options),) = Told.made
    assert (arguments, options["key"], options["lost_after_s"]) == (("ray.train", "run-7", ("ann",)), "run-7", 0)


def test_only_numbers_of_a_report_are_told_and_not_all_of_a_large_one() -> None:
    assert numbers({"a": 1, "b": True, "c": "x", "d": 0.5}) == {"a": 1.0, "d": 0.5}
    assert len(numbers(dict.fromkeys(map(str, range(99)), 1))) == 20
