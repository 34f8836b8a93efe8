"""Keys: two different things never share one, whatever the texts of users in them are."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from redis.asyncio import Redis

from engine.cli.feature_data import FEATURES
from engine.core.model.names import is_tenant
from engine.core.model.routing import TIMER_PARTITIONS, mailbox_key, slot_of
from engine.features.verification.stored_records import Kinds
from engine.store import keys
from tests.support.all_keys import all_keys, keys_by_kind
from tests.support.journal_writer import Writer
from tests.support.key_strategies import AUDIENCES, IDS, MAILBOXES, TENANTS, USERS, colliding_users
from tests.support.running_engine import RunningEngine


# -- Ids. --------------------------------------------------------------------------------------------------------------
@given(MAILBOXES | AUDIENCES, IDS, MAILBOXES | AUDIENCES, IDS)
@example("t:g726", "x:1", "t:g726:x", "1")  # these are of one slot
@example("t:\ng276", "x:1", "t:\ng276:x", "1")
@example("t:\n", "x:1", "t:\nx", "1")
def test_two_pairs_of_a_user_or_audience_and_an_id_never_share_a_key(key: str, id: str, other_key: str, other_id: str) -> None:
    assert (keys.idempotency_key(key, id) == keys.idempotency_key(other_key, other_id)) == ((key, id) == (other_key, other_id))


@given(MAILBOXES | AUDIENCES, IDS)
def test_an_ids_key_can_be_taken_apart_again(key: str, id: str) -> None:
    slot, _, rest = keys.idempotency_key(key, id).partition(":id:")
    length, _, rest = rest.partition(":")
    assert slot == f"s{slot_of(key)}"
    assert (rest[: int(length)], rest[int(length) :]) == (key, f":{id}")


@given(TENANTS, USERS, TENANTS, USERS)
def test_two_users_never_share_a_mailbox_key(tenant: str, user: str, other_tenant: str, other_user: str) -> None:
    assert (mailbox_key(tenant, user) == mailbox_key(other_tenant, other_user)) == ((tenant, user) == (other_tenant, other_user))


@pytest.mark.parametrize("text", ["a:b", "", "a b", "a\n", "ä", "a" * 65])
def test_no_tenant_has_a_colon_or_anything_else_that_would_make_its_keys_ambiguous(text: str) -> None:
    assert not is_tenant(text)


async def test_the_same_text_split_otherwise_between_user_and_id_is_another_message_to_the_journal(redis_client: Redis) -> None:
    user, longer = (mailbox_key("t", name) for name in colliding_users("g", "t"))
    first, second = Writer(redis_client, 3, user), Writer(redis_client, 4, longer)
    await first.journal.take_over([first.slot])
    assert await first.write("x:order-1") == {}
    await second.journal.take_over([second.slot])
    assert await second.write("order-1") == {}
    second.mailboxes[longer].recent.clear()  # only storage remembers it
    assert await second.write("order-1") != {}, "a repeat of it is the same"


async def test_over_http_both_messages_are_accepted_and_delivered(engine: RunningEngine) -> None:
    user, longer = colliding_users("collide")
    items = [
        {"user": user, "type": "order.paid", "id": "x:order-1", "data": {}},
        {"user": longer, "type": "order.paid", "id": "order-1", "data": {}},
    ]
    assert [result["status"] for result in [(await engine.publish(item))[0] for item in items]] == ["accepted", "accepted"]
    assert [result["status"] for result in await engine.publish(*items)] == ["duplicate", "duplicate"]
    for item in items:
        async with engine.connect(item["user"]) as socket:
            (message,) = (await engine.receive(socket, "messages"))["messages"]
            assert message["id"] == item["id"]


# -- All of them. ------------------------------------------------------------------------------------------------------
def test_no_two_kinds_of_keys_are_the_same() -> None:
    found = all_keys()
    assert len(set(found)) == len(found)


def test_the_check_of_data_at_rest_knows_every_key() -> None:
    kinds = Kinds(FEATURES)
    assert [key for key in all_keys() if key != keys.IDS_PREFIX and kinds.of(key.encode())[0] == "unknown key"] == []


def test_a_key_of_a_feature_that_is_left_out_is_unknown() -> None:
    left_out = Kinds(data for data in FEATURES if data.feature != "questions")
    assert [left_out.of(key)[0] for key in (b"questions:due", b"s1:answers:t:u")] == ["unknown key", "unknown key"]


def test_the_check_knows_the_trimmed_mark_of_every_stream() -> None:
    streams = (keys.SESSION_STREAM_KEY, keys.OUTCOME_STREAM_KEY, keys.dead_letter_key("t"))
    kinds = Kinds(FEATURES)
    assert [kinds.of(keys.trimmed_mark_key(stream).encode()) for stream in streams] == [("", 0)] * 3


def test_no_text_makes_a_key_one_of_another_kind() -> None:
    text = "\0"
    kinds = keys_by_kind([text])
    del kinds["offline_prefix"]  # the beginning of `offline_key`
    found = set()
    for name, of_kind in kinds.items():
        follows = "0" if name == "IDS_PREFIX" else text if name.lower().endswith("_prefix") else ""
        found |= {(name, re.sub(r"\d+", "0", key + follows)) for key in of_kind}
    for name, key in [one for one in found if text in one[1]]:
        beginning = key.partition(text)[0]
        assert {other for other, key in found if key.startswith(beginning)} == {name}


def test_keys_of_a_slot_or_partition_begin_with_its_name() -> None:
    slot = slot_of("t:u")
    of_slot = [keys.slot_epoch_key(slot), keys.slot_mark_key(slot), keys.page_key(slot), keys.deadlines_key(slot)]
    of_slot += [keys.journal_key(slot), keys.journal_head_key(slot), keys.offline_key("t:u"), keys.idempotency_key("t:u", "1")]
    assert {key.partition(":")[0] for key in of_slot} == {f"s{slot}"}
    timers = [keys.timer_due_key(TIMER_PARTITIONS - 1), keys.timer_user_prefix(TIMER_PARTITIONS - 1) + "t:{s1}"]
    assert {key.partition(":")[0] for key in timers} == {"t15"}


def test_no_key_has_a_hash_tag_beside_that_of_its_store() -> None:
    assert [key for key in all_keys() if "{" in key] == []
