"""What the watcher and edges keep, in a real Redis."""

from __future__ import annotations

from redis.asyncio import Redis

from engine.config import Config
from engine.features.ray_events.core.exported import Death
from engine.features.ray_events.core.jobs import Running
from engine.features.ray_events.keys import RAY_DEATHS_KEY, RAY_RUNNING_KEY, RAY_UNHEALTHY_KEY
from engine.features.ray_events.store import RayEventsStore, StoredJobs

DEATH = Death("node", "ab", "", "", "UNSPECIFIED", "", 7)
JOB = Running("a", "python x.py", 5, ("ann",))


async def test_the_horizon_begins_when_the_feature_is_switched_on_and_stays(redis_client: Redis) -> None:
    store = RayEventsStore(redis_client, Config())
    assert await store.jobs(100) == StoredJobs(100, [], {})
    assert (await store.jobs(200)).horizon_ms == 100


async def test_an_end_that_is_told_is_no_running_job_any_more(redis_client: Redis) -> None:
    store = RayEventsStore(redis_client, Config())
    await store.jobs(100)
    await store.set_running({"a:5": JOB, "b:6": JOB})
    await store.set_told("a:5", 150)
    assert await store.jobs(200) == StoredJobs(100, ["a:5"], {"b:6": JOB})


async def test_a_horizon_moves_forward_and_forgets_what_is_before_it(redis_client: Redis) -> None:
    store = RayEventsStore(redis_client, Config())
    await store.jobs(100)
    for end_ms in (150, 200, 250):
        await store.set_told(f"j:{end_ms}", end_ms)
    assert await store.move_horizon(200) == StoredJobs(200, ["j:200", "j:250"], {})
    assert (await store.move_horizon(150)).horizon_ms == 200, "an older watcher moves it no more"


async def test_a_job_that_cannot_be_read_hides_no_other(redis_client: Redis) -> None:
    store = RayEventsStore(redis_client, Config())
    await store.set_running({"a:5": JOB})
    await redis_client.hset(RAY_RUNNING_KEY, "b:6", b"?")  # type: ignore[misc]
    assert (await store.jobs(1)).running == {"a:5": JOB}


async def test_deaths_wait_in_order_until_they_are_settled(redis_client: Redis) -> None:
    store = RayEventsStore(redis_client, Config())
    for _ in range(3):
        assert await store.append([DEATH, DEATH])
    first, second = await store.waiting(2)
    assert first[1] == second[1] == [DEATH, DEATH]
    await store.settle([first[0], second[0]])
    assert len(await store.waiting(9)) == 1


async def test_no_more_deaths_wait_than_the_limit(redis_client: Redis) -> None:
    store = RayEventsStore(redis_client, Config(ray_events_waiting_max=2))
    assert [await store.append([DEATH]) for _ in range(3)] == [True, True, False]


async def test_deaths_that_cannot_be_read_are_settled_with_the_others(redis_client: Redis) -> None:
    store = RayEventsStore(redis_client, Config())
    await redis_client.xadd(RAY_DEATHS_KEY, {"deaths": "?"})
    ((id, deaths),) = await store.waiting(9)
    assert deaths == []
    await store.settle([id])
    assert await store.waiting(9) == []


async def test_an_incident_is_stored_until_it_ends(redis_client: Redis) -> None:
    store = RayEventsStore(redis_client, Config())
    await store.set_unhealthy("shop", 7, told=False)
    assert await store.unhealthy() == {"shop": (7, False)}
    await store.set_unhealthy("shop", 7, told=True)
    assert await store.unhealthy() == {"shop": (7, True)}
    await store.end_unhealthy(["shop"])
    assert await store.unhealthy() == {}


async def test_unreadable_deaths_and_incidents_hide_no_others(redis_client: Redis) -> None:
    store = RayEventsStore(redis_client, Config())
    await redis_client.xadd(RAY_DEATHS_KEY, {"deaths": b'[{"kind":"\xff"}]'})
    assert await store.append([DEATH])
    assert [found for _, found in await store.waiting(9)] == [[], [DEATH]]
    await store.set_unhealthy("shop", 5, told=True)
    await redis_client.hset(RAY_UNHEALTHY_KEY, "blog", b"? told")  # type: ignore[misc]
    assert await store.unhealthy() == {"shop": (5, True), "blog": (0, False)}, "it is seen anew"
