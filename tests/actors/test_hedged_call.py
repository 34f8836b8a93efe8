"""Calls beside calls that get no answer."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import pytest

from engine.actors import hedged_call
from engine.actors.hedged_call import hedged


class Calls:
    """Of one method; each is answered by hand."""

    def __init__(self) -> None:
        self.made: list[asyncio.Future[str]] = []

    def __call__(self) -> asyncio.Future[str]:
        self.made.append(asyncio.get_running_loop().create_future())
        return self.made[-1]

    async def number(self, count: int) -> asyncio.Future[str]:
        """This call, once it is made."""
        while len(self.made) < count:
            await asyncio.sleep(0)
        return self.made[count - 1]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let so many calls beside the first be made without a wait, and no others."""
    return lambda count: monkeypatch.setattr(hedged_call, "AGAIN_S", (0.0,) * count)


@pytest.fixture
def calls() -> Calls:
    return Calls()


async def test_a_call_that_is_answered_is_made_once(calls: Calls) -> None:
    asked = asyncio.ensure_future(hedged(calls))
    (await calls.number(1)).set_result("here")
    assert await asked == "here"
    assert len(calls.made) == 1


async def test_a_call_without_an_answer_is_made_again_and_the_later_answer_counts(calls: Calls, at_once: Callable[[int], None]) -> None:
    at_once(1)
    asked = asyncio.ensure_future(hedged(calls))
    (await calls.number(2)).set_result("the next process")
    assert await asked == "the next process"
    assert calls.made[0].cancelled()


async def test_an_older_call_counts_when_it_is_answered_first(calls: Calls, at_once: Callable[[int], None]) -> None:
    at_once(1)
    asked = asyncio.ensure_future(hedged(calls))
    await calls.number(2)
    calls.made[0].set_result("slow")
    assert await asked == "slow"
    assert calls.made[1].cancelled()


async def test_the_newest_call_decides_that_all_have_failed(calls: Calls, at_once: Callable[[int], None]) -> None:
    at_once(1)
    asked = asyncio.ensure_future(hedged(calls))
    await calls.number(2)
    calls.made[0].set_exception(ConnectionError("late news of a death"))
    await asyncio.sleep(0)
    assert not asked.done()
    calls.made[1].set_exception(ConnectionError("it is being restarted"))
    with pytest.raises(ConnectionError, match="restarted"):
        await asked


async def test_calls_that_nobody_answers_stay_few_and_end_with_their_caller(calls: Calls, at_once: Callable[[int], None]) -> None:
    at_once(3)
    asked = asyncio.ensure_future(hedged(calls))
    await calls.number(4)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asked, 0.01)
    assert len(calls.made) == 4
    assert all(call.cancelled() for call in calls.made)


@pytest.mark.parametrize("answered", range(4))
async def test_failures_that_come_with_an_answer_are_not_logged(calls: Calls, at_once: Callable[[int], None], answered: int) -> None:
    logged: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context["exception"]))
    at_once(3)
    asked = asyncio.ensure_future(hedged(calls))
    await calls.number(4)
    calls.made.pop(answered).set_result("here")
    while calls.made:
        calls.made.pop().set_exception(ConnectionError("its process has ended"))
    assert await asked == "here"
    gc.collect()
    assert not logged
