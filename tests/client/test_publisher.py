"""Publishing against a server that fails in every way a network, an overloaded engine or a bad item can."""

from __future__ import annotations

import asyncio
import gc
import json
import time

import pytest

from engine import Publisher
from engine.client import PublishError, Result
from engine.errors import Forbidden, Refused, Unauthorized
from tests.support.background_loop import in_background
from tests.support.edge_world import edge_world
from tests.support.publish_server import (
    Engine,
    Items,
    Step,
    accepts,
    accepts_and_loses_the_answer,
    never_answers,
    refuses,
    rejects,
    reply,
    resets,
    running,
)
from tests.support.waiting import until


async def test_one_item_is_published_with_a_made_id_and_its_result_returned() -> None:
    async with running() as engine, Publisher(engine.url, "tok") as publisher:
        result = await publisher.publish(user="u1", type="order.paid", data={"n": 1}, priority="high", ttl=None)
        assert result == Result(id=result.id, user="u1", status="accepted", seq=1)
        assert engine.requests == [[{"user": "u1", "type": "order.paid", "data": {"n": 1}, "priority": "high", "id": result.id}]]
        assert len(result.id) == 36
        assert engine.tokens == ["tok"]


async def test_a_batch_is_one_request_and_larger_ones_several_over_the_same_connection() -> None:
    async with running() as engine, Publisher(engine.url, "tok", batch_max=4) as publisher:
        results = await publisher.publish_many({"user": f"u{n}", "type": "t"} for n in range(10))
        assert [result.user for result in results] == [f"u{n}" for n in range(10)]
        assert [len(request) for request in engine.requests] == [4, 4, 2]
        assert engine.connections == 1


async def test_users_count_each_and_have_a_result_each() -> None:
    async with running() as engine, Publisher(engine.url, "tok", batch_max=3) as publisher:
        results = await publisher.publish_many([{"users": ["a", "b"], "type": "t"}, {"users": ["c", "d"], "type": "t"}])
        assert [result.user for result in results] == ["a", "b", "c", "d"]
        assert [len(request) for request in engine.requests] == [1, 1]
        with pytest.raises(ValueError):
            await publisher.publish(users=["a", "b"], type="t")


async def test_a_request_stays_below_the_body_limit() -> None:
    async with running() as engine, Publisher(engine.url, "tok") as publisher:
        await publisher.publish_many([{"user": "u", "type": "t", "data": "x" * 60_000} for _ in range(40)])
        assert all(len(json.dumps(request, separators=(",", ":"))) <= 1 << 20 for request in engine.requests)
        assert len(engine.requests) == 3


@pytest.mark.parametrize("failure", [resets, accepts_and_loses_the_answer, refuses(503), refuses(429), refuses(502), refuses(500)])
async def test_a_failed_try_is_repeated_under_the_same_ids_and_delivers_once(failure: Step) -> None:
    async with running(failure, failure) as engine, Publisher(engine.url, "tok") as publisher:
        await publisher.publish_many([{"user": "u1", "type": "t"}, {"user": "u2", "type": "t", "id": "mine"}])
        assert len(engine.requests) == 3
        assert engine.requests[0] == engine.requests[1] == engine.requests[2]
        assert len(engine.accepted) == 2
        assert "mine" in engine.accepted


async def test_rejected_items_are_named_with_their_reasons_and_places() -> None:
    items = [{"user": "u", "type": type_, "id": id_} for type_, id_ in [("a", "a"), ("b", "b"), ("c", "c"), ("bad", "x")]]
    async with running(accepts, rejects("bad")) as engine, Publisher(engine.url, "tok", batch_max=2) as publisher:
        with pytest.raises(PublishError, match=r"422: item 3 \(id x\) \$\[1\].type: not a type") as caught:
            await publisher.publish_many(items)
        assert caught.value.status == 422
        assert [(error.index, error.id) for error in caught.value.errors] == [(3, "x")]
        assert [result.id for result in caught.value.results] == ["a", "b"]
        assert list(engine.accepted) == ["a", "b"]


async def test_a_conflict_of_one_item_is_told_without_an_index() -> None:
    conflict = refuses(409, {"detail": "this id was used with another payload"})
    async with running(conflict) as engine, Publisher(engine.url, "tok") as publisher:
        with pytest.raises(PublishError, match="another payload") as caught:
            await publisher.publish(user="u", type="t", id="k")
        assert [(error.index, error.id) for error in caught.value.errors] == [(0, "k")]


