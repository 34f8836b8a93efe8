"""The revocations in a real Redis: appended once, followed from any point, bounded, dropped when they expire."""

from __future__ import annotations

import time
from typing import Any

import pytest
from redis.asyncio import Redis

from engine.config import Config
from engine.core.model.revocation import Revocation
from engine.errors import Overloaded, StorageUnavailable
from engine.features.token_revocation import revocation_log
from engine.features.token_revocation.keys import (
    REVOCATION_ENTRIES_KEY,
    REVOCATION_EXPIRIES_KEY,
    REVOCATION_LOG_KEY,
    REVOCATION_STATE_KEY,
    REVOCATION_TENANTS_KEY,
)
from engine.features.token_revocation.revocation_log import RevocationLog

LATER_MS = int(time.time() * 1000) + 3_600_000


def revocation(name: str = "ann", before_ms: int = 5, expires_ms: int = LATER_MS, kind: str = "user", tenant: str = "acme") -> Revocation:
    return Revocation(kind, tenant, name, expires_ms, before_ms)


async def counts(client: Redis) -> tuple[int, int, int]:
    """Entries of the log, of the hash, of the sorted set: they must never differ."""
    log_key, entries_key, expiries_key = REVOCATION_LOG_KEY, REVOCATION_ENTRIES_KEY, REVOCATION_EXPIRIES_KEY
    return await client.xlen(log_key), await client.hlen(entries_key), await client.zcard(expiries_key)  # type: ignore[misc]


async def test_a_reader_follows_what_others_append(redis_client: Redis) -> None:
    log = RevocationLog(redis_client, Config())
    empty = await log.read("")
    assert (empty.revocations, empty.head) == ([], "")
    first, second, third = revocation("a"), revocation("b:c", kind="jti", before_ms=0), revocation("d", tenant="other")
    await log.append([first])
    found = await log.read("")
    assert (found.revocations, found.whole) == ([first], True)
    assert (await log.read(found.head)).revocations == []
    await log.append([second, third])
    more = await log.read(found.head)
    assert (more.revocations, more.whole) == ([second, third], False)
    assert (await RevocationLog(redis_client, Config()).read("")).revocations == [first, second, third]


async def test_repeating_a_revocation_changes_nothing_and_a_stronger_one_replaces_it(redis_client: Redis) -> None:
    log = RevocationLog(redis_client, Config())
    await log.append([revocation(before_ms=5)] * 2)
    head = (await log.read("")).head
    await log.append([revocation(before_ms=4), revocation(before_ms=5, expires_ms=LATER_MS - 1)])
    assert (await log.read(head)).revocations == []
    await log.append([revocation(before_ms=6, expires_ms=LATER_MS - 1)])
    found = await log.read(head)
    assert found.revocations == [revocation(before_ms=6)], "and lasts as long as the longer one"
    assert (await counts(redis_client))[1:] == (1, 1)
    assert (await log.read(found.head)).revocations == []


async def test_entries_that_are_merged_over_and_over_are_no_loss_to_a_reader_and_do_not_fill_the_log(
    redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revocation_log, "_USELESS_MAX", 5)
    log = RevocationLog(redis_client, Config())
    await log.append([revocation("a")])
    head = (await log.read("")).head
    for before_ms in range(1, 20):
        await log.append([revocation("b", before_ms=before_ms), revocation("c", expires_ms=1000 + before_ms, kind="jti")])
        if before_ms % 2:
            found = await log.read(head)
            assert not found.whole, "everything would be read again and again"
            assert revocation("b", before_ms=before_ms) in found.revocations
            head = found.head
    length, entries, expiries = await counts(redis_client)
    assert entries == expiries
    assert length == entries + 5


async def test_a_reader_that_was_away_for_long_reads_everything(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revocation_log, "_USELESS_MAX", 1)
    log = RevocationLog(redis_client, Config())
    await log.append([revocation("a")])
    head = (await log.read("")).head
    await log.append([revocation("b", before_ms=before_ms) for before_ms in (1, 2, 3)])
    found = await log.read(head)
    assert found.whole
    assert found.revocations[0] == revocation("a")
    assert found.revocations[-1] == revocation("b", before_ms=3)
    assert (await log.read(found.head)).revocations == []


