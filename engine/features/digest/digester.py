"""The model of the digest, outside the edge: a Ray actor of the edge's own, or a Ray Serve deployment in its place.

The interface is one method, `group(windows)`: windows of texts, and for each window a number for every text; the same number, the same
intent. Whatever is asked under `handle.group.remote(windows)` and can be awaited will do.

    none       --first question-->   starting   the question is answered by nobody: its digest is made by rules alone
    starting   --answers-->          ready
    ready      --dies-->             starting   Ray starts it again; questions meanwhile fail at once, or wait for the budget at most
    any        --cannot load-->      absent     nobody is asked for `_ABSENT_S`; `reason` says why

A handle of Ray Serve that fails or does not answer is dropped, and the next question finds a new one: Serve may have been started anew.

The actors belong to the edge that started them: nobody finds them by a name, and they end with the edge. A question that nobody answers
within `digest_model_ms` is given up, and the actor drops it: what waits there was asked by others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final

import ray

from engine.config import Config
from engine.features.actions.serve_targets import forget_controller
from engine.features.digest.text_groups import MISSING, ModelMissing, TextGroups

log = logging.getLogger(__name__)

_ABSENT_S: Final = 600.0
"""An extra that was installed meanwhile is found after this long, and an operator reads one line about it each time."""

SERVE: Final = "serve://"
"""Begins a `digest_model` that is a Ray Serve application."""

TextWindows = Sequence[Sequence[str]]


class Digester:
    """The actor. Its process loads the model when it starts."""

    def __init__(self) -> None:
        self._missing = ""
        try:
            self._model = TextGroups()
        except ModelMissing as error:
            self._missing = str(error)

    async def group(self, windows: TextWindows, until_s: float = 0.0) -> list[list[int]] | str:
        """The groups, or why there are none. `until_s`: not after this time, in seconds since the epoch; 0: whenever."""
        if self._missing:
            return self._missing
        if until_s and time.time() > until_s:
            return "asked too late"
        return self._model.group(windows)


class DigestModel:
    """The model, as an edge asks it.

    Args:
        config: which model, and its limits.
        start: makes the handle of one more actor; of Ray unless a test says otherwise.

    Attributes:
        reason: why the last question was not answered, "" when it was.
    """

    def __init__(self, config: Config, start: Callable[[], Any] | None = None) -> None:
        self._config = config
        self._start = start or (_serve_handle(config.digest_model) if config.digest_model else _start_actor)
        self._handles: list[Any] = []
        self._turns = count()
        self._under_way = 0
        self._absent_until_s = 0.0
        self._starting: asyncio.Task[None] | None = None
        self.reason = ""

    async def group(self, windows: TextWindows) -> list[list[int]] | None:
        """The groups of each window; None when nobody answers within `digest_model_ms`."""
        if self._under_way >= self._config.digest_model_calls_max or time.monotonic() < self._absent_until_s:
            return None
        self._under_way += 1
        try:
            async with asyncio.timeout(self._config.digest_model_ms / 1000):
                answer = await self._ask(windows)
            if isinstance(answer, str):
                self._fail(answer, absent=answer == MISSING)
                return None
            self.reason = ""
            return [[int(number) for number in window] for window in answer]
        except TimeoutError:
            self._fail(f"no answer within {self._config.digest_model_ms} ms")
        except Exception as error:  # of Ray, Ray Serve, or a model of somebody's own: whatever it is, the digest is made by rules
            self._fail(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        finally:
            self._under_way -= 1
        return None

    async def _ask(self, windows: TextWindows) -> Any:
        if len(self._handles) < (1 if self._config.digest_model else self._config.digest_model_actors):
            if self._starting is None or self._starting.done():
                self._starting = asyncio.ensure_future(self._add())
            await asyncio.shield(self._starting)
        handle = self._handles[next(self._turns) % len(self._handles)]
        if self._config.digest_model:
            return await handle.group.remote(windows)
        return await handle.group.remote(windows, time.time() + self._config.digest_model_ms / 1000)

    async def _add(self) -> None:
        """Add a handle. In a thread: Ray's client blocks."""
        self._handles.append(await asyncio.to_thread(self._start))

    def _fail(self, reason: str, *, absent: bool = False) -> None:
        if reason != self.reason:
            log.warning("the model of the digest: %s", reason)
        self.reason = reason
        if absent:
            self._absent_until_s = time.monotonic() + _ABSENT_S
        if absent or self._config.digest_model:
            self._handles.clear()


def _start_actor() -> Any:
    """A new actor, which ends with this process."""
    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": 0, "enable_task_events": False}
    return ray.remote(Digester).options(**options).remote()


def _serve_handle(model: str) -> Callable[[], Any]:
    def find() -> Any:
        from ray import serve

        forget_controller()
        return serve.get_app_handle(model.removeprefix(SERVE))

    return find
