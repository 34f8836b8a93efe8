"""`DELETE /v1/users/{user}`: erases one user everywhere.

First the user's timers, so that none fires into the emptied mailbox: those that wait are cancelled, those that fire are waited for.
Then the user's shard erases the rest (`engine.core.shard.user_requests`). Every step may be repeated; only when both are done the request
succeeds, so a publisher or a crash in between leads to a repeat, never to a user erased in part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from engine.core.wire.records import OK
from engine.errors import Unavailable
from engine.gateway.shard_client import ShardClient

_FIRING_S: Final = 0.1
"""Between looks at timers that are firing; it takes them a journal write and a removal."""


async def erase_user(shard_client: ShardClient, key: str, timeout_ms: int, clock: Callable[[], int]) -> None:
    """Return when nothing of the user with this mailbox key is left. Timers have `timeout_ms` to be over.

    Raises:
        Unavailable: a part did not answer in time; what is done is done, repeat it.
        Overloaded: nothing was sent.
    """
    deadline_ms = clock() + timeout_ms
    while True:
        cancelled = await shard_client.cancel_all(key)
        left = await shard_client.list_timers(key)
        if cancelled.status != OK or left.status != OK:
            raise Unavailable(left.detail or cancelled.detail or "durable storage did not answer")
        if not left.timers:
            break
        if clock() > deadline_ms:
            raise Unavailable("timers of this user are firing; repeat it")
        await asyncio.sleep(_FIRING_S)
    if (await shard_client.erase(key)).status != OK:
        raise Unavailable("durable storage did not answer")
