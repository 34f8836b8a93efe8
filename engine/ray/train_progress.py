"""A call-back of Ray Train that tells users of the reports of workers. The interface is public in Ray 2.60.

Ray calls it in the controller of the run, and says nothing of the end. So the driver tells the end, and gives its key:

    with RunMessages("ray.train", "my-model") as run:
        TorchTrainer(..., run_config=RunConfig(callbacks=[TrainProgress(run.key)])).fit()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ray.train import UserCallback

from engine.ray.run_messages import RunMessages, users_to_notify

_METRICS_MAX: Final = 20


class TrainProgress(UserCallback):
    """See the module's text.

    Args:
        key: of the driver's `RunMessages`.
        users: to notify; None: `users_to_notify` of the driver.
    """

    def __init__(self, key: str, users: Sequence[str] | None = None) -> None:
        self._key = key
        self._users = users_to_notify() if users is None else tuple(users)
        self._messages: RunMessages | None = None
        self._reports = 0

    def __getstate__(self) -> dict[str, Any]:
        """Without the thread: Ray copies it to the controller."""
        return {**self.__dict__, "_messages": None}

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        """All workers have reported."""
        self._reports += 1
        self._tell(reports=self._reports, checkpoint=checkpoint is not None, metrics=numbers(metrics[0] if metrics else {}))

    def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, Exception]) -> None:
        """Workers have failed; the run may begin again."""
        rank, error = next(iter(worker_exceptions.items()))
        self._tell(reports=self._reports, failed=f"worker {rank}: {type(error).__name__}: {error}"[:2000])

    def _tell(self, **data: Any) -> None:
        if self._messages is None:
            self._messages = RunMessages("ray.train", self._key, self._users, after_s=0, lost_after_s=0, key=self._key)
        self._messages.progress(**data)


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The first metrics that are numbers: others may not be JSON."""
    found = {str(name): float(value) for name, value in metrics.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    return dict(list(found.items())[:_METRICS_MAX])
