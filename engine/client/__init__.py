"""The Python clients of an engine: receive with `Client`, publish with `Publisher`.

`session.py` holds every decision of a receiving client (cursor, duplicates, acknowledgements, reconnecting) without any
I/O; `receiving.py` is the asyncio shell around it, on the websockets library. `publishing.py` publishes over `http.py`.
`blocking.py` runs both in a thread of their own, for programs without an event loop. `commands.py` is the command line.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.client.answers import ItemError, PublishError, Result
    from engine.client.blocking import SyncClient, SyncPublisher
    from engine.client.messages import Message
    from engine.client.publishing import Publisher
    from engine.client.receiving import Client
    from engine.client.session import Connected, Disconnected, Draining, Gap, Revoked, ServerError

_HOME = {
    "Client": "receiving",
    "Connected": "session",
    "Disconnected": "session",
    "Draining": "session",
    "Gap": "session",
    "ItemError": "answers",
    "Message": "messages",
    "PublishError": "answers",
    "Publisher": "publishing",
    "Result": "answers",
    "Revoked": "session",
    "ServerError": "session",
    "SyncClient": "blocking",
    "SyncPublisher": "blocking",
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
    """Each is imported when it is asked for (PEP 562): a publisher does not pay for WebSocket, nor `engine --help` for either."""
    if name in _HOME:
        return getattr(import_module(f"engine.client.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
