"""Steps that are due, through the dispatcher of an edge: to the addresses that the user has, each service in a lane of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from redis.asyncio import Redis

from engine.actors.edge import clock, wall_ms
from engine.config import Config
from engine.core.model.action import Action, ChannelCap
from engine.core.model.constants import NORMAL
from engine.core.model.envelope import Envelope
from engine.core.wire.outcomes import Outcome
from engine.core.wire.records import Timer
from engine.features.actions.dispatcher import Dispatcher
from engine.features.actions.store import ActionStreams, append_actions
from engine.features.dead_letters.store import DeadLetterStream
from engine.features.reach.caught_mails import CaughtMails
from engine.features.reach.core.addresses import Addresses
from engine.features.reach.deliveries import StepDeliveries
from engine.features.reach.email_channel import EmailChannel
from engine.features.reach.push_channel import PushChannel
from engine.features.reach.store import AddressStore
from engine.store.keys import ACTION_TARGETS_KEY, action_stream_key
from tests.support.mail_server import LOST, mail_server
from tests.support.push_service import push_service
from tests.support.waiting import until
from tests.support.webhook_target import webhook_server

SETTINGS: dict[str, Any] = {
    "action_retry_first_ms": 1, "action_retry_cap_ms": 20, "action_poll_ms": 5, "action_breaker_open_ms": 50,
    "mail_from": "ops@example.com",
}  # fmt: skip

BRIEF: dict[str, Any] = {"action_timeout_ms": 2_000, "action_give_up_s": 1}  # a tenth is left to take a count back


async def push_secret() -> bytes:
    return b"k" * 32


async def due(client: Redis, target: str, number: int = 1, cap: ChannelCap | None = None, ttl_ms: int = 60_000) -> None:
    """A step of the user ann is due."""
    envelope = Envelope(f"m{number}", b"", NORMAL, True, b'"id":"m%d","type":"alert","data":{"title":"Disk full"}' % number)
    timer = Timer(f"3-{number}", "acme:ann", wall_ms(), 0, ttl_ms, envelope, None, Action(target, f"k{number}", cap))
    assert await append_actions(client, Config(), [timer]) == ([timer.sid], [])


class Told(list[tuple[str, str]]):
    """Outcomes of actions: (event, reason)."""

    def add(self, outcome: Outcome) -> None:
        self.append((outcome.event, outcome.reason))


@asynccontextmanager
async def delivering(client: Redis, told: Told | None = None, **settings: Any) -> AsyncIterator[AddressStore]:
    config = Config(**SETTINGS | settings)
    addresses = AddressStore(client, config)
    push, email = PushChannel(config, push_secret, wall_ms), EmailChannel(config, CaughtMails(client))
    deliveries = StepDeliveries(config, addresses, partial(append_actions, client, config), push, email, wall_ms)
    streams = ActionStreams(client, config, "edge-0")
    running = asyncio.ensure_future(Dispatcher(config, streams, deliveries.call, clock, wall_ms, told).run())  # type: ignore[arg-type]
    try:
        yield addresses
    finally:
        while not running.done():
            running.cancel()
            await asyncio.wait([running], timeout=0.1)
        await email.close()


async def idle(client: Redis) -> bool:
    """Nothing waits in any lane."""
    lanes: set[bytes] = await client.smembers(ACTION_TARGETS_KEY)  # type: ignore[misc]
    return sum([await client.xlen(action_stream_key(lane.decode())) for lane in lanes]) == 0


async def lanes_of(client: Redis) -> set[str]:
    return {lane.decode() for lane in await client.smembers(ACTION_TARGETS_KEY)}  # type: ignore[misc]


async def reasons(client: Redis) -> Sequence[str]:
    return [letter.reason for letter in (await DeadLetterStream(client, Config()).page("acme")).letters]


async def test_a_user_with_an_address_gets_one_mail_and_one_without_none(redis_client: Redis) -> None:
    with mail_server() as mails:
        async with delivering(redis_client, smtp_url=mails.url) as addresses:
            await due(redis_client, "channel://email")
            await until(lambda: idle(redis_client))
            assert mails.mails == []
            await addresses.change("acme:ann", lambda _: Addresses("ann@example.org"))
            await due(redis_client, "channel://email", 2)
            await until(lambda: idle(redis_client))
    assert [mail["Subject"] for mail in mails.to("ann@example.org")] == ["Disk full"]
    assert await reasons(redis_client) == []


async def test_a_step_whose_message_expired_while_its_channel_was_away_is_not_taken(redis_client: Redis) -> None:
    told = Told()
    with mail_server() as mails:
        mails.answers = ["451 later"] * 10_000
        async with delivering(redis_client, told, smtp_url=mails.url) as addresses:
            await addresses.change("acme:ann", lambda _: Addresses("ann@example.org"))
            await due(redis_client, "channel://email", ttl_ms=200)
            await until(lambda: idle(redis_client))
    assert [(event, reason.partition(":")[0]) for event, reason in told] == [("step_unsent", "expired")]
    assert mails.mails == []
    assert await reasons(redis_client) == []


async def told_under_a_cap(redis_client: Redis, cap: ChannelCap, steps: int, *answers: str) -> tuple[Told, int]:
    """What is told of steps by mail one after another, and how many mails the server has taken. It answers the first ones so."""
    told = Told()
    with mail_server() as mails:
        mails.answers = list(answers)
        async with delivering(redis_client, told, smtp_url=mails.url) as addresses:
            await addresses.change("acme:ann", lambda _: Addresses("ann@example.org"))
            for number in range(steps):
                await due(redis_client, "channel://email", number, cap)
                await until(lambda number=number: len(told) == number + 1)  # type: ignore[misc]
    return told, len(mails.mails)


@asynccontextmanager
async def silent_server() -> AsyncIterator[int]:
    """The port of a server that takes connections and never greets."""
    ended = asyncio.Event()

    async def wait(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    async with await asyncio.start_server(wait, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        ended.set()


async def test_a_step_beyond_the_cap_of_its_channel_is_not_sent_and_says_so(redis_client: Redis) -> None:
    told, mails = await told_under_a_cap(redis_client, ChannelCap("news", 2, 86_400_000), 3, "451 later")
    assert mails == 2, "a mail that is tried again counts once"
    assert [event for event, _ in told] == ["step_done", "step_done", "step_unsent"]
    assert told[-1][1] == "cap: email: the user got 2 of news in 1 d"


async def test_a_mail_refused_for_good_counts_for_no_cap(redis_client: Redis) -> None:
    told, _ = await told_under_a_cap(redis_client, ChannelCap("news", 1, 86_400_000), 2, "552 too large")
    assert [event for event, _ in told] == ["step_failed", "step_done"]


async def test_a_mail_that_may_have_been_sent_counts_whatever_follows(redis_client: Redis) -> None:
    told, mails = await told_under_a_cap(redis_client, ChannelCap("news", 1, 86_400_000), 2, LOST, "451 later", "552 too large")
    assert mails == 1
    assert [event for event, _ in told] == ["step_failed", "step_unsent"]


async def test_a_mail_counts_for_no_cap_while_its_server_is_silent(redis_client: Redis) -> None:
    told, cap = Told(), ChannelCap("news", 1, 86_400_000)
    async with silent_server() as port, delivering(redis_client, told, smtp_url=f"smtp://127.0.0.1:{port}", **BRIEF) as addresses:
        await addresses.change("acme:ann", lambda _: Addresses("ann@example.org"))
        await due(redis_client, "channel://email", 1, cap)
        await until(lambda: bool(told))
    with mail_server() as mails:
        async with delivering(redis_client, told, smtp_url=mails.url):
            await due(redis_client, "channel://email", 2, cap)
            await until(lambda: len(told) == 2)
    assert [event for event, _ in told] == ["step_failed", "step_done"]


@pytest.mark.parametrize("channel", ["email", "apprise", "push"])
async def test_a_step_that_reaches_nobody_says_which_address_is_missing(redis_client: Redis, channel: str) -> None:
    told = Told()
    async with delivering(redis_client, told):
        await due(redis_client, f"channel://{channel}")
        await until(lambda: bool(told))
    assert told == [("step_unsent", f"no_address: {channel}")]
    assert await reasons(redis_client) == []


async def test_each_service_of_a_user_gets_it_once_in_a_lane_of_its_own(redis_client: Redis) -> None:
    async with webhook_server() as first, webhook_server() as second:
        urls = (f"json://127.0.0.1:{first.port}/a", f"json://localhost:{second.port}/b")
        async with delivering(redis_client, apprise_urls=urls) as addresses:
            await addresses.change("acme:ann", lambda _: Addresses(apprise=urls))
            first.statuses = [503, 503]
            await due(redis_client, "channel://apprise")
            await until(lambda: bool(first.received and second.received))
            await until(lambda: idle(redis_client))
        assert (len(first.received), len(second.received)) == (3, 1), "one is tried again, the other is not"
    assert await lanes_of(redis_client) == {"channel://apprise", "channel://apprise/json.127.0.0.1", "channel://apprise/json.localhost"}


async def test_a_service_that_is_not_allowed_any_more_is_not_called(redis_client: Redis) -> None:
    """Nor is one that Apprise does not know any more; the others of the user are."""
    told = Told()
    async with webhook_server() as former, webhook_server() as allowed:
        beginning = f"json://localhost:{allowed.port}/"
        async with delivering(redis_client, told, apprise_urls=(beginning, "gone://")) as addresses:
            urls = (f"json://127.0.0.1:{former.port}/a", "gone://token", f"{beginning}b")
            await addresses.change("acme:ann", lambda _: Addresses(apprise=urls))
            await due(redis_client, "channel://apprise")
            await until(lambda: bool(told))
            await until(lambda: idle(redis_client))
            assert (len(former.received), len(allowed.received)) == (0, 1)
            await addresses.change("acme:ann", lambda _: Addresses(apprise=urls[:2]))
            await due(redis_client, "channel://apprise", 2)
            await until(lambda: told[-1] == ("step_unsent", "no_address: apprise"))
    assert await reasons(redis_client) == []


async def test_an_address_that_was_removed_meanwhile_gets_nothing(redis_client: Redis) -> None:
    told = Told()
    async with webhook_server() as server:
        url = f"json://127.0.0.1:{server.port}/a"
        async with delivering(redis_client, told, apprise_urls=(url,)) as addresses:
            server.statuses = [503] * 1000
            await addresses.change("acme:ann", lambda _: Addresses(apprise=(url,)))
            await due(redis_client, "channel://apprise")
            await until(lambda: bool(server.received))
            await addresses.change("acme:ann", lambda _: Addresses(apprise=(f"{url}b",)))
            await until(lambda: idle(redis_client))
        assert not any(got.path == "/ab" for got in server.received), "nor does the one that came since"
    assert told[-1] == ("step_unsent", "no_address: apprise")


async def test_a_recipient_that_the_operator_named_is_told_of_any_user(redis_client: Redis) -> None:
    async with webhook_server() as server:
        async with delivering(redis_client, apprise_recipients=f"oncall=json://127.0.0.1:{server.port}/oncall"):
            await due(redis_client, "channel://apprise/to:oncall")
            await due(redis_client, "channel://apprise/to:nobody", 2)
            await until(lambda: idle(redis_client))
        assert [got.path.rstrip("/") for got in server.received] == ["/oncall"]
    assert await reasons(redis_client) == ["refused: apprise_recipients has no nobody"]


async def test_a_step_of_a_channel_that_is_no_more_is_a_dead_letter(redis_client: Redis) -> None:
    async with delivering(redis_client):
        await due(redis_client, "channel://pigeon")
        await until(lambda: idle(redis_client))
    assert await reasons(redis_client) == ["refused: there is no channel pigeon"]


async def test_each_browser_of_a_user_gets_a_push_and_one_that_has_unsubscribed_is_removed(redis_client: Redis) -> None:
    settings = {"push_hosts": ("127.0.0.1",), "webhook_networks": ("127.0.0.0/8",)}
    told = Told()
    async with push_service() as service, delivering(redis_client, told, **settings) as addresses:
        phone, laptop = service.subscribe("phone"), service.subscribe("laptop")
        for browser in (phone, laptop):
            await addresses.change("acme:ann", lambda kept, one=browser.subscription: kept.with_browser(one))  # type: ignore[misc]
        await due(redis_client, "channel://push")
        await until(lambda: len(service.server.received) == 2)
        await until(lambda: idle(redis_client))
        assert [push.payload["title"] for browser in (phone, laptop) for push in service.pushes(browser)] == ["Disk full"] * 2
        service.server.received.clear()
        service.server.statuses = [410, 503]
        await due(redis_client, "channel://push", 2)
        await until(lambda: len(service.server.received) == 3)
        await until(lambda: idle(redis_client))
        gone, left = sorted((phone, laptop), key=lambda browser: len(service.pushes(browser)))
        assert (await addresses.read("acme:ann")).push == (left.subscription,)
        assert gone.subscription.id not in str(await reasons(redis_client))
        assert ("step_unsent", "no_address: push") in told
    assert await lanes_of(redis_client) == {"channel://push", "channel://push/127.0.0.1"}
