"""The Python clients of an engine: receive with `Client`, publish with `Publisher`.

`protocol.py` is the receiving side (cursor, duplicates, acknowledgements, reconnecting) without I/O; `client.py` is the asyncio shell
around it, on the websockets library. `publisher.py` publishes through `retried_requests.py` over `http_connection.py`. `sync.py` runs
both in a thread, for programs without an event loop.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.client.client import Client
    from engine.client.frames import Message
    from engine.client.protocol import Connected, Disconnected, Draining, Gap, Revoked, ServerError
    from engine.client.publish_results import ItemError, PublishError, Result
    from engine.client.publisher import Publisher
    from engine.client.sync import SyncClient, SyncPublisher

_HOME = {
    "Client": "client",
    "Connected": "protocol",
    "Disconnected": "protocol",
    "Draining": "protocol",
    "Gap": "protocol",
    "ItemError": "publish_results",
    "Message": "frames",
    "PublishError": "publish_results",
    "Publisher": "publisher",
    "Result": "publish_results",
    "Revoked": "protocol",
    "ServerError": "protocol",
    "SyncClient": "sync",
    "SyncPublisher": "sync",
}

__all__ = [
    "Client",
    "Connected",
    "Disconnected",
    "Draining",
    "Gap",
    "ItemError",
    "Message",
    "PublishError",
    "Publisher",
    "Result",
    "Revoked",
    "ServerError",
    "SyncClient",
    "SyncPublisher",
]


def __getattr__(name: str) -> Any:
    """Import a name on first access (PEP 562): a publisher does not load the WebSocket library, nor `engine --help` either client."""
    if name in _HOME:
        return getattr(import_module(f"engine.client.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
