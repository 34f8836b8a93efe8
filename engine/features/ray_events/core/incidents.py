"""Events for the rules from deaths that Ray exports, and from the state of Serve's applications."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from engine.features.ray_events.core.event import (
    ACTOR_DIED,
    NODE_LOST,
    SERVE_UNHEALTHY,
    WORKER_OUT_OF_MEMORY,
    RayEvent,
    id_of,
    notified,
    valid,
)
from engine.features.ray_events.core.exported import DETAIL_CHARS, Death
from engine.features.ray_events.core.jobs import Job

_TYPES: Final = {"actor": ACTOR_DIED, "node": NODE_LOST, "worker": WORKER_OUT_OF_MEMORY}
_UNHEALTHY: Final = frozenset({"UNHEALTHY", "DEPLOY_FAILED"})


def event_of_death(death: Death, job: Job | None, node_name: str, operators: Sequence[str]) -> RayEvent | None:
    """The event of a death; None where the end of its job tells it.

    Args:
        job: that it belongs to, where the newest list has it.
        node_name: of a node, as people know it; "" where Ray does not say.
        operators: users to notify of what belongs to no job.
    """
    if job is not None and job.has_ended:
        return None
    context = death.job if job is None else job.name
    data = {
        "job": context,
        death.kind: death.name or node_name or death.id,
        "reason": death.reason,
        "detail": death.detail,
    }
    users = notified({} if job is None else job.metadata, operators)
    return RayEvent(id_of(_TYPES[death.kind], death.id), _TYPES[death.kind], context, death.at_ms, users, data)


class Unhealthy(Struct, frozen=True):
    """An application of Serve that does not serve as it should."""

    app: str
    status: str
    detail: str

    def event(self, since_ms: int, operators: Sequence[str]) -> RayEvent:
        """The event of an incident that was first seen at this time."""
        data = {"app": self.app, "reason": self.status, "detail": self.detail}
        return RayEvent(id_of(SERVE_UNHEALTHY, self.app, str(since_ms)), SERVE_UNHEALTHY, "", since_ms, tuple(operators), data)


def unhealthy_apps(details: Mapping[str, Any]) -> Iterator[Unhealthy]:
    """The unhealthy applications of what `GET /api/serve/applications/` answers (`ServeInstanceDetails`)."""
    for name, app in (details.get("applications") or {}).items():
        faults = [
            f"{deployment}: {row.get('message') or row['status']}"
            for deployment, row in (app.get("deployments") or {}).items()
            if row.get("status") in _UNHEALTHY
        ]
        if app.get("status") in _UNHEALTHY or faults:
            status = app["status"] if app.get("status") in _UNHEALTHY else "UNHEALTHY"
            detail = "\n".join(filter(None, (app.get("message") or "", *faults)))
            yield Unhealthy(valid(name), status, valid(detail[:DETAIL_CHARS]))
