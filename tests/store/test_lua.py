"""Scripts on a real Redis that forgets them."""

from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio import Redis

from engine.features.signals import store
from engine.store.lua import Script

RUNS = 4


class Forgetful:
    """A client whose pipelines have the server forget its scripts, and learn this one again, between their commands."""

    def __init__(self, client: Redis, script: Script, forget_before: int, learn_before: int) -> None:
        self._client = client
        self._script = script
        self._forget_before, self._learn_before = forget_before, learn_before
        self.round_trips = 0

    def pipeline(self, transaction: bool) -> Forgetful:
        self._pipeline = self._client.pipeline(transaction=transaction)
        self._theirs: list[bool] = []  # by command: is the reply to it theirs
        self.round_trips += 1
        return self

    def execute_command(self, *command: Any) -> None:
        if self.round_trips == 1:
            at = sum(self._theirs)
            if at == self._forget_before:
                self._own("SCRIPT FLUSH")
            if at == self._learn_before:
                self._own("SCRIPT LOAD", self._script._text)
        self._pipeline.execute_command(*command)
        self._theirs.append(True)

    def _own(self, *command: Any) -> None:
        self._pipeline.execute_command(*command)
        self._theirs.append(False)

    async def execute(self, raise_on_error: bool) -> list[Any]:
        replies = await self._pipeline.execute(raise_on_error=raise_on_error)
        return [reply for reply, theirs in zip(replies, self._theirs, strict=True) if theirs]


@pytest.mark.parametrize("forget_before", range(RUNS + 1))
@pytest.mark.parametrize("learn_before", range(RUNS + 1))
async def test_every_run_of_a_pipeline_takes_effect_once_when_the_server_forgets_the_script_on_the_way(
    redis_client: Redis, forget_before: int, learn_before: int
) -> None:
    script = Script.beside(store.__file__, "signals_add")  # says KNOWN when it is run twice
    calls = [([f"writer-{n}", "names", f"sums-{n}"], [1, 60, 0, "tenant", 1, "views", 1]) for n in range(RUNS)]
    await redis_client.script_load(script._text)  # type: ignore[no-untyped-call]
    forgetful = Forgetful(redis_client, script, forget_before, learn_before)
    assert await script.run_many(forgetful, calls) == [[b"OK", 0]] * RUNS  # type: ignore[arg-type]
    assert [await redis_client.hget(f"sums-{n}", "views") for n in range(RUNS)] == [b"1"] * RUNS
    assert forgetful.round_trips == (1 if forget_before in {learn_before, RUNS} else 2)


async def test_a_script_that_the_server_has_is_not_sent(redis_client: Redis) -> None:
    script = Script("fenced/timers_turn")
    await redis_client.script_load(script._text)  # type: ignore[no-untyped-call]
    before = (await redis_client.info("stats"))["total_net_input_bytes"]
    calls = [([f"t{n}:epoch", *"abcdefgh"], [0, *[0] * 8]) for n in range(3)]
    with pytest.raises(Exception, match="lost the epoch"):
        await script.run_many(redis_client, calls)
    assert (await redis_client.info("stats"))["total_net_input_bytes"] - before < len(script._text)
