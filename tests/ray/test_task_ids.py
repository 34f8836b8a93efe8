"""Ids that a retried task makes again, and nobody else."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from ray._private import worker

from engine.ray import task_ids
from engine.ray.task_ids import TaskIds, current_attempt


class Task:
    """What a thread runs, as Ray would tell it."""

    def __init__(self) -> None:
        self.now: tuple[str, int] | None = ("a" * 48, 0)

    def __call__(self) -> tuple[str, int] | None:
        return self.now


@pytest.fixture(autouse=True)
def session(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names = ["session_1"]
    monkeypatch.setattr(task_ids, "_session", lambda: names[0])
    return names


def test_another_attempt_makes_the_same_ids_also_in_the_same_process() -> None:
    task = Task()
    ids = TaskIds(task)
    first = [ids() for _ in range(3)]
    task.now = ("a" * 48, 1)
    assert [ids() for _ in range(3)] == first
    assert len(set(first)) == 3


def test_another_task_and_another_session_make_others(session: list[str]) -> None:
    task = Task()
    ids = TaskIds(task)
    made = {ids()}
    task.now = ("b" * 48, 0)
    made.add(ids())
    session[0] = "session_2"  # of a cluster that started again, and counts its tasks from the start
    made.add(TaskIds(task)())
    assert len(made) == 3


def test_threads_count_for_themselves() -> None:
    seen: list[str] = []
    mine = threading.local()
    tasks = iter(("b" * 48, "c" * 48))

    def task() -> tuple[str, int]:
        mine.id = getattr(mine, "id", None) or next(tasks)
        return mine.id, 0

    ids = TaskIds(task)
    threads = [threading.Thread(target=lambda: seen.extend(ids() for _ in range(100))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 200
    assert {id_.rpartition("-")[2] for id_ in seen} == {str(number) for number in range(1, 101)}


def test_where_ray_says_nothing_ids_are_random() -> None:
    task = Task()
    task.now = None
    ids = TaskIds(task)
    assert len({ids() for _ in range(100)}) == 100
    assert current_attempt() is None, "outside of a worker"


def test_a_ray_without_the_private_parts_makes_them_random(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare:
        mode = worker.WORKER_MODE

    class Context:
        def get_actor_id(self) -> None: ...

        def get_task_id(self) -> str:
            return "a" * 48

    def context() -> Any:
        return Context()

    monkeypatch.setattr(worker, "global_worker", Bare())
    monkeypatch.setattr(task_ids.ray, "get_runtime_context", context)
    assert current_attempt() is None
    monkeypatch.delattr(worker, "global_worker")
    assert current_attempt() is None


def test_this_ray_has_the_private_parts() -> None:
    from ray._raylet import CoreWorker

    assert isinstance(worker.WORKER_MODE, int)
    assert hasattr(worker.global_worker, "mode")
    assert callable(CoreWorker.get_current_task_attempt_number)
