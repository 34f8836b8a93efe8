"""The engine inside Ray: publish and listen from tasks, actors, Serve replicas, Data pipelines and drivers of the engine's cluster.

    from ray_notifications.ray import Publisher

    @ray.remote
    def train(user):
        ...
        with Publisher() as publisher:
            publisher.publish(user=user, type="model.trained", data={"accuracy": 0.93})

There is no URL and no token: the engine is found by its namespace, and its settings `ray_publish` and `ray_listen` say for which tenants
jobs may act. `edge_calls.py` finds edges and calls them, `task_ids.py` makes ids that a retried task makes again, `task_publisher.py` is
`engine.client`'s publisher over both, `notification_sink.py` publishes datasets, `listening.py` receives, `group_events.py`
reads what happens to users. `run_messages.py` has the message of a run, which grows and ends as the run does, for the call-backs of
Ray Data, Train and Tune. docs/RAY.md has examples.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.client.publish_results import ItemError, PublishError, Result
    from engine.ray.data_progress import DataProgress
    from engine.ray.group_events import TenantEvent, event_batches, events
    from engine.ray.listening import ReceivedNotification, listen
    from engine.ray.notification_sink import NotificationSink, RowOutcome
    from engine.ray.run_messages import RunMessages
    from engine.ray.task_publisher import AsyncPublisher, Publisher
    from engine.ray.train_progress import TrainProgress
    from engine.ray.tune_progress import TuneProgress

_HOME = {
    "AsyncPublisher": "engine.ray.task_publisher",
    "DataProgress": "engine.ray.data_progress",
    "ItemError": "engine.client.publish_results",
    "ReceivedNotification": "engine.ray.listening",
    "NotificationSink": "engine.ray.notification_sink",
    "PublishError": "engine.client.publish_results",
    "Publisher": "engine.ray.task_publisher",
    "Result": "engine.client.publish_results",
    "RowOutcome": "engine.ray.notification_sink",
    "RunMessages": "engine.ray.run_messages",
    "TenantEvent": "engine.ray.group_events",
    "TrainProgress": "engine.ray.train_progress",
    "TuneProgress": "engine.ray.tune_progress",
    "event_batches": "engine.ray.group_events",
    "events": "engine.ray.group_events",
    "listen": "engine.ray.listening",
}

__all__ = [
    "AsyncPublisher",
    "DataProgress",
    "ItemError",
    "NotificationSink",
    "PublishError",
    "Publisher",
    "ReceivedNotification",
    "Result",
    "RowOutcome",
    "RunMessages",
    "TenantEvent",
    "TrainProgress",
    "TuneProgress",
    "event_batches",
    "events",
    "listen",
]


if not TYPE_CHECKING:  # a type checker would take every name for one of this module

    def __getattr__(name: str) -> Any:
        """Import a name on first access (PEP 562): a publisher needs nothing of Ray Data."""
        if name in _HOME:
            return getattr(import_module(_HOME[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Completers list the names that are not imported yet, too."""
    return sorted({*globals(), *__all__})
