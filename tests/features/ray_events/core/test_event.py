"""Events for the rules, and whom they concern."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.features.ray_events.core.event import NAME_CHARS_MAX, NOTIFIED_MAX, RayEvent, id_of, notified


def test_an_event_is_what_the_endpoint_of_events_takes() -> None:
    event = RayEvent("i", "ray.job.failed", "job-1", 5, ("ann",), {"took": "3 s"})
    assert json.loads(event.body()) == {
        "type": "ray.job.failed",
        "user": "ray",
        "id": "i",
        "context": "job-1",
        "ts": 5,
        "data": {"took": "3 s", "notify": ["ann"]},
    }


@given(st.text(), st.text())
def test_an_id_is_short_and_printable(name: str, start: str) -> None:
    id = id_of("ray.job.failed", name, start)
    assert len(id) <= NAME_CHARS_MAX
    assert id.isprintable()
    assert id.startswith("ray.job.failed:")


@pytest.mark.parametrize(
    ("notify", "users"),
    [("ann", ("ann",)), (" ann , bob,ann", ("ann", "bob")), ("", ("ops",)), (" , ", ("ops",)), ("a\nb", ("ops",)), ("x" * 129, ("ops",))],
)
def test_the_metadata_of_a_job_name_users_and_else_the_setting_does(notify: str, users: tuple[str, ...]) -> None:
    assert notified({"notify": notify}, ("ops",)) == users


def test_a_job_names_a_bounded_number_of_users() -> None:
    assert len(notified({"notify": ",".join(map(str, range(99)))}, ())) == NOTIFIED_MAX