@pytest.mark.parametrize(("status", "kind"), [(401, Unauthorized), (403, Forbidden), (404, Refused), (415, Refused)])
async def test_what_is_wrong_with_the_request_itself_is_raised_at_once(status: int, kind: type[Exception]) -> None:
    async with running(refuses(status)) as engine, Publisher(engine.url, "tok") as publisher:
        with pytest.raises(kind, match=f"because {status}"):
            await publisher.publish(user="u", type="t")
        assert len(engine.requests) == 1


async def test_posted_items_share_requests_and_keep_their_order() -> None:
    results: list[Result] = []
    async with running() as engine:
        async with Publisher(engine.url, "tok", batch_max=50, on_result=results.append) as publisher:
            ids = [await publisher.post(user="u", type="t", data=n) for n in range(200)]
        assert [item["id"] for request in engine.requests for item in request] == ids
        assert len(engine.requests) <= 6
        assert [result.id for result in results] == ids


async def test_a_lone_posted_item_does_not_wait_for_a_flush() -> None:
    async with running() as engine, Publisher(engine.url, "tok", linger_s=0.01) as publisher:
        await publisher.post(user="u", type="t")
        await until(lambda: engine.accepted)


async def test_a_full_buffer_makes_post_wait() -> None:
    release = asyncio.Event()

    async def blocks(engine: Engine, writer: asyncio.StreamWriter, items: Items) -> None:
        await release.wait()
        await accepts(engine, writer, items)

    async with running(blocks) as engine, Publisher(engine.url, "tok", batch_max=2, queue_max=4) as publisher:
        for _ in range(4):
            await publisher.post(user="u", type="t")
        waiting = asyncio.create_task(publisher.post(user="u", type="t"))
        await until(lambda: engine.requests)
        assert not waiting.done()
        release.set()
        await waiting
        await publisher.flush()
        assert len(engine.accepted) == 5


async def test_a_publisher_that_closes_ends_the_wait_of_others() -> None:
    async with running(never_answers) as engine:
        publisher = Publisher(engine.url, "tok", queue_max=1)
        await publisher.post(user="u", type="t")
        waiting = [asyncio.create_task(work) for work in (publisher.post(user="u", type="t"), publisher.flush())]
        await until(lambda: engine.requests)
        await publisher.close(flush=False)
        async with asyncio.timeout(5):
            for task in waiting:
                with pytest.raises(RuntimeError, match="closed"):
                    await task


@pytest.mark.parametrize("tell", [True, False])
@pytest.mark.parametrize("status", [400, 409, 413, 422])
async def test_bad_items_in_a_posted_batch_do_not_hold_back_the_good_ones(tell: bool, status: int) -> None:
    async with running(rejects("bad", status=status, tell=tell)) as engine, Publisher(engine.url, "tok") as publisher:
        for n in range(20):
            await publisher.post(user="u", type="bad" if n in (3, 11) else "good", id=f"i{n}")
        with pytest.raises(PublishError) as caught:
            await publisher.flush()
        assert sorted(error.id for error in caught.value.errors) == ["i11", "i3"]
        assert caught.value.status == status
        assert len(engine.accepted) == 18
        await publisher.flush()


async def test_what_could_not_be_sent_stays_in_the_buffer_and_goes_out_later() -> None:
    async with running(refuses(403)) as engine, Publisher(engine.url, "tok") as publisher:
        id_ = await publisher.post(user="u", type="t")
        with pytest.raises(Forbidden):
            await publisher.flush()
        await publisher.flush()
        assert list(engine.accepted) == [id_]


async def test_leaving_on_an_exception_does_not_wait_for_the_buffer() -> None:
    async with running(never_answers) as engine:
        publisher = Publisher(engine.url, "tok")

        async def fail() -> None:
            async with publisher:
                await publisher.post(user="u", type="t")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        with pytest.raises(RuntimeError, match="closed"):
            await publisher.post(user="u", type="t")


async def test_a_closed_publisher_makes_no_request() -> None:
    async with running() as engine:
        async with Publisher(engine.url, "tok") as publisher:
            begun = publisher.stream(user="u", type="t")
        with pytest.raises(RuntimeError, match="closed"):
            await begun.__aenter__()
        with pytest.raises(RuntimeError, match="closed"):
            await publisher.event(user="u", type="t")
        assert not engine.requests