async def test_expired_revocations_are_dropped_and_make_room(redis_client: Redis) -> None:
    log = RevocationLog(redis_client, Config(revocations_max=3))
    gone = [revocation(f"u{n}", expires_ms=1000 + n) for n in range(3)]
    await log.append(gone)
    head = (await log.read("")).head
    await log.append([revocation("a"), revocation("b")])
    assert (await counts(redis_client))[1:] == (2, 2)
    assert await redis_client.hgetall(REVOCATION_TENANTS_KEY) == {b"acme": b"2"}  # type: ignore[misc]
    assert [entry.name for entry in (await log.read(head)).revocations] == ["a", "b"]


@pytest.mark.parametrize(
    ("limits", "named"),
    [({"revocations_max": 2}, "revocations_max"), ({"revocations_max": 9, "revocations_per_tenant_max": 2}, "revocations_per_tenant_max")],
)
async def test_at_the_limit_a_new_one_is_refused_and_a_stronger_one_of_the_same_is_not(
    redis_client: Redis, limits: dict[str, int], named: str
) -> None:
    log = RevocationLog(redis_client, Config(**limits))  # type: ignore[arg-type]
    await log.append([revocation("a"), revocation("b")])
    with pytest.raises(Overloaded, match=named) as caught:
        await log.append([revocation("c")])
    assert 0 < caught.value.backlog_ms <= 3_600_000
    await log.append([revocation("a"), revocation("b", before_ms=9)])
    assert (await counts(redis_client))[1:] == (2, 2)
    if named == "revocations_per_tenant_max":
        await log.append([revocation("c", tenant="other")])


async def lost_its_end(client: Redis) -> None:
    """As after a fail-over to a replica that lagged: what was written since `moment` is not there."""
    await client.delete(REVOCATION_LOG_KEY, REVOCATION_ENTRIES_KEY, REVOCATION_EXPIRIES_KEY, REVOCATION_STATE_KEY)


async def test_a_reader_notices_when_storage_has_lost_what_it_read(redis_client: Redis) -> None:
    log = RevocationLog(redis_client, Config())
    await log.append([revocation("a"), revocation("b")])
    head = (await log.read("")).head
    await lost_its_end(redis_client)
    found = await log.read(head)
    assert (found.revocations, found.whole) == ([], True)
    await log.append([revocation("c")])
    found = await log.read(head)
    assert (found.revocations, found.whole) == ([revocation("c")], True), "also when others have appended since"


async def test_many_are_read_in_pages(redis_client: Redis) -> None:
    log = RevocationLog(redis_client, Config())
    await log.append([revocation("a")])
    head = (await log.read("")).head
    for number in range(2100):
        await redis_client.xadd(
            REVOCATION_LOG_KEY,
            {"p": head, "e": f"jti:acme:{number}", "b": 0, "x": LATER_MS},
            id=f"{int(head.partition('-')[0]) + 1 + number}-0",
        )
    await redis_client.hset(REVOCATION_STATE_KEY, "last", f"{int(head.partition('-')[0]) + 2100}-0")  # type: ignore[misc]
    assert len((await log.read("")).revocations) == 2101
    found = await log.read(head)
    assert (len(found.revocations), found.whole) == (2100, False)


async def test_an_entry_that_cannot_be_read_hides_no_other(redis_client: Redis, caplog: pytest.LogCaptureFixture) -> None:
    log = RevocationLog(redis_client, Config())
    await log.append([revocation("a")])
    odd: Any = {"e": "nonsense"}
    await redis_client.xadd(REVOCATION_LOG_KEY, odd)
    assert (await log.read("")).revocations == [revocation("a")]
    assert "cannot be read" in caplog.text


@pytest.mark.parametrize("last", [b"\xff", b"abc", b""])
async def test_a_damaged_state_hides_no_revocation(redis_client: Redis, last: bytes) -> None:
    log = RevocationLog(redis_client, Config())
    await log.append([revocation("a")])
    head = (await log.read("")).head
    await redis_client.hset(REVOCATION_STATE_KEY, "last", last)  # type: ignore[misc]
    for known in ("", head):
        assert (await log.read(known)).revocations == [revocation("a")]
    await log.append([revocation("b")])
    found = await log.read("")
    assert found.revocations == [revocation("a"), revocation("b")]
    assert (await log.read(found.head)).revocations == []


async def test_without_storage_nothing_is_said_to_be_revoked() -> None:
    client = Redis.from_url("unix:///nowhere/redis.sock")
    log = RevocationLog(client, Config())
    with pytest.raises(StorageUnavailable):
        await log.append([revocation()])
    with pytest.raises(StorageUnavailable):
        await log.read("")
    await client.aclose()
