"""The call-back of Ray Tune, as a search calls it."""

from __future__ import annotations

import pickle
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune import Callback

from engine.ray import TuneProgress, tune_progress


class Told:
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.calls: list[tuple[str, Any]] = []

    def progress(self, value: float | None, *, text: str) -> None:
        self.calls.append((text, value))

    def done(self, **data: Any) -> None:
        self.calls.append(("done", data))

    def failed(self, error: str, **data: Any) -> None:
        self.calls.append((error, data))


@pytest.mark.parametrize(("ends", "word"), [("ok ok", "done"), ("ok error", "done"), ("error error", "every trial failed")])
def test_a_search_is_told_by_its_trials_and_its_end(monkeypatch: pytest.MonkeyPatch, ends: str, word: str) -> None:
    monkeypatch.setattr(tune_progress, "RunMessages", Told)
    progress: Any = pickle.loads(pickle.dumps(TuneProgress("search", ["ann"])))
    assert isinstance(progress, Callback)
    trials = [SimpleNamespace(trial_id=str(number)) for number in range(2)]
    progress.setup(total_num_samples=4)
    for trial, end in zip(trials, ends.split(), strict=True):
        (progress.on_trial_complete if end == "ok" else progress.on_trial_error)(1, trials, trial)
    progress.on_experiment_end(trials)
    counts = {"trials": 2, "succeeded": ends.count("ok"), "failed": ends.count("error")}
    assert progress._messages.calls[-1] == (word, counts)
    failed = ", 1 failed" if ends.startswith("error") else ""
    assert progress._messages.calls[0] == (f"1 of 4 trials{failed}", 0.25)
    assert [value for _, value in progress._messages.calls[:-1]] == [0.25, 0.5]


def test_a_search_without_end_tells_no_share_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_progress, "RunMessages", Told)
    progress: Any = TuneProgress("search", ["ann"])
    progress.setup(total_num_samples=sys.maxsize)  # of `num_samples=-1`
    progress.on_trial_complete(1, [], SimpleNamespace(trial_id="0"))
    progress.on_trial_error(1, [], SimpleNamespace(trial_id="1"))
    assert progress._messages.calls == [("1 trial", None), ("2 trials, 1 failed", None)]
