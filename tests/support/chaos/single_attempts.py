"""A publisher that does not repeat: every answer it gets is compared with what is delivered.

`202` means that the message comes, once, under one number. A refusal means that it does not. Without an answer either may be.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import httpx

from tests.support.running_engine import RunningEngine
from tests.support.waiting import until_done

NO_ANSWER: Final = "no answer in time"
"""Begins the reason of a result whose outcome the edge does not know."""

_PERIOD_S: Final = 0.2
_ANSWER_S: Final = 20.0


class SingleAttempts:
    """Messages for these users, each published once.

    Attributes:
        accepted: user -> ids, answered 202.
        refused: ids, of which the answer says that they were not accepted.
        unknown: ids without such an answer.
    """

    def __init__(self, users: Sequence[str]) -> None:
        self.accepted: dict[str, set[str]] = {user: set() for user in users}
        self.refused: set[str] = set()
        self.unknown: set[str] = set()

    async def publish(self, engine: RunningEngine, user: str, identity: str) -> None:
        """One message at an edge of this engine."""
        headers = {"Authorization": f"Bearer {engine.token('app', 'publish')}"}
        item = {"user": user, "type": "test.message", "id": identity}
        try:
            async with httpx.AsyncClient(timeout=_ANSWER_S, trust_env=False, verify=False) as http:
                answer = await http.post(f"{engine.url}/v1/notifications", headers=headers, json=item)
        except httpx.HTTPError:
            self.unknown.add(identity)
            return
        results = answer.json().get("results", [{}])
        if answer.status_code == 202:
            self.accepted[user].add(identity)
        elif results[0].get("reason", "").startswith(NO_ANSWER):
            self.unknown.add(identity)
        else:
            assert answer.status_code in (429, 503), answer.text
            self.refused.add(identity)

    @contextlib.asynccontextmanager
    async def going_on(self, *engines: RunningEngine) -> AsyncIterator[None]:
        """While the block runs, one for each user at each of these edges every `_PERIOD_S`; all are answered when it ends."""
        posts: list[asyncio.Task[None]] = []

        async def publish() -> None:
            for number in itertools.count():
                posts.extend(
                    asyncio.create_task(self.publish(engine, user, f"{user}-{edge}-{number}"))
                    for edge, engine in enumerate(engines) for user in self.accepted
                )  # fmt: skip
                await asyncio.sleep(_PERIOD_S)

        publishing = asyncio.create_task(publish())
        try:
            yield
        finally:
            publishing.cancel()
            await asyncio.gather(*posts)

    async def false_answers(self, engine: RunningEngine, within_s: float) -> list[str]:
        """What each user got is read from the engine; returns a sentence for every answer that it contradicts."""
        false = []
        for user, accepted in self.accepted.items():
            got = await _everything_of(engine, user, within_s)
            false += [f"{identity} was accepted and did not come" for identity in sorted(accepted - got)]
            false += [f"{identity} was refused and came" for identity in sorted(self.refused & got)]
            false += [f"nobody published {identity}" for identity in sorted(got - accepted - self.unknown)]
        return false


async def _everything_of(engine: RunningEngine, user: str, within_s: float) -> set[str]:
    """The ids of a user's messages, up to one that is published now."""
    await until_done(lambda: engine.publish({"user": user, "type": "test.message", "id": "last"}), AssertionError, within_s=within_s)
    got: list[dict[str, Any]] = []
    async with engine.connect(user) as socket:
        while not got or got[-1]["id"] != "last":
            got += (await engine.receive(socket, "messages", within_s))["messages"]
            await socket.send(json.dumps({"type": "ack", "seq": got[-1]["seq"]}))
    assert [message["seq"] for message in got] == list(range(1, len(got) + 1))
    return {message["id"] for message in got} - {"last"}
