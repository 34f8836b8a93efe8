"""The blocking clients, each on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time

import pytest

from engine import SyncClient, SyncPublisher
from engine.client import PublishError
from engine.errors import Forbidden, Unreachable
from tests.support.background_loop import in_background
from tests.support.misbehaving_server import Peer, misbehaving, sending, stay
from tests.support.publish_server import accepts, never_answers, rejects, running
from tests.support.scripted_engine import ScriptedEngine, serving, token
from tests.support.waiting import until


async def test_the_synchronous_client_receives_acknowledges_and_times_out() -> None:
    outcome: list[object] = []

    def program(url: str) -> None:
        with SyncClient(url, "tok") as client:
            outcome.append([message.seq for _, message in zip(range(2), client, strict=False)])
            with pytest.raises(TimeoutError):
                client.receive(timeout_s=0.05)
            outcome.append(client.cursor)

    async with misbehaving(sending(1, 2)) as server:
        thread = threading.Thread(target=program, args=(server.url,))
        thread.start()
        await until(lambda: not thread.is_alive())
        assert outcome == [[1, 2], "7-2"]
        await until(lambda: {"type": "ack", "seq": 2} in server.peers[0].frames)


async def test_messages_that_come_as_a_wait_times_out_are_not_lost() -> None:
    count = 200

    async def script(peer: Peer) -> None:
        await peer.welcome()
        for seq in range(1, count + 1):
            await peer.send(seq)
            await asyncio.sleep(0.002)
        await stay(peer)

    received: list[int] = []

    def program(url: str) -> None:
        deadline_s = time.monotonic() + 30
        with SyncClient(url, "tok") as client:
            while (not received or received[-1] < count) and time.monotonic() < deadline_s:
                with contextlib.suppress(TimeoutError):
                    received.append(client.receive(timeout_s=0.001).seq)

    async with misbehaving(script) as server:
        await asyncio.to_thread(program, server.url)
    assert received == list(range(1, count + 1))


def test_a_waiting_message_is_received_in_no_time() -> None:
    with in_background(serving(ScriptedEngine())) as server, SyncClient(server.url, token()) as client:
        server.publish()
        server.publish()
        assert client.receive(20).seq == 1
        deadline_s = time.monotonic() + 20
        received = []
        while not received and time.monotonic() < deadline_s:
            with contextlib.suppress(TimeoutError):
                received.append(client.receive(timeout_s=0).seq)
        assert received == [2]


def test_the_synchronous_client_falls_back_and_goes_back_alike() -> None:
    with in_background(serving(ScriptedEngine())) as server:
        server.refuse = {"websocket": 404}
        with SyncClient(server.url, token(), upgrade_after_s=0.05) as client:
            assert client.transport == "sse"
            server.publish()
            assert client.receive(20).seq == 1
            server.refuse = {}
            while client.transport != "websocket":
                time.sleep(0.001)
            server.publish()
            assert client.receive(20).seq == 2
    assert not server.pending


async def test_the_synchronous_client_refuses_over_a_stream() -> None:
    def program(url: str) -> None:
        with SyncClient(url, token(), auto_ack=False, transports=("sse",)) as client:
            client.receive(5).nack("no")

    async with serving(ScriptedEngine()) as server:
        server.publish()
        await asyncio.to_thread(program, server.url)
        await until(lambda: not server.pending)
    assert server.frames == [{"type": "nack", "ids": ["m1"], "reason": "no"}]


async def test_the_synchronous_client_settles_from_the_callers_thread() -> None:
    async def script(peer: Peer) -> None:
        await peer.welcome()
        await peer.send(1, 2)
        while (await peer.hear())["type"] != "nack":
            pass
        await peer.say("nacked", ids=["m1"])
        await stay(peer)

    def program(url: str) -> None:
        with SyncClient(url, "tok", auto_ack=False) as client:
            first, second = client.receive(5), client.receive(5)
            second.ack()
            first.nack("no")
            while client.cursor != "7-2":
                time.sleep(0.001)

    async with misbehaving(script) as server:
        await asyncio.to_thread(program, server.url)
        await until(lambda: {"type": "ack", "seq": 2} in server.peers[0].frames)
        assert {"type": "nack", "ids": ["m1"], "reason": "no"} in server.peers[0].frames


async def test_the_synchronous_client_raises_what_the_engine_said() -> None:
    def program(url: str) -> None:
        with SyncClient(url, "tok"):
            pass

    async with misbehaving((403, {}, "")) as server:
        with pytest.raises(Forbidden):
            await asyncio.to_thread(program, server.url)


async def test_the_synchronous_publisher_publishes_posts_and_raises() -> None:
    def program(url: str) -> None:
        with SyncPublisher(url, "tok") as publisher:
            assert publisher.publish(user="u", type="t").seq == 1
            assert len(publisher.publish_many([{"user": "u", "type": "t"}] * 2)) == 2
            publisher.post(user="u", type="bad")
            publisher.post(user="u", type="t")
            with pytest.raises(PublishError):
                publisher.flush()
        publisher.close()

    async with running(accepts, accepts, rejects("bad")) as engine:
        await asyncio.to_thread(program, engine.url)
        assert len(engine.accepted) == 4


def test_a_client_that_is_not_entered_or_entered_twice_is_an_error() -> None:
    client = SyncClient("http://127.0.0.1:9", "tok", last_event_id="7-1", open_timeout_s=0.1)
    assert client.cursor == "7-1"
    with pytest.raises(RuntimeError, match="enter"):
        client.receive()
    with pytest.raises(Unreachable), client:
        pass
    with pytest.raises(RuntimeError, match="once"):
        client.__enter__()


def test_a_closed_publisher_is_an_error_and_its_thread_has_ended() -> None:
    before = set(threading.enumerate())
    publisher = SyncPublisher("http://127.0.0.1:9", "tok")
    publisher.flush()
    (own,) = set(threading.enumerate()) - before
    assert own.name == "engine-publisher"
    publisher.close()
    publisher.close()
    assert not own.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        publisher.publish(user="u", type="t")


async def test_a_publisher_that_closes_ends_the_wait_of_other_threads() -> None:
    async with running(never_answers) as engine:
        publisher = SyncPublisher(engine.url, "tok")
        waiting = asyncio.ensure_future(asyncio.to_thread(publisher.publish, user="u", type="t"))
        await until(lambda: engine.requests)
        await asyncio.to_thread(publisher.close)
        with pytest.raises(RuntimeError, match="closed"):
            async with asyncio.timeout(5):
                await waiting


FORKING = """
import os, sys
from ray_notifications import SyncPublisher

