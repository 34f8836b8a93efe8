"""The ends of jobs are found once each, whatever restarts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.features.ray_events.core.jobs import (
    HORIZON_MS,
    LOG_CHARS,
    LOG_LINES,
    MISSED,
    FollowedJobs,
    Job,
    Running,
    decode_running,
    encode_running,
    job_of,
    last_lines,
)

NOW = 1_800_000_000_000

# As Ray 2.60 answers `GET /api/jobs/`.
FAILED = {
    "type": "SUBMISSION",
    "job_id": "03000000",
    "submission_id": "raysubmit_uMQ",
    "status": "FAILED",
    "entrypoint": "python boom.py",
    "message": "Job entrypoint command failed with exit code 1, last available logs (truncated to 20,000 chars):\n"
    "about to fail\nTraceback (most recent call last):\n\x1b[32mRuntimeError: kaboom\x1b[39m\n",
    "error_type": "JOB_ENTRYPOINT_COMMAND_ERROR",
    "start_time": 1795712548566,
    "end_time": 1795712552480,
    "metadata": {"notify": "ann"},
}


def job(name: str, status: str = "RUNNING", start_ms: int = NOW, end_ms: int = 0, **metadata: str) -> Job:
    return Job(name, f"ray-{name}", status, "python x.py", "", "", start_ms, end_ms, metadata)


def followed(horizon_ms: int = NOW, told: Sequence[str] = (), running: dict[str, Running] | None = None) -> FollowedJobs:
    return FollowedJobs(horizon_ms, told, running or {}, ("ops",))


def test_a_failed_job_tells_its_owner_the_last_lines_of_its_log() -> None:
    read = job_of(FAILED)
    assert read is not None
    (ended,) = followed(0).look([read], NOW).ended
    assert (ended.event.type, ended.event.notify, ended.event.context) == ("ray.job.failed", ("ann",), "raysubmit_uMQ")
    assert ended.event.id == "ray.job.failed:raysubmit_uMQ:1795712548566"
    assert ended.event.data["log"] == "about to fail\nTraceback (most recent call last):\nRuntimeError: kaboom"
    assert (ended.event.data["took"], ended.event.data["long"], ended.event.data["reason"]) == (
        "3 s",
        False,
        "JOB_ENTRYPOINT_COMMAND_ERROR",
    )


def test_a_job_whose_command_is_no_unicode_is_told_like_others() -> None:
    """Python writes other bytes of a command line as lone surrogates, which JSON of Python takes, and no other one."""
    read = job_of(FAILED | {"submission_id": "caf\udce9", "entrypoint": "python caf\udce9.py", "error_type": "\udce9"})
    assert read is not None
    assert read.key.encode() == b"caf?:1795712548566"
    assert b"python caf?.py" in encode_running(followed().look([msgspec.structs.replace(read, status="RUNNING")], NOW).began[read.key])
    assert b"python caf?.py" in followed(0).look([read], NOW).ended[0].event.body()


def test_a_driver_is_followed_when_its_metadata_name_whom_to_notify() -> None:
    driver = {"type": "DRIVER", "job_id": "05000000", "submission_id": None, "status": "RUNNING", "metadata": None}
    assert job_of(driver) is None
    named = job_of(driver | {"metadata": {"notify": "ann"}})
    assert named is not None
    assert named.name == "05000000"


def test_an_end_before_the_feature_was_switched_on_is_not_told() -> None:
    assert followed(NOW).look([job("a", "FAILED", NOW - 9, NOW - 1)], NOW).ended == []


def test_a_job_that_was_seen_running_is_told_whenever_it_ended() -> None:
    jobs = followed(NOW)
    seen = jobs.look([job("a", notify="ann")], NOW)
    jobs.stored_running(seen.began)
    (ended,) = jobs.look([job("a", "SUCCEEDED", NOW, NOW - 5)], NOW + 1).ended  # the clock of its node is behind
    assert ended.event.type == "ray.job.finished"


def test_the_same_list_says_the_same_until_it_is_stored() -> None:
    jobs, ended = followed(), [job("a", "FAILED", NOW, NOW + 1)]
    assert jobs.look(ended, NOW) == jobs.look(ended, NOW)
    jobs.stored_told("a:1800000000000")
    assert jobs.look(ended, NOW).ended == []


def test_an_id_that_is_given_again_is_another_job() -> None:
    jobs = followed(NOW, told=[job("a").key])
    assert len(jobs.look([job("a", "FAILED", NOW + 5, NOW + 9)], NOW).ended) == 1


def test_a_running_job_that_its_cluster_forgot_is_told_as_lost() -> None:
    jobs = followed(running={job("a").key: Running("a", "python x.py", NOW, ("ann",))})
    found = [jobs.look([], NOW + 60_000).ended for _ in range(MISSED)]
    assert [len(ended) for ended in found] == [0] * (MISSED - 1) + [1]
    assert (found[-1][0].event.type, found[-1][0].event.notify) == ("ray.job.lost", ("ann",))


def test_one_list_without_a_job_loses_nothing() -> None:
    jobs = followed(running={job("a").key: Running("a", "python x.py", NOW, ("ann",))})
    for _ in range(3 * MISSED):
        assert jobs.look([], NOW).ended == []
        assert jobs.look([job("a")], NOW).ended == []


def test_the_earliest_end_is_told_first() -> None:
    ended = followed().look([job("b", "FAILED", NOW, NOW + 2), job("a", "STOPPED", NOW, NOW + 1)], NOW).ended
    assert [one.event.type for one in ended] == ["ray.job.stopped", "ray.job.failed"]


def test_a_job_says_after_which_time_its_end_is_news() -> None:
    def is_long(took_s: int, **metadata: str) -> bool:
        (ended,) = followed(0).look([job("a", "SUCCEEDED", NOW, NOW + 1000 * took_s, **metadata)], NOW).ended
        return bool(ended.event.data["long"])

    assert [is_long(299), is_long(300)] == [False, True]
    assert [is_long(0, notify_after_s="0"), is_long(9, notify_after_s="10"), is_long(400, notify_after_s="x")] == [True, False, True]


def test_a_running_job_is_stored_and_read_again() -> None:
    running = Running("a", "python x.py", NOW, ("ann", "bob"))
    assert decode_running(encode_running(running)) == running


@given(st.text())
def test_the_log_is_bounded_and_printable(message: str) -> None:
    lines = last_lines(message)
    assert len(lines) <= LOG_CHARS
    assert len(lines.splitlines()) <= LOG_LINES
    assert all(sign.isprintable() or sign in "\n\t" for sign in lines)


class Restarts(RuleBasedStateMachine):
    """Jobs run and end, watchers and clusters restart at any step, and time passes. Each end is told once."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = NOW
        self.cluster: dict[str, Job] = {}
        self.lost: set[str] = set()
        self.ended: set[str] = set()
        self.told: list[str] = []
        self.stored: tuple[int, dict[str, int], dict[str, Running]] = (NOW, {}, {})
        self.count = 0
        self.restart_of_the_watcher()

    @rule()
    def restart_of_the_watcher(self) -> None:
        horizon_ms, told, running = self.stored
        self.jobs = FollowedJobs(horizon_ms, told, running, ())

    @rule()
    def submit(self) -> None:
        self.count += 1
        one = job(f"j{self.count}", start_ms=self.now_ms)
        self.cluster[one.key] = one

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if running := [key for key, one in self.cluster.items() if not one.has_ended]:
            key = data.draw(st.sampled_from(running))
            self.cluster[key] = job(self.cluster[key].name, "FAILED", self.cluster[key].start_ms, self.now_ms)
            self.ended.add(key)

    @rule()
    def restart_of_the_cluster(self) -> None:
        """It forgets everything. Only what a list has shown as running is then known to be lost."""
        self.lost |= self.stored[2].keys()
        self.ended = {key for key in self.ended if key in self.told or key in self.stored[2]}
        self.cluster = {}
        self.restart_of_the_watcher()

    @rule(hours=st.integers(0, 30), stored=st.integers(0, 9))
    def look(self, hours: int, stored: int) -> None:
        """A list; the watcher dies after it has stored so many of its ends."""
        self.now_ms += hours * 3_600_000 + 1
        for _ in range(MISSED):
            seen = self.jobs.look(list(self.cluster.values()), self.now_ms)
            horizon_ms, told, running = self.stored
            running = running | seen.began
            self.stored = horizon_ms, told, running
            self.jobs.stored_running(seen.began)
            for one in seen.ended[:stored]:
                self.told.append(one.key)
                told = told | {one.key: one.end_ms}
                running = {key: value for key, value in running.items() if key != one.key}
                self.jobs.stored_told(one.key)
            self.stored = horizon_ms, told, running
            if len(seen.ended) > stored:
                self.restart_of_the_watcher()
                return
            horizon_ms = self.jobs.next_horizon(self.now_ms)
            told = {key: end_ms for key, end_ms in told.items() if end_ms >= horizon_ms}
            self.stored = horizon_ms, told, running
            self.jobs.stored_horizon(horizon_ms, told)

    @invariant()
    def each_is_told_once(self) -> None:
        assert len(self.told) == len(set(self.told))
        assert set(self.told) <= self.ended | self.lost

    def teardown(self) -> None:
        for _ in range(MISSED + 1):
            self.look(0, 99)
        assert self.ended | self.lost <= set(self.told)
        self.each_is_told_once()


TestRestarts = Restarts.TestCase


def test_the_horizon_never_moves_back() -> None:
    jobs = followed(NOW)
    assert jobs.next_horizon(NOW + HORIZON_MS - 1) == NOW
    assert jobs.next_horizon(NOW + HORIZON_MS + 1) == NOW + 1


def test_a_death_before_its_job_began_belongs_to_an_earlier_cluster() -> None:
    """Each cluster gives the ids of jobs anew, from 1 on."""
    followed = FollowedJobs(0, [], {}, ())
    job = Job("train", "01000000", "RUNNING", "python t.py", "", "", 50, 0, {"notify": "ann"})
    followed.look([job], 60)
    assert followed.job_of("01000000", 49) is None
    assert followed.job_of("01000000", 50) == job
