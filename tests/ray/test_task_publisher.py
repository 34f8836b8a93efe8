"""Publishing from a driver, tasks and actors of a Ray cluster, to the session's engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from engine import Client
from engine.client.http_connection import Response
from engine.errors import Forbidden, Unreachable
from engine.ray import AsyncPublisher, Publisher, PublishError, task_publisher
from engine.ray.edge_calls import EdgeCalls
from tests.support.running_engine import RunningEngine
from tests.support.waiting import until

pytestmark = pytest.mark.slow

TENANT = "jobs"


async def received(engine: RunningEngine, user: str, count: int) -> list[dict[str, Any]]:
    """The first messages of a user, so many; and that there are no more in the same frame."""
    found: list[dict[str, Any]] = []
    async with engine.connect(user, tenant=TENANT) as client:
        while len(found) < count:
            found += (await engine.receive(client, "messages"))["messages"]
    return found


async def test_a_driver_publishes_without_url_and_token(job: Any, engine: RunningEngine) -> None:
    with Publisher(tenant=TENANT) as publisher:
        result = await asyncio.to_thread(publisher.publish, user="ray-ann", type="model.trained", data={"loss": 0.1})
    assert (result.status, result.user, result.seq) == ("accepted", "ray-ann", 1)
    (message,) = await received(engine, "ray-ann", 1)
    assert (message["type"], message["data"], message["id"]) == ("model.trained", {"loss": 0.1}, result.id)


async def test_an_async_publisher_posts_in_batches_and_in_order(job: Any, engine: RunningEngine) -> None:
    results = []
    async with AsyncPublisher(tenant=TENANT, on_result=results.append) as publisher:
        for number in range(700):
            await publisher.post(user="ray-bob", type="step.done", data=number)
    assert [result.status for result in results] == ["accepted"] * 700
    assert [result.seq for result in results] == list(range(1, 701))
    assert [message["data"] for message in await received(engine, "ray-bob", 200)][:200] == list(range(200))


async def test_a_task_that_ray_runs_again_publishes_once(job: Any, engine: RunningEngine) -> None:
    @job.remote(max_retries=2, retry_exceptions=True, num_cpus=0)
    def works() -> list[tuple[str, str]]:
        with Publisher(tenant=TENANT) as publisher:
            results = [publisher.publish(user="ray-cat", type="step.done", data=number) for number in range(3)]
        if any(result.status == "accepted" for result in results):
            raise RuntimeError("the first attempt fails after it has published")
        return [(result.id, result.status) for result in results]

    results = await asyncio.to_thread(job.get, works.remote())
    assert [status for _, status in results] == ["duplicate"] * 3
    messages = await received(engine, "ray-cat", 3)
    assert [(message["id"], message["data"]) for message in messages] == [(id_, number) for number, (id_, _) in enumerate(results)]


def test_an_event_has_an_id_of_the_thread_that_sends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []

    class Carrier(EdgeCalls):
        async def request(self, *request: Any, body: bytes = b"", **options: Any) -> Response:
            sent.append(json.loads(request[3]))
            return Response(202, {}, b'{"matched":[],"results":[],"scheduled":[],"cancelled":0}')

    monkeypatch.setattr(task_publisher, "EdgeCalls", Carrier)
    monkeypatch.setattr(task_publisher, "new_id", lambda: threading.current_thread().name)
    with Publisher(tenant=TENANT) as publisher:
        publisher.event(type="cart.left", user="ray-eve")
        publisher.event(type="cart.left", user="ray-eve", id="own")
    assert [event["id"] for event in sent] == [threading.current_thread().name, "own"], "only there an attempt of a task is known"


async def test_two_calls_of_an_actor_publish_twice(job: Any, engine: RunningEngine) -> None:
    @job.remote(num_cpus=0)
    class Worker:
        def work(self) -> str:
            with Publisher(tenant=TENANT) as publisher:
                return publisher.publish(user="ray-dan", type="step.done", data=1).status

    worker = Worker.remote()
    assert await asyncio.to_thread(job.get, [worker.work.remote(), worker.work.remote()]) == ["accepted", "accepted"]


async def test_the_methods_of_an_async_actor_do_not_take_each_others_ids(job: Any, engine: RunningEngine) -> None:
    @job.remote(num_cpus=0)
    class Worker:
        async def work(self, number: int) -> list[str]:
            async with AsyncPublisher(tenant=TENANT) as publisher:
                both = await asyncio.gather(*(publisher.publish(user="ray-eve", type="step.done", data=number) for _ in range(2)))
            return [result.status for result in both]

    worker = Worker.remote()
    assert await asyncio.to_thread(job.get, [worker.work.remote(number) for number in range(3)]) == [["accepted", "accepted"]] * 3


async def test_what_is_not_valid_is_refused_as_over_http(job: Any, engine: RunningEngine) -> None:
    async with AsyncPublisher(tenant=TENANT) as publisher:
        with pytest.raises(PublishError) as caught:
            await publisher.publish_many([{"user": "ray-fay", "type": "t"}, {"user": "ray-fay", "type": "no type"}])
        assert (caught.value.status, [(error.index, error.path) for error in caught.value.errors]) == (422, [(1, "$[1].type")])
        await publisher.publish(user="ray-fay", type="t", data=1, id="one")
        with pytest.raises(PublishError) as caught:
            await publisher.publish(user="ray-fay", type="t", data=2, id="one")
        assert caught.value.status == 409


async def test_a_tenant_that_is_not_allowed_is_told_the_setting(job: Any, engine: RunningEngine) -> None:
    async with AsyncPublisher(tenant="nobody") as publisher:
        with pytest.raises(Forbidden, match="ray_publish"):
            await publisher.publish(user="ray-gus", type="t")


async def test_an_error_of_a_task_is_the_same_in_its_driver(job: Any, engine: RunningEngine) -> None:
    @job.remote(max_retries=0, num_cpus=0)
    def publishes(type: str, tenant: str) -> None:
        with Publisher(tenant=tenant) as publisher:
            publisher.publish(user="ray-ida", type=type, id="one")

    with pytest.raises(PublishError, match="words of letters") as caught:
        await asyncio.to_thread(job.get, publishes.remote("no type", TENANT))
    assert [(error.id, error.path) for error in caught.value.errors] == [("one", "$[0].type")]
    with pytest.raises(Forbidden, match="ray_publish"):
        await asyncio.to_thread(job.get, publishes.remote("t", "nobody"))


async def test_a_publisher_waits_for_an_engine_and_then_says_that_there_is_none(job: Any) -> None:
    async with AsyncPublisher(namespace="nowhere", retry_for_s=0.3) as publisher:
        with pytest.raises(Unreachable, match=r"namespace 'nowhere' did not take 1 items within 0\.3 s: no edge of it runs"):
            await publisher.publish(user="u", type="t")


async def test_a_killed_task_gets_the_answer_to_the_question_it_asked(job: Any, engine: RunningEngine, tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    @job.remote(max_retries=2, num_cpus=0)
    def asks() -> tuple[str | None, str | None]:
        with open(pids, "a") as file:
            file.write(f"{os.getpid()}\n")
        with Publisher(tenant=TENANT) as publisher:
            answer = publisher.ask(user="ray-hal", type="deploy.ask", ask={"answers": [{"id": "yes", "label": "Approve"}]})
        return answer.answer, answer.by

    asking = asks.remote()
    (message,) = await received(engine, "ray-hal", 1)
    os.kill(int(pids.read_text()), signal.SIGKILL)
    await until(lambda: len(pids.read_text().split()) == 2, 60)
    async with Client(engine.url, engine.token("ray-hal", "connect", tenant=TENANT)) as client:
        await client.answer(message["id"], "yes")
    assert await asyncio.wait_for(asyncio.to_thread(job.get, asking), 60) == ("yes", "ray-hal")
    outcome = (await received(engine, "ray-hal", 1))[-1]
    assert (outcome["id"], outcome["answer"]["answer"]) == (f"answer:{message['id']}", "yes")
