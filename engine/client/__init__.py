"""The Python clients of an engine: receive with `Client`, publish with `Publisher`.

`session.py` holds every decision of a receiving client (cursor, duplicates, acknowledgements, reconnecting) without any
I/O; `receiving.py` is the asyncio shell around it, on the websockets library. `publishing.py` publishes over `http.py`.
`blocking.py` runs both in a thread of their own, for programs without an event loop.
"""

from __future__ import annotations

from engine.client.answers import ItemError, PublishError, Result
from engine.client.blocking import SyncClient, SyncPublisher
from engine.client.messages import Message
from engine.client.publishing import Publisher
from engine.client.receiving import Client
from engine.client.session import Connected, Disconnected, Draining, Gap, Revoked, ServerError

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
