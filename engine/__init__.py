"""A notification engine on Ray and Redis: whatever it has accepted reaches its user, acknowledged, in order, and once.

To use an engine, this is all there is to import:

    from engine import Client, Publisher          # asyncio
    from engine import SyncClient, SyncPublisher  # threads

To read its code, start at `engine.core` (every decision, pure), then `engine.store`, `engine.actors` and `engine.routes`
(the shells).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.client import Client, Message, Publisher, Result, SyncClient, SyncPublisher

__version__ = "0.1.0"

__all__ = ["Client", "Message", "Publisher", "Result", "SyncClient", "SyncPublisher", "__version__"]


def __getattr__(name: str) -> Any:
    """The clients are imported when they are asked for (PEP 562): an actor or `engine --help` does not pay for them."""
    if name in __all__:
        from engine import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