publisher = SyncPublisher(sys.argv[1], "tok")
if "used" in sys.argv:
    publisher.publish(user="u", type="t")
child = os.fork()
try:
    told = publisher.publish(user="u", type="t").status
except RuntimeError as error:
    told = str(error)
os.write(1, f"{told}\\n".encode())  # at once: both processes write to the same pipe
if child:
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize("used", [False, True])
async def test_a_publisher_made_before_a_fork_works_unless_it_was_used(used: bool) -> None:
    async with running() as engine:
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FORKING, engine.url, "used" if used else "", stdout=subprocess.PIPE
        )
        async with asyncio.timeout(60):
            output, _ = await program.communicate()
    lines = sorted(line.partition(":")[0] for line in output.decode().splitlines())
    refused = "this client was used before the process forked"
    assert lines == (["accepted", refused] if used else ["accepted", "accepted"])
    assert len(engine.accepted) == 2


async def test_several_threads_share_a_publisher() -> None:
    async with running() as engine:
        publisher = SyncPublisher(engine.url, "tok")
        results = await asyncio.gather(*(asyncio.to_thread(publisher.publish, user=f"u{n}", type="t") for n in range(10)))
        assert sorted(str(result.user) for result in results) == sorted(f"u{n}" for n in range(10))
        await asyncio.to_thread(publisher.close)


async def test_a_callback_that_would_wait_for_its_own_client_is_told_so() -> None:
    async with misbehaving(sending(1)) as server:
        client = SyncClient(server.url, "tok", on_event=lambda _: client.inbox())

        def receive() -> None:
            with client:
                list(client)

        with pytest.raises(RuntimeError, match="callback"):
            await asyncio.wait_for(asyncio.to_thread(receive), 30)


@pytest.mark.parametrize("act", ["flush", "close"])
async def test_a_callback_that_would_wait_for_its_own_publisher_is_told_so(act: str) -> None:
    async with running() as engine:
        publisher = SyncPublisher(engine.url, "tok", on_result=lambda _: getattr(publisher, act)())

        def post() -> None:
            publisher.post(user="u", type="t")
            with pytest.raises(RuntimeError, match="callback"):
                publisher.flush()
            publisher.close(flush=False)

        await asyncio.wait_for(asyncio.to_thread(post), 30)
