"""The call-back of Ray Train, as the controller of a run calls it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from ray.train import UserCallback

from engine.ray import Publisher, RunMessages, TrainProgress, train_progress
from engine.ray.train_progress import numbers


def jobs() -> Publisher:
    """Of another tenant than the default one."""
    return Publisher(tenant="jobs")


class Told:
    """In place of `RunMessages`."""

    made: list[tuple[Any, ...]] = []  # noqa: RUF012

    def __init__(self, *arguments: Any, **options: Any) -> None:
        Told.made.append((arguments, options))
        self.calls: list[tuple[str, str]] = []

    def progress(self, *, text: str, step: str) -> None:
        self.calls.append((step, text))


def test_reports_and_failures_of_workers_are_progress_of_the_drivers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_progress, "RunMessages", Told)
    with RunMessages("ray.train", "my-model", (), publisher=jobs) as run:
        progress: Any = pickle.loads(pickle.dumps(TrainProgress(run)))
    assert isinstance(progress, UserCallback)
    progress.after_report(None, [{"loss": 0.51234, "note": "x"}, {"loss": 0.6}], None)
    progress.after_exception(None, {3: ValueError("kaboom")})
    assert progress._messages.calls == [("train", "report 1, loss 0.5123"), ("failed", "worker 3: ValueError: kaboom")]
    assert Told.made == [(("ray.train", "my-model", ()), {"id": run.id, "after_s": 0, "publisher": jobs})]


def test_only_numbers_of_a_report_are_told_and_not_all_of_a_large_one() -> None:
    assert numbers({"a": 1, "b": True, "c": "x", "d": 0.5}) == ["a 1", "d 0.5"]
    assert len(numbers(dict.fromkeys(map(str, range(99)), 1))) == 5
