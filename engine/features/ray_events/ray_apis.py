"""Questions to the dashboard of the Ray cluster: its jobs by the Jobs API, the applications of Serve by its REST API, and its nodes.

`ray.job_submission` and `ray.nodes` are public. `ray.dashboard.modules.serve.sdk` is not: where another version of Ray lacks it, Serve is
not watched, and the log says so. Both APIs need `ray[default]`, here and on the head of the cluster. Every call blocks.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

import ray

from engine.errors import Unavailable
from engine.features.ray_events.core.incidents import Unhealthy, unhealthy_apps
from engine.features.ray_events.core.jobs import Job, job_of

log = logging.getLogger(__name__)

T = TypeVar("T")

_SERVE: Final = "ray.dashboard.modules.serve.sdk"
_ANSWER_S: Final = 60.0
"""Without a byte of an answer. Ray's clients have no bound: they would wait for ever for a head that vanished."""


class RayApis:
    """Of the cluster that this process belongs to. It finds the dashboard again after each failure."""

    def __init__(self) -> None:
        self._jobs: Any = None
        self._serve: Any = None
        self._serve_missing = False

    def connect(self) -> None:
        """Find the dashboard, unless it is known. Raises Unavailable."""
        self._ask_jobs(lambda _client: None)

    def jobs(self) -> list[Job]:
        """All jobs. Raises Unavailable."""
        return self._ask_jobs(lambda client: [job for details in client.list_jobs() if (job := _job(details)) is not None])

    def unhealthy_apps(self) -> list[Unhealthy]:
        """The unhealthy applications of Serve; none where this Ray has no Serve. Raises Unavailable."""
        if self._serve_missing:
            return []
        try:
            if self._serve is None:
                self._serve = _bounded(importlib.import_module(_SERVE).ServeSubmissionClient)(self._connected().get_address())
            details = self._serve.get_serve_details()
        except (ImportError, AttributeError) as error:
            self._serve_missing = True
            log.warning("applications of Ray Serve are not watched, since this version of Ray is unknown: %s", error)
            return []
        except Exception as error:
            self._serve = None
            raise Unavailable(f"the REST API of Ray Serve does not answer: {error}") from error
        try:
            return list(unhealthy_apps(details))
        except Exception as error:  # no public interface: jobs are followed, whatever another version answers
            raise Unavailable(f"the REST API of Ray Serve answers what this release cannot read: {error!r}") from error

    @staticmethod
    def node_names() -> dict[str, str]:
        """Host name and address of each node, lost ones included, by its id. Raises Unavailable."""
        try:
            nodes = ray.nodes()  # type: ignore[no-untyped-call]
            return {node["NodeID"]: f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})" for node in nodes}
        except Exception as error:
            raise Unavailable(f"Ray does not list its nodes: {error!r}") from error

    def _ask_jobs(self, question: Callable[[Any], T]) -> T:
        try:
            return question(self._connected())
        except Exception as error:  # of HTTP, of JSON, and RuntimeError for each other answer
            self._jobs = None
            raise Unavailable(f"Ray's Jobs API does not answer: {error}") from error

    def _connected(self) -> Any:
        """A client of the dashboard, which Ray finds by the address of the cluster."""
        if self._jobs is None:
            client = _bounded(importlib.import_module("ray.job_submission").JobSubmissionClient)
            self._jobs = client(ray.get_runtime_context().gcs_address)
        return self._jobs


def _job(details: Any) -> Job | None:
    return job_of(details.dict() if hasattr(details, "dict") else details)


def _bounded(client: Any) -> Any:
    """A class of Ray's clients whose requests end, also the first one, which its constructor makes."""

    class Bounded(client):  # type: ignore[misc]
        def _do_request(self, *arguments: Any, **named: Any) -> Any:
            return super()._do_request(*arguments, **{"timeout": _ANSWER_S} | named)

    return Bounded
