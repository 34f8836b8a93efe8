"""The loops of the load generator, against a system in this process that delivers, loses or refuses as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bench.books import Books, Data
from bench.system import Publisher, Refused, Sender
from bench.workloads import BATCH, full_load, open_loop


class Loopback(Publisher):
    """Delivers at once, except for the messages whose running number is in `lose`; refuses the first `refusals` requests."""

    def __init__(self, books: Books, lose: frozenset[int] = frozenset(), refusals: Sequence[float | None] = ()) -> None:
        self.books = books
        self.lose = lose
        self.refusals = list(refusals)
        self.requests: list[int] = []
        self.undelivered_max = 0
        self._count = 0

    async def publish(self, messages: Sequence[Data]) -> int:
        self.undelivered_max = max(self.undelivered_max, self.books.sent - self.books.received)
        if self.refusals:
            raise Refused("too much", self.refusals.pop(0))
        self.requests.append(len(messages))
        for data in messages:
            if self._count not in self.lose:
                self.books.take(self.books.ledgers[data.to], data, self.books.clock())
            self._count += 1
        return 100 * len(messages)

    async def broadcast(self, data: Data) -> int:
        raise NotImplementedError

    def close(self) -> None:
        pass


async def test_full_load_keeps_to_its_window_and_sends_everything() -> None:
    books = Books(7)
    publisher = Loopback(books)
    await full_load([Sender(publisher, books, range(7))], books, 1100, window=300)
    assert (books.sent, books.received, books.out_of_order, books.bytes_published) == (1100, 1100, 0, 110_000)
    assert publisher.undelivered_max <= 300
    assert max(publisher.requests) <= BATCH


class Slow(Loopback):
    """Answers after everybody else had a turn, and knows how many requests of all such publishers were under way at once."""

    under_way = 0
    most = 0

    async def publish(self, messages: Sequence[Data]) -> int:
        Slow.under_way += 1
        Slow.most = max(Slow.most, Slow.under_way)
        await asyncio.sleep(0.001)
        Slow.under_way -= 1
        return await super().publish(messages)


async def test_several_publishers_share_the_window_with_one_request_each() -> None:
    books = Books(6)
    publishers = [Slow(books) for _ in range(3)]
    sending = [Sender(publisher, books, range(6)[n::3]) for n, publisher in enumerate(publishers)]
    await full_load(sending, books, 4000, window=600)
    assert (books.sent, books.received, books.out_of_order) == (4000, 4000, 0)
    assert max(publisher.undelivered_max for publisher in publishers) <= 600
    assert Slow.most == 2  # three requests would be 750


class ImpatientBooks(Books):
    """Counts how often nothing came."""

    given_up = 0

    async def reach(self, target: int, patience_s: float = 0.0) -> bool:
        reached = await super().reach(target, 0.01)
        self.given_up += not reached
        return reached


async def test_full_load_goes_on_after_a_loss_and_the_books_say_what_was_lost() -> None:
    books = ImpatientBooks(5)
    await full_load([Sender(Loopback(books, lose=frozenset(range(400))), books, range(5))], books, 1000, window=300)
    assert (books.sent, books.received) == (1000, 600)
    assert books.given_up == 3  # after 250 lost, after 400, at the end: what was given up once is not waited for again


async def test_an_open_loop_sends_at_its_rate_with_the_due_times_of_the_rate() -> None:
    books = Books(4)
    senders = [Sender(Loopback(books), books, range(4)[n::2]) for n in range(2)]
    began = books.clock()
    await open_loop(senders, books, rate=1000, seconds=0.3)
    assert books.clock() - began >= 0.299
    assert (books.sent, books.received, books.repeated) == (300, 300, 0)
    assert min(books.latencies_s) >= 0  # nothing leaves before it is due


async def test_a_refused_request_is_repeated_as_it_was_and_nothing_is_numbered_twice() -> None:
    books = Books(2)
    await Sender(Loopback(books, refusals=[0.0, 0.0]), books, range(2)).send([0.0] * 4)
    assert (books.sent, books.received, books.repeated, books.refused) == (4, 4, 0, 8)


async def test_a_request_refused_for_good_ends_the_benchmark() -> None:
    books = Books(1)
    with pytest.raises(Refused, match="too much"):
        await Sender(Loopback(books, refusals=[None]), books, range(1)).send([0.0])