async def test_an_answer_that_is_not_http_counts_as_a_lost_one() -> None:
    async def babbles(engine: Engine, writer: asyncio.StreamWriter, items: Items) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        await writer.drain()

    async with running(babbles) as engine, Publisher(engine.url, "tok") as publisher:
        assert (await publisher.publish(user="u", type="t")).status == "accepted"


async def test_chunked_answers_and_those_that_end_with_the_connection_are_read() -> None:
    async def chunked(engine: Engine, writer: asyncio.StreamWriter, items: Items) -> None:
        body = json.dumps(engine.accept(items)).encode()
        writer.write(b"HTTP/1.1 202 X\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))

    async def until_closed(engine: Engine, writer: asyncio.StreamWriter, items: Items) -> None:
        writer.write(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 X\r\nConnection: close\r\n\r\n" + json.dumps(engine.accept(items)).encode()
        )
        await writer.drain()
        writer.close()

    async with running(chunked, until_closed) as engine, Publisher(engine.url, "tok") as publisher:
        for _ in range(3):
            assert (await publisher.publish(user="u", type="t")).status == "accepted"
        assert engine.connections == 2


async def test_what_an_answer_with_results_has_decided_is_not_sent_again() -> None:
    async def decides_each(engine: Engine, writer: asyncio.StreamWriter, items: Items) -> None:
        good = engine.accept([item for item in items if item["id"] != "used"])["results"]
        bad = {"id": "used", "user": "u", "status": "conflict", "reason": "another payload"}
        await reply(writer, 409, {"detail": "1 of 3 items", "errors": [{"index": 1, "detail": "another payload"}], "results": [*good, bad]})

    results: list[Result] = []
    async with running(decides_each, decides_each) as engine, Publisher(engine.url, "tok", on_result=results.append) as publisher:
        for id_ in ("a", "used", "b"):
            await publisher.post(user="u", type="t", id=id_)
        with pytest.raises(PublishError, match="another payload"):
            await publisher.flush()
        assert [(result.id, result.status) for result in results] == [("a", "accepted"), ("b", "accepted")]
        assert len(engine.requests) == 1
        with pytest.raises(PublishError) as caught:
            await publisher.publish_many([{"user": "u", "type": "t", "id": id_} for id_ in ("c", "used")])
        assert [(error.index, error.id) for error in caught.value.errors] == [(1, "used")]
        assert [result.id for result in caught.value.results] == ["c"]


async def test_what_an_earlier_try_brought_in_is_not_called_a_duplicate() -> None:
    async def takes_half(engine: Engine, writer: asyncio.StreamWriter, items: Items) -> None:
        half = engine.accept(items[:1])["results"]
        await reply(writer, 503, {"detail": "storage", "results": [*half, {"id": items[1]["id"], "user": "u", "status": "unavailable"}]})

    async with running(takes_half) as engine, Publisher(engine.url, "tok") as publisher:
        results = await publisher.publish_many([{"user": "u", "type": "t"}] * 2)
        assert [result.status for result in results] == ["accepted", "accepted"]
        assert len(engine.accepted) == 2


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_publisher_goes_on_after_its_event_loop_was_closed() -> None:
    with in_background(edge_world()) as world:
        publisher = Publisher(world.url(), world.token("app", "publish"), timeout_s=60, connections_max=1)
        begun_s = time.monotonic()

        async def use(publisher: Publisher) -> None:
            assert await asyncio.gather(*(publisher.signal_sums("views") for _ in range(3))) == 3 * [{"views": 0}]
            await publisher.post(user="u1", type="t")
            await publisher.flush()

        for _ in range(2):
            asyncio.run(use(publisher))
            assert asyncio.run(publisher.publish(user="u1", type="t")).status == "accepted"
        assert time.monotonic() - begun_s < 30, "no attempt waited for an answer on a connection of a closed loop"
        asyncio.run(publisher.close())
        del publisher
        gc.collect()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("act", ["publish", "post", "close"])
def test_a_publisher_that_is_in_use_in_another_event_loop_says_so(act: str) -> None:
    with in_background(edge_world()) as world:
        publisher, other = Publisher(world.url(), world.token("app", "publish")), asyncio.new_event_loop()
        try:
            other.run_until_complete(publisher.publish(user="u1", type="t"))
            other.run_until_complete(publisher.post(user="u1", type="t"))
            with pytest.raises(RuntimeError, match="another event loop"):
                asyncio.run(publisher.close() if act == "close" else getattr(publisher, act)(user="u1", type="t"))
            other.run_until_complete(publisher.close())
        finally:
            other.close()
