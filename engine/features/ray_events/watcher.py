"""The watcher actor: follows jobs, deaths and Serve of the Ray cluster, and gives what happens to an edge, as events for the rules.

    Jobs API        --list, every second-->  FollowedJobs --ends-->        |
    Event Export    --edges--> stream -->    Death --incidents-->          | RayEvent --Edge.ingest--> rules --> notifications
    REST of Serve   --every 5 s-->           Unhealthy --incidents-->      |

There is one, where `ray_events` is set; `engine.actors.feature_process` is its shell. What it has told is stored (`store`), after an edge
has accepted the event and before anything else is told. So an event is told at least once, always under the same id, by which the engine
makes one notification of it. `core.jobs` has the states of a job.

States of a death
    arrived    an edge has it in the stream, and answered Ray
    told       its event was accepted; then its entry is deleted
States of an application's incident
    seen       stored with the time, of which its id is made
    told       its event was accepted, and stored so; deleted when the application is healthy again

Crash points. The watcher or the edge dies after the acceptance, before the storing: the event is sent again, under the same id. Ray loses
the answer of an edge: it posts the batch again, and the same deaths have the same ids. The cluster restarts, and the engine with it: jobs
that ran are lost, and told so, once; ended ones are stored as told or lie before the horizon. The dashboard is away: jobs end meanwhile,
and are told when it is back. Redis is away: nothing is told, and nothing is forgotten. Two watchers run at once, such as one on a node that
was given up: both send the same events under the same ids.

An answer of 429 or 5xx, or no edge: the watcher waits, and sends the event again. It sends the others first, since an event may be refused
for whom it is: the tenant has no room for a new user, say. One that is refused otherwise is logged, counted and taken as told: sent again,
it would be refused again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

from engine.api.actor_feature import ActorPorts, EdgePublisher, Work
from engine.config import Config
from engine.core.model.period import until_next
from engine.errors import StorageUnavailable, Unavailable
from engine.features.ray_events.core.event import RayEvent
from engine.features.ray_events.core.exported import Death
from engine.features.ray_events.core.incidents import Unhealthy, event_of_death
from engine.features.ray_events.core.jobs import FollowedJobs, Job, JobEnd
from engine.features.ray_events.ray_apis import RayApis
from engine.features.ray_events.store import RayEventsStore

log = logging.getLogger(__name__)

T = TypeVar("T")

_PATH: Final = "/v1/events"
_JOBS_S: Final = 1.0
"""Between two lists of jobs. A list of 1000 ended jobs takes Ray some 50 ms."""
_PATIENCE: Final = 10
"""Between two lists passes so many times as long as a list took, so that a large cluster is not asked all the time."""
_PATIENCE_CAP_S: Final = 10.0
"""Of that pause: one list that was slow, as on a machine that is busy for a while, holds up no end for longer."""
_DEATHS_S: Final = 0.5
_DEATHS: Final = 20
_DEATHS_MANY: Final = 1000
"""Entries of the stream read at once, and while an edge refuses some of them for now."""
_AWAY_S: Final = 60.0
"""Without a list while the Jobs API fails, after which deaths in jobs are told without: to the operators, where no list has their job."""
_SERVE_S: Final = 5.0
_RETRY_FIRST_S: Final = 0.5
_RETRY_CAP_S: Final = 10.0
_BATCH: Final = 50
"""Events in one call of an edge."""
_AGAIN: Final = (401, 403, 408, 429)
_OVERLOADED: Final = 3
"""Events in a row that an edge refuses for now, after which the others wait too."""
_SHOWN_CHARS: Final = 500
_HORIZON_STEP_MS: Final = 600_000


class Apis(Protocol):
    """Of Ray, see `engine.features.ray_events.ray_apis`."""

    def connect(self) -> None: ...

    def jobs(self) -> list[Job]: ...

    def unhealthy_apps(self) -> list[Unhealthy]: ...

    def node_names(self) -> dict[str, str]: ...


class Watcher(Work):
    """The work of the watcher's process.

    Args:
        now_ms: the wall clock.
    """

    def __init__(self, now_ms: Callable[[], int], apis: Apis | None = None) -> None:
        self._now_ms = now_ms
        self._apis: Apis = RayApis() if apis is None else apis
        self._asking = ThreadPoolExecutor(2, "ray")
        self._told = 0
        self._taken = set[str]()  # ids of events that an edge has, and that are not stored as told yet
        self._late = dict[str, None]()  # ids of events that an edge refused for now, the last one last: they are sent in this order
        self._refused = 0
        self._running = 0
        self._faults: dict[str, str] = {"jobs": "not asked yet"}
        self._config: Config
        self._store: RayEventsStore
        self._edges: EdgePublisher
        self._followed: FollowedJobs | None = None  # None until storage has told what was found before
        self._listed = asyncio.Event()  # set, and replaced, with each list of jobs
        self._listed_s = time.monotonic()
        self._failing = False  # the Jobs API, since the last list

    # -- what its process asks ---------------------------------------------------------------------------------------------
    def stats(self) -> dict[str, Any]:
        """Gauges and counters by name, from memory."""
        return {
            "state": "; ".join(f"{part}: {fault}" for part, fault in self._faults.items() if fault) or "ok",
            "told": self._told,
            "refused": self._refused,
            "running_jobs": self._running,
            "waiting": int(any(self._faults.values())),
        }

    async def run(self, ports: ActorPorts) -> None:
        """Watch until cancelled."""
        self._config = ports.config
        self._store = RayEventsStore(ports.redis, ports.config)
        self._edges = ports.edges
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat("jobs", self._follow_jobs, _JOBS_S))
            tasks.create_task(self._repeat("deaths", self._tell_deaths, _DEATHS_S))
            tasks.create_task(self._repeat("serve", self._watch_serve, _SERVE_S))

    async def _repeat(self, part: str, work: Callable[[], Awaitable[float]], period_s: float) -> None:
        """Work at multiples of the period, with a pause that is as long as the work says at least; after failures with growing ones."""
        wait_s = _RETRY_FIRST_S
        task = asyncio.current_task()
        while task is None or not task.cancelling():  # the driver of Redis may swallow the cancellation
            try:
                pause_s = await work()
            except (StorageUnavailable, Unavailable) as error:
                if self._faults.get(part) != str(error):
                    log.warning("the watcher waits: %s", error)
                self._faults[part] = str(error)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _RETRY_CAP_S)
                continue
            self._faults[part] = ""
            wait_s = _RETRY_FIRST_S
            await asyncio.sleep(max(until_next(time.monotonic(), period_s), pause_s))

    # -- jobs --------------------------------------------------------------------------------------------------------------
    async def _follow_jobs(self) -> float:
        """Look at one list of all jobs; how long to pause at least."""
        now_ms = self._now_ms()
        if self._followed is None:
            stored = await self._store.jobs(now_ms)
            self._followed = FollowedJobs(stored.horizon_ms, stored.told, stored.running, self._config.ray_events_users)
        followed = self._followed
        jobs, took_s = await self._list_jobs()
        seen = followed.look(jobs, now_ms)
        listed, self._listed = self._listed, asyncio.Event()
        listed.set()
        if seen.began:
            await self._store.set_running(seen.began)
            followed.stored_running(seen.began)
        fault = await self._tell_ends(followed, seen.ended)
        self._running = len(followed.running)
        if fault:
            raise Unavailable(fault)
        horizon_ms = followed.next_horizon(now_ms)
        if horizon_ms - followed.horizon_ms >= _HORIZON_STEP_MS:
            stored = await self._store.move_horizon(horizon_ms)
            followed.stored_horizon(stored.horizon_ms, stored.told)
        return min(_PATIENCE * took_s, _PATIENCE_CAP_S)

    async def _tell_ends(self, followed: FollowedJobs, ends: Sequence[JobEnd]) -> str:
        """Tell these ends, and store which are told; why not all are, "" when they are."""
        late = {id: place for place, id in enumerate(self._late, 1)}
        left, fault = sorted(ends, key=lambda one: late.get(one.event.id, 0)), ""
        for start in range(0, len(left), _BATCH):
            some = left[start : start + _BATCH]
            fault = await self._tell([one.event for one in some]) or fault
            told = [one for one in some if one.event.id in self._taken]
            for one in told:
                await self._store.set_told(one.key, one.end_ms)
                self._taken.discard(one.event.id)
                followed.stored_told(one.key)
            if not told:
                break
        return fault

    async def _list_jobs(self) -> tuple[list[Job], float]:
        """All jobs, and how long the dashboard took for them, in seconds. Raises Unavailable."""
        try:
            await self._ask(self._apis.connect)  # once, it imports packages and looks for the dashboard
            began_s = time.monotonic()
            jobs = await self._ask(self._apis.jobs)
        except Unavailable:
            self._failing = True
            raise
        self._failing, self._listed_s = False, time.monotonic()
        return jobs, self._listed_s - began_s

    # -- deaths ------------------------------------------------------------------------------------------------------------
    async def _tell_deaths(self) -> float:
        """Tell what is in the stream: first what belongs to no job, which waits for no list of them."""
        while (followed := self._followed) is not None:
            # Many where an edge refuses some for now: the others are behind those.
            if not (entries := await self._store.waiting(_DEATHS_MANY if self._late else _DEATHS)):
                break
            deaths = [death for _, found in entries for death in found]
            events = await self._events_of(followed, [death for death in deaths if not death.job])
            fault = await self._tell([*events.values()])
            if of_jobs := [death for death in deaths if death.job]:
                await self._list_after()
                events |= (later := await self._events_of(followed, of_jobs))
                fault = await self._tell([*later.values()]) or fault
            waiting = {death for death, event in events.items() if event.id not in self._taken}
            told = [id for id, found in entries if waiting.isdisjoint(found)]
            if told:
                await self._store.settle(told)
            kept = {death for _, found in entries if not waiting.isdisjoint(found) for death in found}
            self._taken.difference_update(event.id for death, event in events.items() if death not in kept)
            if fault:
                raise Unavailable(fault)
        return 0.0

    async def _events_of(self, followed: FollowedJobs, deaths: Sequence[Death]) -> dict[Death, RayEvent]:
        """The events of these deaths, but of those that the end of a job tells."""
        nodes = await self._ask(self._apis.node_names) if any(death.kind == "node" for death in deaths) else {}
        users = self._config.ray_events_users
        made = {death: event_of_death(death, followed.job_of(death.job, death.at_ms), nodes.get(death.id, ""), users) for death in deaths}
        return {death: event for death, event in made.items() if event is not None}

    async def _list_after(self) -> None:
        """Wait for a list of jobs that begins now or later, however long it takes; but not while the Jobs API is away."""
        for _ in range(2):  # one may be under way
            listed = self._listed
            while not listed.is_set() and not (self._failing and time.monotonic() - self._listed_s >= _AWAY_S):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(listed.wait(), _DEATHS_S)

    # -- Serve -------------------------------------------------------------------------------------------------------------
    async def _watch_serve(self) -> float:
        """Compare the applications with the stored incidents."""
        fault = ""
        apps = {app.app: app for app in await self._ask(self._apis.unhealthy_apps)}
        incidents = await self._store.unhealthy()
        if healthy := incidents.keys() - apps.keys():
            await self._store.end_unhealthy(sorted(healthy))
        for name, app in apps.items():
            since_ms, told = incidents.get(name, (0, False))
            if told:
                continue
            if not since_ms:
                since_ms = self._now_ms()
                await self._store.set_unhealthy(name, since_ms, told=False)
            event = app.event(since_ms, self._config.ray_events_users)
            fault = await self._tell([event]) or fault
            if event.id in self._taken:
                await self._store.set_unhealthy(name, since_ms, told=True)
                self._taken.discard(event.id)
        if fault:
            raise Unavailable(fault)
        return 0.0

    # -- both --------------------------------------------------------------------------------------------------------------
    async def _tell(self, events: Sequence[RayEvent]) -> str:
        """Give events to an edge. Those that are accepted, or refused for good, are in `_taken` then; why not all are, "" when they are."""
        left = [event for event in {event.id: event for event in events}.values() if event.id not in self._taken]
        late = {id: place for place, id in enumerate(self._late, 1)}
        left.sort(key=lambda event: late.get(event.id, 0))
        fault, in_a_row = "", 0
        while left and in_a_row < _OVERLOADED:
            sent = left[:_BATCH]
            try:
                answers = await self._edges.publish(self._config.ray_events, _PATH, [event.body() for event in sent])
            except Unavailable as error:
                return str(error)
            if not answers:
                return "an edge has not taken all events"
            for event, (status, _, body) in zip(sent, answers, strict=False):
                if status in _AGAIN or status >= 500:
                    fault, in_a_row = f"an edge answers {status}", in_a_row + 1
                    self._late.pop(event.id, None)
                    self._late[event.id] = None
                    continue
                in_a_row = 0
                self._late.pop(event.id, None)
                self._taken.add(event.id)
                if status < 300 or status == 409:  # 409: it was told with another text
                    self._told += 1
                else:
                    self._refused += 1
                    log.error("the event %s was refused with %d: %s", event.id, status, body.decode(errors="replace")[:_SHOWN_CHARS])
            del left[: len(answers)]
        return fault

    async def _ask(self, question: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._asking, question)
