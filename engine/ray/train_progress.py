"""A call-back of Ray Train that tells users of the reports of workers. The interface is public in Ray 2.60.

Ray calls it in the controller of the run, and says nothing of the end. So the driver tells the end of the same message:

    with RunMessages("ray.train", "my-model") as run:
        TorchTrainer(..., run_config=RunConfig(callbacks=[TrainProgress(run)])).fit()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ray.train import UserCallback

from engine.ray.run_messages import RunMessages

_METRICS_MAX: Final = 5


class TrainProgress(UserCallback):
    """See the module's text.

    Args:
        run: of the driver, whose message begins at once. Ray copies its `publisher` too.
    """

    def __init__(self, run: RunMessages) -> None:
        run.begin()
        self._arguments = run.kind, run.name, run.users
        self._options: dict[str, Any] = {"id": run.id, "after_s": 0, "publisher": run.publisher}
        self._messages: RunMessages | None = None
        self._reports = 0

    def __getstate__(self) -> dict[str, Any]:
        """Without the thread: Ray copies it to the controller."""
        return {**self.__dict__, "_messages": None}

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        """All workers have reported."""
        self._reports += 1
        self._tell(f"report {self._reports}" + "".join([f", {text}" for text in numbers(metrics[0] if metrics else {})]), "train")

    def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, Exception]) -> None:
        """Workers have failed; the run may begin again."""
        rank, error = next(iter(worker_exceptions.items()))
        self._tell(f"worker {rank}: {type(error).__name__}: {error}", "failed")

    def _tell(self, text: str, step: str) -> None:
        if self._messages is None:
            self._messages = RunMessages(*self._arguments, **self._options)
        self._messages.progress(text=text, step=step)


def numbers(metrics: Mapping[str, Any]) -> list[str]:
    """The first metrics that are numbers, as text."""
    found = [f"{name} {value:.4g}" for name, value in metrics.items() if isinstance(value, int | float) and not isinstance(value, bool)]
    return found[:_METRICS_MAX]
