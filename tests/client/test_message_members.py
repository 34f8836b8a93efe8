"""What a type checker and the clients make of the members of messages and events."""

from __future__ import annotations

import collections.abc
import inspect
import re
import typing
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

import msgspec
import pytest
from msgspec import Struct

from engine import Publisher
from engine.client import message_members
from engine.client.frames import Message
from engine.core.model.members import DELIVERED, SENT
from engine.core.model.question import Choice
from engine.features.rules.events import _Event
from engine.publish.items import Collapse
from engine.ray import ReceivedNotification
from tests.support.member_types import alternatives
from tests.support.publish_server import running
from tests.support.type_check import findings

CONVERTED = {
    **{name: {timedelta} for name in ("delay", "ttl", "window")},
    **{name: {datetime} for name in ("at", "ts")},
}
"""Types that a client converts."""

IN_PYTHON = {
    Collapse: message_members.CollapseMembers,
    dict: message_members.CollapseMembers,
    message_members.AskMembers: dict[str, Any],
    Literal[True]: bool,
}


def given(kind: Any) -> set[Any]:
    """The alternatives of a type, as a Python program gives or gets them."""
    return {IN_PYTHON.get(one, one) for one in alternatives(kind)}


def with_converted(kinds: Mapping[str, Any]) -> dict[str, set[Any]]:
    return {name: given(kind) | CONVERTED.get(name, set()) for name, kind in kinds.items()}


@pytest.mark.parametrize(
    ("members", "read"),
    [(message_members.CollapseMembers, Collapse), (message_members.ChoiceMembers, Choice), (message_members.EventMembers, _Event)],
)
def test_parts_of_a_message_are_those_that_the_engine_reads(members: Any, read: type[Struct]) -> None:
    fields = {field.name: field for field in msgspec.structs.fields(read)}
    if members is message_members.EventMembers:  # `event` names the others itself
        fields = {name: field for name, field in fields.items() if name not in ("type", "user", "data")}
    assert required(members) == {name for name, field in fields.items() if field.required}
    hints = {name: given(kind) for name, kind in typing.get_type_hints(members).items()}
    assert hints == with_converted({name: field.type for name, field in fields.items()})


def required(members: Any) -> set[str]:
    hints = typing.get_type_hints(members, include_extras=True)
    return {name for name, kind in hints.items() if typing.get_origin(kind) is typing.Required}


def test_messages_to_publish_are_typed_by_the_table() -> None:
    hints = {name: given(kind) for name, kind in typing.get_type_hints(message_members.NewMessage).items()}
    assert hints == with_converted({name: member.kind.type for name, member in SENT.items()})
    assert required(message_members.NewMessage) == {"type"}


def test_rows_have_the_members_of_messages_but_for_those_that_the_sink_sets() -> None:
    hints = {name: given(kind) for name, kind in typing.get_type_hints(message_members.NewMessage).items()}
    rows = typing.get_type_hints(message_members.RowMembers)
    assert rows.keys() == hints.keys() - {"user", "users", "topic", "broadcast", "type", "id", "data"}
    for name, kind in rows.items():
        values = {one for one in given(kind) if typing.get_origin(one) is not collections.abc.Callable}
        assert values == hints[name], name


@pytest.mark.parametrize("received", [Message, ReceivedNotification])
def test_received_messages_are_typed_by_the_table(received: type[Struct]) -> None:
    fields = {field.name: given(field.type) for field in msgspec.structs.fields(received)}
    assert fields == {name: given(member.kind.type) for name, member in DELIVERED.items()}


@pytest.mark.parametrize("described", [(message_members.MessageMembers, message_members.EventMembers), (message_members.DeliveredMembers,)])
def test_each_member_is_described(described: tuple[Any, ...]) -> None:
    text = "".join(inspect.getdoc(one) or "" for one in described)
    assert not [name for name in described[0].__annotations__ if not re.search(rf"\b{name}\b", text)]


@pytest.mark.parametrize(
    ("member", "sent"),
    [
        ({"delay": timedelta(days=7)}, {"delay": 604800.0}),
        ({"ttl": timedelta(milliseconds=1500)}, {"ttl": 1.5}),
        ({"collapse": {"key": "k", "window": timedelta(minutes=5)}}, {"collapse": {"key": "k", "window": 300.0}}),
        ({"at": datetime(2031, 5, 17, 9, 30, tzinfo=UTC)}, {"at": 1936776600000}),
        ({"at": datetime(2031, 5, 17, 11, 30, 0, 1999, tzinfo=ZoneInfo("Europe/Berlin"))}, {"at": 1936776600001}),
        ({"ts": datetime(1970, 1, 1, tzinfo=timezone(timedelta(hours=-1)))}, {"ts": 3600000}),
        ({"delay": 5, "at": "2031-05-17T09:30:00Z", "collapse": {"key": "k"}}, None),
        ({"id": None, "ttl": None}, {}),
    ],
)
def test_python_times_are_sent_as_seconds_and_milliseconds(member: Mapping[str, Any], sent: Mapping[str, Any] | None) -> None:
    assert message_members.sent_form({"type": "t", **member}) == {"type": "t", **(member if sent is None else sent)}


