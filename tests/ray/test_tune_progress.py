"""The call-back of Ray Tune, as a search calls it."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune import Callback

from engine.ray import TuneProgress, tune_progress


class Told:
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def progress(self, **data: Any) -> None:
        self.calls.append(("progress", data))

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
    progress.setup()
    for trial, end in zip(trials, ends.split(), strict=True):
        (progress.on_trial_complete if end == "ok" else progress.on_trial_error)(1, trials, trial)
    progress.on_experiment_end(trials)
    counts = {"trials": 2, "ended": ends.count("ok"), "failed": ends.count("error")}
    assert progress._messages.calls[-1] == (word, counts)
    assert [name for name, _ in progress._messages.calls[:-1]] == ["progress"] * 2
