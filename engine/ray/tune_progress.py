"""A call-back of Ray Tune that tells users of the trials and of the end. The interface is public in Ray 2.60; it runs in the driver.

tune.Tuner(..., run_config=tune.RunConfig(callbacks=[TuneProgress("my-search")])).fit()
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ray.tune import Callback

from engine.ray.run_messages import RunMessages, told_users


class TuneProgress(Callback):
    """See the module's text.

    Args:
        name: of the search, for people.
        users: to notify; None: `users_to_notify`.
        after_s: a search that took less is no news.
    """

    def __init__(self, name: str = "search", users: Sequence[str] | None = None, *, after_s: float = 10.0) -> None:
        self._name, self._after_s = name, after_s
        self._users = told_users(users)
        self._messages: RunMessages | None = None
        self._succeeded: set[str] = set()
        self._failed: set[str] = set()
        self._of: int | None = 0  # None: it goes on until somebody stops it

    def __getstate__(self) -> dict[str, Any]:
        """Without the thread: Tune stores call-backs with the experiment."""
        return {**self.__dict__, "_messages": None}

    def setup(self, *arguments: Any, **info: Any) -> None:
        """The search begins."""
        of = int(info.get("total_num_samples") or 0)
        self._of = of if of < sys.maxsize else None
        self._messages = RunMessages("ray.tune", self._name, self._users, after_s=self._after_s)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial has ended well."""
        self._succeeded.add(trial.trial_id)
        self._tell(trials)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial has failed for good."""
        self._failed.add(trial.trial_id)
        self._tell(trials)

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """The search has ended: failed when no trial has ended well."""
        if self._messages is None:
            return
        if self._failed and not self._succeeded:
            self._messages.failed("every trial failed", **self._counts(trials))
        else:
            self._messages.done(**self._counts(trials))

    def _tell(self, trials: list[Any]) -> None:
        if self._messages is None:
            return
        over, failed = len(self._succeeded) + len(self._failed), f", {len(self._failed)} failed" if self._failed else ""
        if self._of is None:
            self._messages.progress(None, text=f"{over} {'trial' if over == 1 else 'trials'}{failed}")
        else:
            of = max(self._of, len(trials))
            self._messages.progress(over / of, text=f"{over} of {of} trials{failed}")

    def _counts(self, trials: list[Any]) -> dict[str, int]:
        return {"trials": len(trials), "succeeded": len(self._succeeded), "failed": len(self._failed)}