@pytest.mark.parametrize("name", ["at", "ts"])
async def test_a_time_without_zone_is_refused_with_the_name_of_its_member(name: str) -> None:
    naive = datetime(2031, 5, 17)  # noqa: DTZ001
    async with running() as engine, Publisher(engine.url, "tok") as publisher:
        for call in (
            publisher.publish(user="u", type="t", **{name: naive}),
            publisher.publish_many([{"user": "u", "type": "t", name: naive}]),
            publisher.post(user="u", type="t", **{name: naive}),
        ):
            with pytest.raises(ValueError, match=rf"`{name}`: .* has no time zone"):
                await call
        assert not engine.requests


async def test_items_of_every_call_take_python_times() -> None:
    at, delay = datetime(2031, 5, 17, 9, 30, tzinfo=UTC), timedelta(minutes=1)
    async with running() as engine, Publisher(engine.url, "tok") as publisher:
        await publisher.publish(user="u", type="t", at=at)
        await publisher.publish_many([{"user": "u", "type": "t", "delay": delay}])
        await publisher.post(user="u", type="t", ttl=delay)
        await publisher.flush()
        times = [{name: item[name] for name in ("at", "delay", "ttl") if name in item} for (item,) in engine.requests]
        assert times == [{"at": 1936776600000}, {"delay": 60.0}, {"ttl": 60.0}]


PROGRAM = """
from datetime import UTC, datetime, timedelta
from engine import NewMessage, Publisher, SyncClient, SyncPublisher
from engine.ray import AsyncPublisher, NotificationSink, Publisher as TaskPublisher

async def use(publisher: Publisher, sync: SyncPublisher, asynchronous: AsyncPublisher, task: TaskPublisher) -> None:
    await publisher.publish(type="t", user="u", priority="low", delay=timedelta(days=7), collapse={"key": "k", "window": 5})
    sync.post(type="t", topic="post/9", at=datetime.now(UTC), ttl=60, data={"any": ["json"]}, id=None)
    item: NewMessage = {"type": "t", "users": ["a", "b"], "retain": False}
    task.publish_many([item, {"type": "t", "user": "u"}])
    await asynchronous.event(type="t", user="u", target="post/9", ts=datetime.now(UTC))
    sync.explain(type="t", users=["a"], category="touch")
    SyncPublisher("http://engine", "token", queue_max=1), SyncClient("http://engine", "token", auto_ack=False), TaskPublisher(tenant="jobs")
    sync.set_preferences("u", categories={"news": "off", "ads": None}, zone=None)
    NotificationSink(user="who", type="t", id="row", priority="low", ttl=lambda row: timedelta(days=row["days"]))
"""

WRONG = (
    'await publisher.publish(type="t", user="u", pirority="low")',
    'await publisher.publish(type="t", user="u", priority="urgent")',
    'await publisher.post(type="t", user="u", delay="5s")',
    'await publisher.publish(type="t", user="u", collapse={"kee": "k"})',
    'await publisher.event(type="t", user="u", priority="low")',
    'await publisher.explain(type="t", user="u", pirority="low")',
    'await publisher.reschedule("id", at=timedelta(1))',
    'sync.publish(type="t", user="u", pirority="low")',
    'sync.post(type="t", user="u", pirority="low")',
    'sync.event(type="t", user="u", dta=1)',
    'sync.explain(type="t", user="u", pirority="low")',
    'await asynchronous.publish(type="t", user="u", pirority="low")',
    'task.publish(type="t", user="u", pirority="low")',
    'task.post(type="t", user="u", pirority="low")',
    'NotificationSink(user="who", type="t", id="row", pirority="low")',
    'NotificationSink(user="who", type="t", id="row", ttl=lambda row: "1d")',
    'SyncPublisher("http://engine", "token", qeue_max=1)',
    'SyncClient("http://engine", "token", auto_akc=False)',
    "TaskPublisher(tennant='jobs')",
    'sync.set_preferences("u", categories={"news": "no"})',
    'typo: NewMessage = {"type": "t", "pirority": "low"}',
)


def test_a_type_checker_finds_misspelt_members_and_passes_right_ones(tmp_path: Path) -> None:
    right = PROGRAM.count("\n")
    program = PROGRAM + "".join(f"    {line}\n" for line in WRONG)
    found = {line for line, _ in findings(tmp_path, program)}
    assert found == set(range(right + 1, right + 1 + len(WRONG)))
