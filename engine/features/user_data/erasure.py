"""`DELETE /v1/users/{user}`: erases one user everywhere.

First what features keep, since they make messages of it. Then the user's timers, so that none fires into the emptied mailbox: those that
wait are cancelled, those that fire are waited for. Then the user's shard erases the rest (`engine.core.shard.user_requests`). At last what
features keep is erased once more: the action of a timer that fired meanwhile may have left something with them.

Every step may be repeated. Only when all are done the request succeeds, so a publisher or a crash in between leads to a repeat, never to a
user erased in part.
"""

from __future__ import annotations

import asyncio
from typing import Final

from engine.core.model.constants import HIGH
from engine.core.wire.records import FIRING, OK, Erase, ErasureDone
from engine.errors import StorageUnavailable, Unavailable
from engine.gateway.gateway import Gateway

_FIRING_S: Final = 0.1
"""Between looks at timers that are firing; it takes them a journal write and a removal."""


async def erase_user(gateway: Gateway, key: str, timeout_ms: int) -> None:
    """Return when nothing of the user with this mailbox key is left. Timers have `timeout_ms` to be over.

    Raises:
        Unavailable: a part did not answer in time; what is done is done, repeat it.
        Overloaded: nothing was sent.
    """
    shard_client, clock = gateway.shard_client, gateway.clock
    deadline_ms = clock() + timeout_ms
    await _erase_what_features_keep(gateway, key)
    while True:
        cancelled = await shard_client.cancel_all(key)
        if cancelled.status != OK:
            raise Unavailable(cancelled.detail or "durable storage did not answer")
        if cancelled.detail != FIRING:
            break
        if clock() > deadline_ms:
            raise Unavailable("timers of this user are firing; repeat it")
        await asyncio.sleep(_FIRING_S)
    if (await shard_client.ask(ErasureDone, lambda ref: Erase(ref, key), HIGH)).status != OK:
        raise Unavailable("durable storage did not answer")
    await _erase_what_features_keep(gateway, key)


async def _erase_what_features_keep(gateway: Gateway, key: str) -> None:
    """Idempotent. Raises Unavailable."""
    try:
        for erase in gateway.erase_of_user.values():
            await erase(key)
    except StorageUnavailable as error:
        raise Unavailable(str(error)) from error
