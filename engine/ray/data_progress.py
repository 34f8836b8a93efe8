"""Progress and end of the datasets of a job that knows nothing of it: `RAY_DATA_EXECUTION_CALLBACKS=ray_notifications.ray.DataProgress`.

Ray Data of 2.60 imports the class that this variable names, and calls it in the loop of each execution. Neither the variable nor what is
read here of an execution is a public interface of Ray. A version without the variable ignores it. What another version names otherwise
is left out of the messages (`blocks_of`), and an execution never fails by it.
"""

from __future__ import annotations

import os
from typing import Any

from ray.data._internal.execution.execution_callback import ExecutionCallback

from engine.ray.run_messages import RunMessages


class DataProgress(ExecutionCallback):
    """Of one execution. Whom: `RAY_NOTIFY`, else the job's metadata `notify`. `RAY_NOTIFY_AFTER_S`: shorter ones are no news, 10."""

    def __init__(self) -> None:
        self._messages: RunMessages | None = None
        self._pct = 0

    def before_execution_starts(self, executor: Any) -> None:
        """An execution begins."""
        name = str(getattr(executor, "_dataset_id", "dataset"))
        self._messages = RunMessages("ray.data", name, after_s=_after_s())

    def on_execution_step(self, executor: Any) -> None:
        """One turn of its loop, several in a second."""
        if self._messages is not None and (found := blocks_of(executor)):
            self._pct = max(found["pct"], self._pct)  # Ray corrects its estimate of the whole
            self._messages.progress(self._pct / 100, text=f"{found['blocks']} of {found['of']} blocks", step=found["operator"])

    def after_execution_succeeds(self, executor: Any) -> None:
        """It has ended well."""
        if self._messages is not None:
            self._messages.done(**blocks_of(executor))

    def after_execution_fails(self, executor: Any, error: Exception) -> None:
        """It has ended."""
        if self._messages is not None:
            self._messages.failed(error, **blocks_of(executor))


def blocks_of(executor: Any) -> dict[str, Any]:
    """Blocks that the last operator has made, of how many, and per cent; {} where this version of Ray does not say."""
    try:
        operator, state = list(executor._topology.items())[-1]
        blocks, of = int(state.num_completed_tasks), int(operator.num_outputs_total() or 0)
    except (AttributeError, TypeError, ValueError, IndexError):
        return {}
    return {"operator": str(operator.name), "blocks": blocks, "of": of, "pct": min(100 * blocks // of, 100)} if of else {}


def _after_s() -> float:
    try:
        return float(os.environ.get("RAY_NOTIFY_AFTER_S", "10"))
    except ValueError:
        return 10.0
