"""The ends of jobs, each told once, found by comparing lists of all jobs with what was found before.

States of a job, by its key, which is its id and its start
    unknown    not seen
    running    seen before its end, and stored with whom to notify
    ended      the list says so; its event is to be sent
    told       its event was accepted, and stored so
    settled    it ended before the horizon: it was told, or ended before the feature was first switched on

A list that lacks a running job three times in a row says that its cluster has lost it: Ray deletes ended jobs only. The horizon follows a
day behind the newest list whose ends are all told. So a watcher that comes back after a week tells the ends of that week, and no others.
The clocks of Ray's nodes and of the watcher may differ by less than that day.

Crash points. Between an accepted event and its storing as told: the next watcher sends it again under the same id, which changes nothing.
Before a running job is stored: the next list has it again, unless its cluster was lost in that second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from engine.features.ray_events.core.event import JOB_FAILED, JOB_FINISHED, JOB_LOST, JOB_STOPPED, RayEvent, id_of, notified, valid

HORIZON_MS: Final = 86_400_000
"""As long as the engine remembers the ids of events (`idempotency_caller_s`)."""

MISSED: Final = 3
"""Lists in a row that lack a running job, after which it is lost."""

LONG_S: Final = 300
"""A job that took longer is `long`, unless its metadata say otherwise (`notify_after_s`): nobody waited beside it."""

LOG_LINES: Final = 20
LOG_CHARS: Final = 2000
_ENTRYPOINT_CHARS: Final = 300

_TYPES: Final = {"FAILED": JOB_FAILED, "SUCCEEDED": JOB_FINISHED, "STOPPED": JOB_STOPPED}
_STYLE: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LOGS_FOLLOW: Final = "last available logs (truncated to 20,000 chars):\n"
_LOST: Final = "its Ray cluster has ended and does not know it any more"


class Job(Struct, frozen=True):
    """One job, as the list has it.

    Attributes:
        name: the id under which it was submitted; of a driver that connected by itself, its id in Ray.
        ray_id: id in Ray, "" while it has none.
        status: of Ray: PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED.
        start_ms: 0 where Ray does not say.
        end_ms: 0 while it runs.
    """

    name: str
    ray_id: str
    status: str
    entrypoint: str
    message: str
    error: str
    start_ms: int
    end_ms: int
    metadata: Mapping[str, str]

    @property
    def key(self) -> str:
        """An id may be given again, to a job that starts later."""
        return f"{self.name}:{self.start_ms}"

    @property
    def has_ended(self) -> bool:
        """Whether its status is a last one."""
        return self.status in _TYPES


class Running(Struct, frozen=True):
    """A job that was seen before its end, as it is stored.

    Attributes:
        name: as of the job.
        entrypoint: its command.
        start_ms: of the job.
        notify: users to notify.
    """

    name: str
    entrypoint: str
    start_ms: int
    notify: tuple[str, ...]


_RUNNING: Final = msgspec.json.Decoder(Running)


def encode_running(job: Running) -> bytes:
    """For `decode_running`."""
    return msgspec.json.encode(job)


def decode_running(packed: bytes) -> Running:
    """A stored job. Raises msgspec.MsgspecError."""
    return _RUNNING.decode(packed)


def job_of(details: Mapping[str, Any]) -> Job | None:
    """A job of the Jobs API's `JobDetails`, by its members. None: a driver that connected by itself and names nobody to notify."""
    metadata = {str(name): str(value) for name, value in (details.get("metadata") or {}).items()}
    name = details.get("submission_id") or ""
    if not name:
        if "notify" not in metadata:
            return None
        name = details.get("job_id") or ""
    return Job(
        valid(name),
        valid(details.get("job_id")),
        _text(details.get("status")),
        valid(details.get("entrypoint")),
        valid(details.get("message")),
        valid(details.get("error_type")),
        int(details.get("start_time") or 0),
        int(details.get("end_time") or 0),
        metadata,
    )


class JobEnd(Struct, frozen=True):
    """A job whose end is to be told, and then stored as told."""

    key: str
    end_ms: int
    event: RayEvent


class JobsSeen(Struct, frozen=True):
    """What one list says: jobs to store as running, by key, and ends to tell, the earliest first."""

    began: dict[str, Running]
    ended: list[JobEnd]


