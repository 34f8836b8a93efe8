"""What Ray 2.60 exports: data/ray-2.60.json are events that it posted while a job killed its own actor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import Invalid
from engine.features.ray_events.core.exported import read_batch

EXPORTED = (Path(__file__).parent.parent / "data" / "ray-2.60.json").read_bytes()
AT = "2026-11-26T17:02:36.385434326Z"
NODE = "Q9cLvFcMObbpfcnF0b6ZOU33VJErJyjygoH+VA=="


def event(kind: str, **subject: Any) -> dict[str, Any]:
    name = kind.split("_", maxsplit=1)[0].lower()
    return {"eventId": "x", "eventType": kind, f"{name}LifecycleEvent": subject}


def node_event(state: str = "DEAD", **info: Any) -> dict[str, Any]:
    return event("NODE_LIFECYCLE_EVENT", nodeId=NODE, stateTransitions=[{"state": state, "timestamp": AT, "deathInfo": info}])


def actor_event(**cause: Any) -> dict[str, Any]:
    changes = [{"state": "DEAD", "timestamp": AT, "deathCause": cause}]
    return event("ACTOR_LIFECYCLE_EVENT", actorId="QtN+OD0Ukk/XLCowBAAAAA==", stateTransitions=changes)


def died(**context: Any) -> dict[str, Any]:
    return actor_event(actorDiedErrorContext={"className": "A"} | context)


def deaths(*events: Any) -> list[Any]:
    return read_batch(json.dumps(events).encode()).deaths


def test_a_killed_actor_is_the_only_news_of_a_whole_job() -> None:
    batch = read_batch(EXPORTED)
    assert (batch.count, batch.unreadable) == (len(json.loads(EXPORTED)), 0)
    (death,) = batch.deaths
    assert (death.kind, death.name, death.job, death.reason) == ("actor", "A", "04000000", "WORKER_DIED")
    assert death.id.endswith(death.job)
    assert death.at_ms == 1795712556385


def test_a_death_that_ray_tells_twice_is_one() -> None:
    dead = [one for one in json.loads(EXPORTED) if "SYSTEM_ERROR" in json.dumps(one) and "actorLifecycleEvent" in one]
    assert len({one["eventId"] for one in dead}) == 2
    assert len(deaths(*dead)) == 1


@pytest.mark.parametrize(
    "context",
    [
        {"reason": "RAY_KILL"},
        {"reason": "OUT_OF_SCOPE"},
        {"reason": "REF_DELETED"},
        {"reason": "OWNER_DIED"},
        {"reason": "WORKER_DIED", "errorMessage": "Worker exit type: INTENDED_USER_EXIT Worker exit detail: exit_actor() is called."},
        {"reason": "WORKER_DIED", "rayNamespace": "SUPERVISOR_ACTOR_RAY_NAMESPACE"},
    ],
)
def test_an_end_that_somebody_wanted_is_no_news(context: dict[str, Any]) -> None:
    assert deaths(died(**context)) == []


def test_each_other_cause_is_news_with_its_reason() -> None:
    found = {
        cause: deaths(actor_event(**{cause: {member: "text"}}))[0]
        for cause, member in {
            "creationTaskFailureContext": "formattedExceptionString",
            "runtimeEnvFailedContext": "errorMessage",
            "actorUnschedulableContext": "errorMessage",
            "oomContext": "errorMessage",
        }.items()
    }
    assert [death.reason for death in found.values()] == ["CREATION_TASK_FAILURE", "RUNTIME_ENV_FAILED", "ACTOR_UNSCHEDULABLE", "OOM"]
    assert {death.detail for death in found.values()} == {"text"}


@pytest.mark.parametrize(
    ("reason", "lost"),
    [
        ("UNEXPECTED_TERMINATION", True),
        ("AUTOSCALER_DRAIN_PREEMPTED", True),
        ("UNSPECIFIED", True),
        ("AUTOSCALER_DRAIN_IDLE", False),
        ("EXPECTED_TERMINATION", False),
    ],
)
def test_a_node_is_lost_unless_its_end_was_expected(reason: str, lost: bool) -> None:
    assert bool(deaths(node_event(reason=reason, reasonMessage="why"))) is lost


def test_a_node_that_lives_is_no_news() -> None:
    assert deaths(node_event("ALIVE")) == []


def test_a_worker_without_memory_belongs_to_its_job() -> None:
    info = {"exitType": "NODE_OUT_OF_MEMORY", "exitDetail": "killed"}
    changes = [{"state": "DEAD", "timestamp": AT, "deathInfo": info}]
    (death,) = deaths(event("WORKER_LIFECYCLE_EVENT", workerId=NODE, jobId="BAAAAA==", stateTransitions=changes))
    assert (death.kind, death.job, death.detail) == ("worker", "04000000", "killed")


def test_an_event_of_another_version_is_counted_and_hides_no_other() -> None:
    strange = event("NODE_LIFECYCLE_EVENT", nodeId=7, stateTransitions="?")
    batch = read_batch(json.dumps([strange, {"eventType": "NEW_KIND", "newKind": 1}, node_event(reason="UNSPECIFIED")]).encode())
    assert (len(batch.deaths), batch.unreadable, batch.count) == (1, 1, 3)


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'[{"event_type": "X"}]', b"[", b'[{"eventType": 1}]', b'[{"eventType": "\xff"}]'])
def test_a_body_that_is_no_array_of_events_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid, match="Event Export"):
        read_batch(body)


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_no_member_of_an_event_stops_a_batch(value: object) -> None:
    kinds = ("ACTOR", "NODE", "WORKER")
    events = [{"eventType": f"{kind}_LIFECYCLE_EVENT", f"{kind.lower()}LifecycleEvent": value} for kind in kinds]
    assert read_batch(json.dumps(events).encode()).deaths == []
