"""Deaths and unhealthy applications as events."""

from __future__ import annotations

from engine.features.ray_events.core.exported import Death
from engine.features.ray_events.core.incidents import Unhealthy, event_of_death, unhealthy_apps
from engine.features.ray_events.core.jobs import Job

DEATH = Death("actor", "ab04000000", "04000000", "Trainer", "WORKER_DIED", "killed", 7)


def job(status: str) -> Job:
    return Job("train", "04000000", status, "python t.py", "", "", 1, 0, {"notify": "ann"})


def test_a_death_concerns_whom_its_job_names() -> None:
    event = event_of_death(DEATH, job("RUNNING"), "", ("ops",))
    assert event is not None
    assert (event.type, event.context, event.notify, event.at_ms) == ("ray.actor.died", "train", ("ann",), 7)
    assert event.data == {"job": "train", "actor": "Trainer", "reason": "WORKER_DIED", "detail": "killed"}


def test_a_death_after_the_end_of_its_job_is_no_news() -> None:
    assert [event_of_death(DEATH, job(status), "", ()) for status in ("FAILED", "SUCCEEDED", "STOPPED")] == [None] * 3


def test_a_death_without_a_known_job_concerns_operators() -> None:
    event = event_of_death(DEATH, None, "", ("ops",))
    assert event is not None
    assert (event.context, event.notify) == ("04000000", ("ops",))


def test_a_node_has_the_name_that_people_know() -> None:
    event = event_of_death(Death("node", "ab", "", "", "UNSPECIFIED", "", 7), None, "worker-3 (10.0.0.3)", ("ops",))
    assert event is not None
    assert (event.id, event.type, event.data["node"]) == ("ray.node.lost:ab", "ray.node.lost", "worker-3 (10.0.0.3)")


def test_an_unhealthy_application_says_which_deployment_it_is() -> None:
    details = {
        "applications": {
            "shop": {"status": "RUNNING", "deployments": {"Cart": {"status": "UNHEALTHY", "message": "no replica answers"}}},
            "blog": {"status": "DEPLOY_FAILED", "message": "no module", "deployments": {}},
            "wiki": {"status": "RUNNING", "deployments": {"Page": {"status": "HEALTHY"}}},
        }
    }
    assert list(unhealthy_apps(details)) == [
        Unhealthy("shop", "UNHEALTHY", "Cart: no replica answers"),
        Unhealthy("blog", "DEPLOY_FAILED", "no module"),
    ]
    assert list(unhealthy_apps({})) == []


def test_an_application_is_told_whose_error_names_a_file_in_no_unicode() -> None:
    details = {"applications": {"shop": {"status": "DEPLOY_FAILED", "message": "no file 'caf\udce9'", "deployments": {}}}}
    (app,) = unhealthy_apps(details)
    assert b"no file 'caf?'" in app.event(5, ()).body()


def test_an_incident_has_an_id_of_its_own_time() -> None:
    app = Unhealthy("shop", "UNHEALTHY", "")
    assert app.event(5, ()).id == app.event(5, ("x",)).id != app.event(6, ()).id
