"""The generator's books: whoever reads a benchmark's "lost 0" relies on them."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.books import Books, Data


def test_every_user_has_numbers_of_its_own() -> None:
    books = Books(2)
    assert [(data.to, data.n) for data in (books.write(0, 0.0), books.write(1, 0.0), books.write(0, 0.0))] == [(0, 1), (1, 1), (0, 2)]
    assert books.sent == 3


def test_a_broadcast_is_everybodys_next_message() -> None:
    books = Books(3)
    for n in (1, 2):
        data = books.write_broadcast(0.0)
        assert (data.to, data.n) == (-1, n)
        for ledger in books.ledgers:
            books.take(ledger, data, 0.0)
    assert (books.sent, books.received, books.repeated, books.out_of_order) == (6, 6, 0, 0)


def test_latency_counts_from_the_time_a_message_was_meant_to_be_sent() -> None:
    books = Books(1)
    books.take(books.ledgers[0], books.write(0, 10.0), 10.25)
    assert books.latencies_s == [0.25]
    assert books.last_s == 10.25


@given(st.integers(1, 30).flatmap(lambda n: st.lists(st.integers(1, n), max_size=60)))
def test_the_books_agree_with_a_list_of_what_arrived(arrivals: list[int]) -> None:
    books = Books(1)
    (ledger,) = books.ledgers
    seen: set[int] = set()
    late = 0
    for n in arrivals:
        late += n not in seen and n < max(seen, default=0)
        seen.add(n)
        books.take(ledger, Data(0, n, 0.0), 0.0)
    assert books.received == len(seen)
    assert books.repeated == len(arrivals) - len(seen)
    assert books.out_of_order == late
    assert ledger.missing == set(range(1, max(seen, default=0) + 1)) - seen


async def test_who_waits_for_a_number_of_messages_goes_on_when_they_are_there() -> None:
    books = Books(1)
    waiting = asyncio.ensure_future(books.reach(2))
    await asyncio.sleep(0)
    books.take(books.ledgers[0], books.write(0, 0.0), 0.0)
    await asyncio.sleep(0)
    assert not waiting.done()
    books.take(books.ledgers[0], books.write(0, 0.0), 0.0)
    assert await asyncio.wait_for(waiting, 10) is True


async def test_who_waits_for_messages_that_never_come_is_told() -> None:
    assert await Books(1).reach(1, patience_s=0.01) is False


@pytest.mark.parametrize("dues", [[], [0.0]])
async def test_nobody_waits_for_what_is_there_already(dues: list[float]) -> None:
    books = Books(1)
    for due in dues:
        books.take(books.ledgers[0], books.write(0, due), 0.0)
    assert await asyncio.wait_for(books.reach(len(dues)), 10) is True
