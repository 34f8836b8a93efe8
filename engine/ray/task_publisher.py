"""Publishers for the processes of a Ray cluster: those of `engine.client`, over Ray calls instead of HTTP, and with ids of the task.

A batch is one call of an edge, whatever it holds: a Ray call costs about a millisecond of CPU in all, so `publish_many` and `post`, which
gather items, cost a hundredth of `publish` for each. The body is encoded here, where the work is, as bytes that Ray carries as they are;
beyond 100 KB through its object store. The edge parses them as it parses those of HTTP.

What bounds memory: `queue_max` items wait, one batch of `post` is under way, and `post` waits when the queue is full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from engine.client import publisher as client_publisher
from engine.client.credentials import Credentials
from engine.client.publish_results import Result
from engine.client.sync import SyncPublisher, arguments_of
from engine.ray.edge_calls import NAMESPACE, EdgeCalls
from engine.ray.task_ids import new_id

TENANT: Final = "default"


class AsyncPublisher(client_publisher.Publisher):
    """Publishes from a coroutine: in an async actor, a Serve replica, or `asyncio.run` of a task.

        async with AsyncPublisher() as publisher:
            await publisher.publish(user="u1", type="model.trained", data={"accuracy": 0.93})

    Methods and errors are those of `engine.client.Publisher`; `Forbidden`: the tenant is not in the engine's `ray_publish`.
    In methods of an async actor give items that a retry must not repeat an `id` (`engine.ray.task_ids`).

    Args:
        namespace: of the engine.
        tenant: in whose name.
        batch_max, linger_s, queue_max, timeout_s, retry_for_s, on_result: as `engine.client.Publisher`; an engine that starts or restarts
            is waited for as long as `retry_for_s`.
        inflight_max: calls under way; more wait for their turn.
    """

    def __init__(
        self,
        *,
        namespace: str = NAMESPACE,
        tenant: str = TENANT,
        batch_max: int = 500,
        linger_s: float = 0.005,
        queue_max: int = 10_000,
        timeout_s: float = 10.0,
        retry_for_s: float = 60.0,
        on_result: Callable[[Result], object] | None = None,
        inflight_max: int = 4,
    ) -> None:
        carrier = partial(EdgeCalls, namespace, tenant, inflight_max=inflight_max)
        self._begin(carrier, Credentials(""), batch_max, linger_s, queue_max, timeout_s, retry_for_s, on_result, new_id)


class Publisher(SyncPublisher):
    """Publishes from a task, an actor or a driver. Blocks the calling thread; several threads may share one.

        with Publisher() as publisher:
            publisher.publish(user="u1", type="model.trained", data={"accuracy": 0.93})

    Takes the arguments of `AsyncPublisher`, has the methods of `engine.client.SyncPublisher` and raises the same errors. Leaving the block
    returns when everything posted is on durable storage.
    """

    @arguments_of(AsyncPublisher.__init__)
    def __init__(self, **options: Any) -> None:
        self._begin(AsyncPublisher(**options))

    def _prepared(self, members: Mapping[str, Any]) -> Mapping[str, Any]:
        """With an id made here, in the thread of the task; the requests leave from another one."""
        return members if members.get("id") is not None else {**members, "id": new_id()}