class FollowedJobs:
    """What was found until now, in memory; the caller stores each change before it makes it here.

    Args:
        horizon_ms: see the module's text.
        told: keys of the jobs told since the horizon.
        running: stored running jobs by key.
        otherwise: users to notify of jobs whose metadata name nobody.
    """

    def __init__(self, horizon_ms: int, told: Iterable[str], running: Mapping[str, Running], otherwise: Sequence[str]) -> None:
        self.horizon_ms = horizon_ms
        self.told = set(told)
        self.running = dict(running)
        self.ray_ids: dict[str, Job] = {}  # jobs of the newest list by their id in Ray
        self._otherwise = otherwise
        self._missed: dict[str, int] = {}

    def look(self, jobs: Sequence[Job], now_ms: int) -> JobsSeen:
        """Compare a list of all jobs with what was found before. The same list again says the same, until it is stored."""
        self.ray_ids = {job.ray_id: job for job in jobs if job.ray_id}
        began: dict[str, Running] = {}
        ended: list[JobEnd] = []
        for job in jobs:
            if job.key in self.told:
                continue
            if not job.has_ended:
                if job.key not in self.running:
                    began[job.key] = Running(
                        job.name, job.entrypoint[:_ENTRYPOINT_CHARS], job.start_ms, notified(job.metadata, self._otherwise)
                    )
            elif job.key in self.running or (job.end_ms or job.start_ms) >= self.horizon_ms:
                end_ms = job.end_ms or job.start_ms
                ended.append(JobEnd(job.key, end_ms, _event_of_end(job, end_ms, notified(job.metadata, self._otherwise))))
        there = {job.key for job in jobs}
        self._missed = {key: self._missed.get(key, 0) + 1 for key in self.running if key not in there}
        for key, times in self._missed.items():
            if times >= MISSED:
                ended.append(JobEnd(key, now_ms, _event_of_loss(self.running[key], now_ms)))
        ended.sort(key=lambda one: (one.end_ms, one.key))
        return JobsSeen(began, ended)

    def stored_running(self, began: Mapping[str, Running]) -> None:
        self.running |= began

    def stored_told(self, key: str) -> None:
        self.told.add(key)
        self.running.pop(key, None)

    def next_horizon(self, now_ms: int) -> int:
        """Where the horizon may be once everything that a list of this time says is told."""
        return max(self.horizon_ms, now_ms - HORIZON_MS)

    def stored_horizon(self, horizon_ms: int, told: Iterable[str]) -> None:
        """The horizon is stored, and these jobs are still stored as told."""
        self.horizon_ms = horizon_ms
        self.told = set(told)

    def job_of(self, ray_id: str, at_ms: int) -> Job | None:
        """The job that has this id in Ray, by the newest list; None where it began after this time.

        Each cluster counts its jobs from 1, and news of an earlier one may wait. Both times are by the clock of Ray's head.
        """
        job = self.ray_ids.get(ray_id)
        return None if job is None or at_ms < job.start_ms else job


def last_lines(message: str) -> str:
    """The end of the log that Ray puts into the message of a failed job, without colours."""
    log = message.partition(_LOGS_FOLLOW)[2] or message
    lines = _STYLE.sub("", log).rstrip().splitlines()[-LOG_LINES:]
    text = "\n".join(line.rstrip() for line in lines)
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "\N{REPLACEMENT CHARACTER}" for sign in text)[-LOG_CHARS:]


def _event_of_end(job: Job, end_ms: int, users: tuple[str, ...]) -> RayEvent:
    took_s = max(end_ms - job.start_ms, 0) // 1000 if job.start_ms else 0
    data = {
        "job": job.name,
        "entrypoint": job.entrypoint[:_ENTRYPOINT_CHARS],
        "took_s": took_s,
        "took": _duration(took_s),
        "long": took_s >= _long_s(job.metadata),
        "reason": job.error,
        "log": last_lines(job.message) if job.status == "FAILED" else "",
    }
    type = _TYPES[job.status]
    return RayEvent(id_of(type, job.name, str(job.start_ms)), type, job.name, end_ms, users, data)


def _event_of_loss(job: Running, now_ms: int) -> RayEvent:
    took_s = max(now_ms - job.start_ms, 0) // 1000 if job.start_ms else 0
    data = {
        "job": job.name,
        "entrypoint": job.entrypoint,
        "took_s": took_s,
        "took": _duration(took_s),
        "long": True,
        "reason": "JOB_LOST",
        "log": _LOST,
    }
    return RayEvent(id_of(JOB_LOST, job.name, str(job.start_ms)), JOB_LOST, job.name, now_ms, job.notify, data)


def _long_s(metadata: Mapping[str, str]) -> float:
    try:
        return max(float(metadata.get("notify_after_s", LONG_S)), 0.0)
    except ValueError:
        return LONG_S


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _text(status: Any) -> str:
    """The name of a status: the API answers with an enumeration of texts."""
    return str(getattr(status, "value", status) or "")
