"""Ids for notifications of Ray tasks: a task that Ray runs again makes the same ones, so that what it publishes is published once.

    <digest of Ray's session and the task's id>-<number>

Ray gives every attempt of a task the same id, and another one to every other task of the cluster's session; sessions count from the same
start, so the session is part of the digest. The number counts the ids that this attempt has asked for, in the order of the calls: a task
that publishes in another order the second time must give ids of its own. Each thread counts for itself, and Ray gives every thread that a
task starts a task id of its own, made at random.

A `TaskIds` makes random ids where a count would say nothing:

    in a driver                       Ray does not run it again
    in an event loop of an actor      its methods interleave in one thread, so that the order of calls is chance
    where this Ray cannot tell        which attempt it is; then a retried task may publish twice
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

import ray

from engine.publish.message_ids import MessageIds

_DIGEST_BYTES: Final = 16


class _Count(threading.local):
    """What a thread publishes for: the attempt, the beginning of its ids, and how many it has had."""

    attempt: tuple[str, int] | None = None
    prefix = ""
    number = 0


class TaskIds:
    """Call it for a new id, in the thread that publishes. One per process, `new_id`: two would count the same.

    Args:
        attempt: returns the id of the task that this thread runs and the number of its attempt; None where that says nothing.
    """

    def __init__(self, attempt: Callable[[], tuple[str, int] | None] | None = None) -> None:
        self._attempt = attempt or current_attempt
        self._random = MessageIds()
        self._lock = threading.Lock()  # of the random ones
        self._count = _Count()

    def __call__(self) -> str:
        attempt = self._attempt()
        if attempt is None:
            with self._lock:
                return self._random()
        count = self._count
        if attempt != count.attempt:
            count.attempt, count.number = attempt, 0
            count.prefix = blake2b(f"{_session()} {attempt[0]}".encode(), digest_size=_DIGEST_BYTES).hexdigest()
        count.number += 1
        return f"{count.prefix}-{count.number}"


def current_attempt() -> tuple[str, int] | None:
    """The id of the task that this thread runs, and the number of its attempt, from 0; None where the module says that ids are random.

    The attempt is in no public part of Ray 2.60.
    """
    try:
        from ray._private import worker

        process: Any = worker.global_worker
        if process.mode != worker.WORKER_MODE:
            return None
        context = ray.get_runtime_context()
        if context.get_actor_id() is not None and _in_event_loop():
            return None
        task = context.get_task_id()
        return None if task is None else (task, int(process.core_worker.get_current_task_attempt_number()))
    except (ImportError, AttributeError):
        return None


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _session() -> str:
    return str(ray.get_runtime_context().get_session_name())


new_id: Final = TaskIds()
"""Of this process."""
