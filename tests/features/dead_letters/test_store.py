"""Dead letters on a real Redis: as shards write them, as operators read and delete them."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from engine.config import Config
from engine.core.model.constants import HIGH
from engine.core.model.envelope import Envelope
from engine.core.model.message import Message
from engine.core.shard.mailbox_store import DeadLetter
from engine.errors import StorageUnavailable
from engine.features.dead_letters.store import DeadLetterStream, LetterPage, write_dead_letters
from engine.store.keys import dead_letter_key
from engine.store.sealed_fields import is_whole


def letter(key: str, seq: int = 1) -> DeadLetter:
    return DeadLetter(key, Message(seq, Envelope(f"m{seq}", b"", HIGH, True, b'"id":"m%d"' % seq), 0, 0, 3), "no renderer")


async def test_a_dead_letter_has_every_field_and_goes_to_its_tenants_stream(redis_client: Redis) -> None:
    await write_dead_letters(redis_client, [letter("acme:a:b"), letter("other:u", 2)], 100)
    ((_, fields),) = await redis_client.xrange(dead_letter_key("acme"))
    assert is_whole(dead_letter_key("acme").encode(), fields)
    assert {name: value for name, value in fields.items() if name != b"crc32c"} == {
        b"user": b"a:b",
        b"seq": b"1",
        b"id": b"m1",
        b"priority": b"high",
        b"reason": b"no renderer",
        b"attempts": b"3",
        b"body": b'{"id":"m1"}',
    }
    assert await redis_client.xlen(dead_letter_key("other")) == 1


async def test_dead_letters_are_bounded_in_bytes(redis_client: Redis) -> None:
    """Each is as large as may be; a count alone would keep them all."""
    body = b'"id":"m","data":"%b"' % (b"x" * 60_000)
    for first in range(0, 400, 40):
        letters = [DeadLetter("t:u", Message(seq, Envelope("m", b"", HIGH, True, body), 0, 0), "no") for seq in range(first, first + 40)]
        await write_dead_letters(redis_client, letters, 100_000, 4 << 20, 64 << 10)
        used = await redis_client.memory_usage(dead_letter_key("t"), samples=0)
        assert used is not None
        assert used < (4 << 20) + 104 * 61_000
    left = [int(fields[b"seq"]) for _, fields in await redis_client.xrange(dead_letter_key("t"))]
    assert left == list(range(400 - len(left), 400)), "the oldest went"
    assert 40 < len(left) < 180


async def test_the_stream_is_trimmed_to_about_its_limit(redis_client: Redis) -> None:
    await write_dead_letters(redis_client, [letter("acme:u", seq) for seq in range(1, 401)], 50)
    assert 50 <= await redis_client.xlen(dead_letter_key("acme")) <= 150, "whole nodes of 100 entries are dropped"


# -- reading and deleting ----------------------------------------------------------------------------------------------
async def walk(stream: DeadLetterStream, user: str = "", count: int = 7, *, oldest_first: bool = False) -> tuple[list[int], int]:
    """The numbers on all pages, and how many pages there were."""
    seqs, after, pages = list[int](), "", 0
    while True:
        page = await stream.page("t", user, after, count, oldest_first=oldest_first)
        assert len(page.letters) <= count
        seqs += [found.seq for found in page.letters]
        pages, after = pages + 1, page.after
        if not after:
            return seqs, pages


@pytest.mark.parametrize("oldest_first", [False, True])
async def test_pages_together_have_every_letter_once_in_order(redis_client: Redis, oldest_first: bool) -> None:
    stream = DeadLetterStream(redis_client, Config())
    assert await stream.page("t") == LetterPage([], "", 0)
    await write_dead_letters(redis_client, [letter(f"t:u{seq % 3}", seq) for seq in range(300)], 1000)
    order = list(range(300)) if oldest_first else list(range(300))[::-1]
    assert (await walk(stream, oldest_first=oldest_first))[0] == order
    assert (await walk(stream, "u1", oldest_first=oldest_first))[0] == [seq for seq in order if seq % 3 == 1]
    assert (await stream.page("t", count=1)).total == 300


@pytest.mark.parametrize("after", ["0-0", "00-0", "0-1", "999999999999999-9999999999"])
async def test_a_page_behind_either_end_is_empty_or_whole(redis_client: Redis, after: str) -> None:
    stream = DeadLetterStream(redis_client, Config())
    await write_dead_letters(redis_client, [letter("t:u", seq) for seq in range(3)], 1000)
    newest = [found.seq for found in (await stream.page("t", after=after)).letters]
    oldest = [found.seq for found in (await stream.page("t", after=after, oldest_first=True)).letters]
    assert (newest, oldest) == (([], [0, 1, 2]) if after.startswith("0") else ([2, 1, 0], []))
    assert await stream.read("t", [after]) == [None]
    assert await stream.remove("t", [after]) == 0


async def test_a_page_of_one_user_looks_at_a_bounded_number_of_entries(redis_client: Redis) -> None:
    stream = DeadLetterStream(redis_client, Config(dead_letters_looked_max=100))
    await write_dead_letters(redis_client, [letter("t:ann" if seq == 0 else "t:bob", seq) for seq in range(400)], 1000)
    seqs, pages = await walk(stream, "ann")
    assert seqs == [0]
    assert pages >= 4


async def test_letters_are_read_by_their_ids_and_removed(redis_client: Redis) -> None:
    stream = DeadLetterStream(redis_client, Config())
    await write_dead_letters(redis_client, [letter("t:a:b", 1), letter("t:c", 2), letter("other:c", 3)], 1000)
    second, first = (await stream.page("t")).letters
    assert (first.user, first.seq, first.id, first.priority, first.reason, first.attempts, first.body) == (
        "a:b", 1, "m1", HIGH, "no renderer", 3, b'{"id":"m1"}',
    )  # fmt: skip
    assert first.at_ms == int(first.letter.split("-")[0])
    assert await stream.read("t", [second.letter, "1-1", first.letter]) == [second, None, first]
    assert await stream.read("nobody", [first.letter]) == [None]
    assert [await stream.remove("t", [first.letter, "1-1"]) for _ in range(2)] == [1, 0]
    assert await stream.remove("t", []) == 0
    assert (await stream.page("t")).letters == [second]


async def test_a_silent_redis_is_unavailable() -> None:
    client = Redis.from_url("unix:///nonexistent/redis.sock")
    stream = DeadLetterStream(client, Config())
    for call in (
        write_dead_letters(client, [letter("t:u")], 9),
        stream.page("t"),
        stream.read("t", ["1-1"]),
        stream.remove("t", ["1-1"]),
    ):
        with pytest.raises(StorageUnavailable):
            await call
    await client.aclose()


async def test_of_a_damaged_dead_letter_no_body_is_read(redis_client: Redis) -> None:
    await write_dead_letters(redis_client, [letter("acme:u")], 100)
    ((entry, fields),) = await redis_client.xrange(dead_letter_key("acme"))
    await redis_client.delete(dead_letter_key("acme"))
    await redis_client.xadd(dead_letter_key("acme"), {**fields, b"body": b'{"id":"m2"}'}, id=entry)
    (found,) = (await DeadLetterStream(redis_client, Config()).page("acme")).letters
    assert (found.body, found.user) == (b"", "u")
