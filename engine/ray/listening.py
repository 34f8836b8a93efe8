"""Messages of a user as a stream inside Ray: long polling by Ray calls (`/v1/poll`), so that every edge is reachable wherever Ray is.

A message is acknowledged when the next one is asked for. States of a message in a listener; a crash of it in any of them but the last
brings the message again, to the next listener of the user:

    answered      in an answer of the edge, not yet given out
    given out     the consumer works on it
    handled       the consumer asked for the next one; the next poll has its event id as cursor, or `/v1/ack` its id
    acknowledged  the edge has answered that

A poll acknowledges everything up to its cursor. So that a consumer that is slow with a long answer loses little by a crash, what was
handled is acknowledged in between, at most every `_ACK_S`. By ids: a number may be another message's once storage has lost data.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from msgspec import Struct

from engine.client.credentials import Credentials
from engine.client.message_members import DeliveredMembers
from engine.client.retried_requests import RetriedRequests, with_query
from engine.ray.edge_calls import NAMESPACE, EdgeCalls
from engine.ray.task_publisher import TENANT

_WAIT_S: Final = 25.0
"""Of one poll: Ray does not tell an edge that a listener is gone, so an abandoned poll lasts for so long."""

_ACK_S: Final = 1.0


class ReceivedNotification(DeliveredMembers):
    """A message for a user, with the members of `engine.client.Message`. Those that it has not are None."""


class _Answer(Struct):
    messages: list[ReceivedNotification]
    last_event_id: str


async def listen(
    user: str, *, namespace: str = NAMESPACE, tenant: str = TENANT, last_event_id: str = "", device: str = "ray", retry_for_s: float = 60.0
) -> AsyncIterator[ReceivedNotification]:
    """The messages of a user, for as long as it is iterated: those that wait first, then each as it comes. At least once, in order.

        async for notification in listen("model-registry"):
            await handle(notification)  # acknowledged when the next one is asked for

    Where the loop ends before the next one is asked for, by `break`, an error or the death of
    the process, the last one is not acknowledged, and comes again. A call waits at an edge for each listener; for thousands of users use
    `engine.client.Client`.

    Args:
        user: whose messages.
        namespace, tenant, retry_for_s: as `AsyncPublisher`.
        last_event_id: `event_id` of the last one that was handled; what is up to it is acknowledged. "": all that are pending.
        device: a name for this listener.

    Raises:
        Forbidden: the tenant is not in the engine's `ray_listen`.
        Unreachable: no engine answered for `retry_for_s`. Iterate anew to go on.
    """
    requests = RetriedRequests(
        lambda: EdgeCalls(namespace, tenant, user, inflight_max=1), Credentials(""), timeout_s=_WAIT_S + 10, retry_for_s=retry_for_s
    )
    cursor = last_event_id
    while True:
        found = await requests.fetch(_Answer, "GET", with_query("/v1/poll", wait=f"{_WAIT_S:g}", device=device, last_event_id=cursor))
        acked_s = time.monotonic()
        handled: list[str] = []
        for message in found.messages:
            yield message
            handled.append(message.id)
            if time.monotonic() - acked_s > _ACK_S:
                await requests.send("POST", "/v1/ack", msgspec.json.encode({"ids": handled}))
                acked_s = time.monotonic()
                handled = []
        cursor = found.last_event_id
