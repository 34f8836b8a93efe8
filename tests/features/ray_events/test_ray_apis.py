"""Answers of Ray that this release does not know end no task of the watcher."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from engine.errors import Unavailable
from engine.features.ray_events import ray_apis
from engine.features.ray_events.ray_apis import RayApis


@pytest.mark.parametrize("app", [1, {"status": "UNHEALTHY", "message": ["no", "text"]}])
def test_an_unknown_answer_of_serve_is_unavailable(app: Any) -> None:
    apis = RayApis()
    apis._serve = SimpleNamespace(get_serve_details=lambda: {"applications": {"shop": app}})
    with pytest.raises(Unavailable, match="Ray Serve"):
        apis.unhealthy_apps()


def test_unknown_jobs_and_nodes_are_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    apis = RayApis()
    apis._jobs = SimpleNamespace(list_jobs=lambda: [{"submission_id": "a", "start_time": "noon"}])
    with pytest.raises(Unavailable, match="Jobs API"):
        apis.jobs()
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": "n1"}])
    with pytest.raises(Unavailable, match="nodes"):
        apis.node_names()


async def test_a_dashboard_that_never_answers_is_asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that vanished closes no connection, and Ray's clients wait for ever."""
    monkeypatch.setattr(ray_apis, "_ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address=address))
        apis = RayApis()
        for ask in (apis.jobs, apis.unhealthy_apps):
            with pytest.raises(Unavailable, match="timed out"):
                await asyncio.wait_for(asyncio.to_thread(ask), 20)
