"""Digests by mail: armed by preferences, each arming the next, sent of what is unread only, ended by their link."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, tzinfo
from typing import Any

import httpx
import msgspec
import pytest

from engine.core.model.action import ChannelTarget
from engine.core.policy.profile import MailDigest
from engine.core.wire import records as wire
from engine.core.wire.records import Timer
from engine.errors import ActionFailed, Invalid
from engine.features.actions.store import QueuedAction
from engine.features.digest.core.mail_times import next_due
from engine.features.policy import time_zones
from engine.features.policy.time_zones import zone
from engine.features.reach.core.addresses import Addresses
from tests.support.edge_world import EdgeWorld, edge_world
from tests.support.mail_server import MailServer, mail_server
from tests.support.shard_world import World

WEEKLY = {"at": "08:00", "days": ["mon", "thu"]}
ANN = "ann@example.org"
DAY_MS = 86_400_000


@pytest.fixture
async def mails() -> AsyncIterator[MailServer]:
    with mail_server() as server:
        yield server


@pytest.fixture
async def world(mails: MailServer) -> AsyncIterator[EdgeWorld]:
    settings: dict[str, Any] = {"smtp_url": mails.url, "mail_from": "ops@example.com", "public_url": "https://notify.example.com"}
    async with edge_world(**settings) as world:
        world.addresses.kept["default:u1"] = Addresses(ANN)
        yield world


async def choose(world: EdgeWorld, **changes: Any) -> dict[str, Any]:
    answer = await world.once().patch("/v1/preferences", json=changes)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def armed(world: EdgeWorld) -> list[Timer]:
    return sorted(world.scheduler.timers.values(), key=lambda timer: timer.due_ms)


async def fall_due(world: EdgeWorld, timer: Timer) -> None:
    """The action of the timer, on the edge that carries it out."""
    assert timer.action is not None
    action = QueuedAction(
        "1-0", timer.action.target, "default", "u1", timer.envelope.id, timer.action.key, timer.due_ms, 0, b"{%b}" % timer.envelope.body
    )
    await world.gateway.channel_callers["digest"](ChannelTarget("digest"), action)


async def test_a_change_of_preferences_arms_the_next_time_in_the_users_zone_once(world: EdgeWorld) -> None:
    for _ in range(2):
        assert (await choose(world, zone="Asia/Tokyo", mail_digest=WEEKLY))["mail_digest"] == WEEKLY
    (timer,) = armed(world)
    now_ms = world.gateway.wall_ms()
    assert timer.due_ms == next_due(MailDigest(480, 0b1001), zone("Asia/Tokyo"), now_ms)
    await choose(world, categories={"touch": "off"})
    assert len(armed(world)) == 1


async def test_a_digest_is_sent_of_what_is_unread_once_by_its_message_id(world: EdgeWorld, mails: MailServer) -> None:
    await choose(world, mail_digest={"at": "08:00"}, locale="en")
    (timer,) = armed(world)
    await fall_due(world, timer)
    assert mails.mails == [], "nothing is unread"
    for actor in ("ana", "bob"):
        await world.publish(type="post.liked", target={"kind": "post", "id": 7, "title": "<Roses>"}, retain=True, actor=actor)
    for _ in range(2):
        await fall_due(world, timer)
    first, again = mails.to(ANN)
    assert first["Subject"] == "While you were away: 2 unread"
    assert first["Message-ID"] == again["Message-ID"]
    texts = [part.get_content() for part in first.iter_parts()]  # type: ignore[attr-defined]
    assert "- 2 people liked “<Roses>”" in texts[0]
    assert "<li>2 people liked “&lt;Roses&gt;”</li>" in texts[1]


async def test_each_digest_arms_the_next_before_it_is_sent(world: EdgeWorld, mails: MailServer) -> None:
    await choose(world, mail_digest={"at": "08:00"})
    (first,) = armed(world)
    await world.publish()
    mails.answers = ["451 later"]
    with pytest.raises(ActionFailed):
        await fall_due(world, first)
    _, second = armed(world)
    assert second.due_ms - first.due_ms == 86_400_000
    assert mails.mails == []


async def test_a_digest_that_failed_is_sent_although_its_time_was_changed(world: EdgeWorld, mails: MailServer) -> None:
    """The next one is armed, and begins behind it."""
    await choose(world, mail_digest={"at": clock(world, 5)}, zone="UTC")
    (first,) = armed(world)
    await world.publish(retain=True)
    mails.answers = ["451 later"]
    with pytest.raises(ActionFailed):
        await fall_due(world, first)
    await choose(world, mail_digest={"at": clock(world, 4)})
    changed = armed(world)[1]
    for timer in (first, changed):
        await fall_due(world, timer)
    assert len(mails.to(ANN)) == 1


async def test_a_user_whose_timers_were_cancelled_gets_digests_again(world: EdgeWorld) -> None:
    """By an erasure, say: the user comes back and wants them at the same time."""
    for _ in range(2):
        await choose(world, mail_digest={"at": "08:00"})
        await choose(world, mail_digest={"at": "08:00"})
        assert len(armed(world)) == 1
        await world.gateway.shard_client.cancel_all("default:u1")


async def test_an_application_that_cancels_all_timers_ends_no_digests(world: EdgeWorld) -> None:
    await choose(world, mail_digest={"at": "08:00"})
    (before,) = armed(world)
    assert (await world.once("app", scopes="publish").delete("/v1/scheduled", params={"user": "u1"})).json() == {"cancelled": 1}
    assert [timer.due_ms for timer in armed(world)] == [before.due_ms]


async def test_digests_go_on_however_often_all_timers_are_cancelled(world: EdgeWorld) -> None:
    await choose(world, mail_digest=WEEKLY)
    (before,) = armed(world)
    for _ in range(12):
        assert (await world.once("app", scopes="publish").delete("/v1/scheduled", params={"user": "u1"})).json() == {"cancelled": 1}
    assert [timer.due_ms for timer in armed(world)] == [before.due_ms]


async def test_a_digest_that_was_due_weeks_ago_still_arms_the_next(world: EdgeWorld) -> None:
    await choose(world, mail_digest={"at": "08:00"})
    shard, (timer,) = World(), armed(world)
    shard.core.fire([timer], timer.due_ms + 30 * 86_400_000)
    shard.settle()
    assert shard.actions == ["channel://digest"]


async def test_a_digest_that_could_not_arm_the_next_is_not_given_up(world: EdgeWorld) -> None:
    """After an outage its first try is its last one, if it is given up by its age, and the user never gets a digest again."""
    await choose(world, mail_digest={"at": "08:00"})
    (timer,) = armed(world)
    world.scheduler.schedule_status = wire.UNAVAILABLE
    with pytest.raises(ActionFailed) as failure:
        await fall_due(world, timer)
    assert failure.value.own
    world.scheduler.schedule_status = wire.OVERLOADED
    with pytest.raises(ActionFailed) as failure:
        await fall_due(world, timer)
    assert not failure.value.own, "a user with too many timers holds up nobody for ever"


async def test_a_digest_that_was_given_up_is_sent_when_it_is_redriven(world: EdgeWorld, mails: MailServer) -> None:
    """Its message has another id then, and is due when it is redriven."""
    await choose(world, mail_digest={"at": "08:00"})
    await world.publish(retain=True)
    (timer,) = armed(world)
    redriven = msgspec.structs.replace(
        timer, due_ms=timer.due_ms + 1, envelope=msgspec.structs.replace(timer.envelope, id="redrive:0123456789abcdef0123456789abcdef")
    )
    await fall_due(world, redriven)
    assert len(mails.to(ANN)) == 1
    assert [one.due_ms for one in armed(world)] == [timer.due_ms, timer.due_ms + DAY_MS]


async def test_a_time_that_is_none_any_more_sends_nothing_and_the_chain_goes_on(world: EdgeWorld, mails: MailServer) -> None:
    await choose(world, mail_digest={"at": "08:00"})
    (old,) = armed(world)
    await choose(world, mail_digest={"at": "09:30"})
    await world.publish()
    world.scheduler.timers.clear()
    await fall_due(world, old)
    assert mails.mails == []
    (new,) = armed(world)
    assert new.due_ms != old.due_ms
    await choose(world, mail_digest=None)
    world.scheduler.timers.clear()
    await fall_due(world, new)
    assert armed(world) == mails.mails == []


def clock(world: EdgeWorld, hours_ago: int) -> str:
    """The local time so long ago, in UTC."""
    return f"{datetime.fromtimestamp(world.gateway.wall_ms() / 1000 - hours_ago * 3600, UTC):%H:%M}"


async def test_a_late_digest_leaves_what_came_since_its_time_to_the_next(world: EdgeWorld, mails: MailServer) -> None:
    """Its timer, or the mail server, was late."""
    await choose(world, mail_digest={"at": clock(world, 1)}, zone="UTC")
    (first,) = armed(world)
    late = msgspec.structs.replace(
        first, due_ms=first.due_ms - DAY_MS, envelope=msgspec.structs.replace(first.envelope, id=f"digest-{first.due_ms - DAY_MS}")
    )
    await world.publish(retain=True)
    for timer in (late, first):
        await fall_due(world, timer)
    assert len(mails.to(ANN)) == 1


async def test_a_message_of_a_publisher_whose_clock_is_ahead_is_told_once(world: EdgeWorld, mails: MailServer) -> None:
    await choose(world, mail_digest={"at": clock(world, 1)}, zone="UTC")
    await world.publish(retain=True, ts=world.gateway.wall_ms() + 30 * DAY_MS)
    for _ in range(2):
        await fall_due(world, armed(world)[-1])
        assert len(mails.to(ANN)) == 1


async def test_a_digest_moved_there_and_back_tells_nothing_twice(world: EdgeWorld, mails: MailServer) -> None:
    await choose(world, mail_digest={"at": clock(world, 2)}, zone="UTC")
    (later,) = armed(world)
    await choose(world, mail_digest={"at": clock(world, 4)})
    sooner = armed(world)[0]
    assert sooner.due_ms < later.due_ms
    await world.publish(retain=True)
    await fall_due(world, sooner)
    assert len(mails.to(ANN)) == 1
    await choose(world, mail_digest={"at": clock(world, 2)})
    await fall_due(world, later)
    assert len(mails.to(ANN)) == 1, "it was told"


@pytest.mark.parametrize("by_application", [False, True])
async def test_a_digest_at_another_time_has_all_since_the_last_one(world: EdgeWorld, mails: MailServer, by_application: bool) -> None:
    await choose(world, mail_digest={"at": clock(world, 5)}, zone="UTC")
    (first,) = armed(world)
    await world.publish(retain=True, ts=world.gateway.wall_ms() - 3 * 3_600_000)
    if by_application:
        await world.once("app", scopes="publish").put("/v1/users/u1/profile", json={"zone": "Etc/GMT+4"})
        await fall_due(world, first)
        assert mails.mails == [], "it is no time any more"
    else:
        await choose(world, mail_digest={"at": clock(world, 1)})
    changed = next(timer for timer in armed(world) if timer.due_ms > first.due_ms)
    await fall_due(world, changed)
    assert len(mails.to(ANN)) == 1
    following = armed(world)[-1]
    assert following.due_ms - changed.due_ms == 86_400_000
    await fall_due(world, following)
    assert len(mails.to(ANN)) == 1, "it was told"


async def test_an_edge_without_the_data_of_a_zone_arms_the_next(world: EdgeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    await choose(world, zone="Asia/Tokyo", mail_digest={"at": "08:00"})
    (timer,) = armed(world)
    world.scheduler.timers.clear()
    monkeypatch.setattr(time_zones, "zone", unknown_zone)
    await fall_due(world, timer)
    (following,) = armed(world)
    assert following.due_ms == next_due(MailDigest(480, 0b1111111), UTC, timer.due_ms)


def unknown_zone(_name: str) -> tzinfo:
    raise Invalid("there is no such zone here", "$.zone")


async def test_a_user_without_an_address_gets_none_and_storage_that_is_away_is_tried_again(world: EdgeWorld, mails: MailServer) -> None:
    await choose(world, mail_digest={"at": "08:00"})
    (timer,) = armed(world)
    await world.publish()
    world.addresses.away = True
    with pytest.raises(ActionFailed) as failed:
        await fall_due(world, timer)
    assert not failed.value.final
    world.addresses.away = False
    world.addresses.kept.clear()
    await fall_due(world, timer)
    assert mails.mails == []


@pytest.mark.parametrize("browser", [False, True])
async def test_the_link_of_a_digest_ends_them_by_one_click(world: EdgeWorld, mails: MailServer, browser: bool) -> None:
    """A browser opens it from web mail, and posts the form of a page without referrer with `Origin: null`."""
    from_mail, from_page = ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}) if browser else ({}, {})
    await choose(world, mail_digest={"at": "08:00"}, locale="zh-CN")
    await world.publish()
    await fall_due(world, armed(world)[0])
    (mail,) = mails.to(ANN)
    assert mail["Subject"] == "您离开期间：1 条未读"
    assert mail["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    found = re.fullmatch(r"<https://notify\.example\.com(/v1/\S+)>", mail["List-Unsubscribe"])
    assert found is not None
    async with httpx.AsyncClient(base_url=world.url(), trust_env=False, verify=False) as client:
        assert (await client.get(found[1], headers=from_mail)).status_code == 200
        assert (await choose(world))["mail_digest"] is not None
        assert (await client.post(f"{found[1][:-3]}abc")).status_code == 404
        assert (await client.post(found[1], data={"List-Unsubscribe": "One-Click"}, headers=from_page)).status_code == 200
        assert (await choose(world))["mail_digest"] is None
        world.shard.profiles.clear()  # the user is erased
        assert (await client.post(found[1])).status_code == 200
        assert world.shard.profiles == {}, "a repeat changes nothing"
