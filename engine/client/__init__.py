"""The Python clients of an engine: receive with `Client`, publish with `Publisher`.

`protocol.py` is the receiving side (cursor, duplicates, acknowledgements, reconnecting) without I/O; `receiver.py` keeps it connected,
over the transports in `links`; `client.py` is what an application sees of it. `publisher.py` publishes through `retried_requests.py` over
`http_connection.py`. `sync.py` runs both in a thread, for programs without an event loop.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from engine.errors import ClientError, Forbidden, Refused, TooManyConnections, Unauthorized, Unreachable

if TYPE_CHECKING:
    from engine.client.answers import AskedQuestion, CountedSignals, EventOutcome, QuestionAnswer, ScheduledMessage
    from engine.client.client import Client
    from engine.client.digest import Digest, DigestLine, DigestMessage
    from engine.client.frames import Counts, Message, Part
    from engine.client.growing_messages import GrowingMessage, GrownText
    from engine.client.message_members import NewMessage
    from engine.client.protocol import Connected, Disconnected, Draining, Gap, Revoked, ServerError
    from engine.client.publish_results import ItemError, PublishError, Result
    from engine.client.publisher import Publisher
    from engine.client.sync import SyncClient, SyncGrowingMessage, SyncPublisher
    from engine.client.token_signer import TokenSigner
    from engine.client.user_inbox import InboxMessage, InboxPage, Marked
    from engine.client.user_preferences import CategoryPreference, UserPreferences

_NAMES = {
    "answers": ("AskedQuestion", "CountedSignals", "EventOutcome", "QuestionAnswer", "ScheduledMessage"),
    "client": ("Client",),
    "digest": ("Digest", "DigestLine", "DigestMessage"),
    "frames": ("Counts", "Message", "Part"),
    "growing_messages": ("GrowingMessage", "GrownText"),
    "message_members": ("NewMessage",),
    "protocol": ("Connected", "Disconnected", "Draining", "Gap", "Revoked", "ServerError"),
    "publish_results": ("ItemError", "PublishError", "Result"),
    "publisher": ("Publisher",),
    "sync": ("SyncClient", "SyncGrowingMessage", "SyncPublisher"),
    "token_signer": ("TokenSigner",),
    "user_inbox": ("InboxMessage", "InboxPage", "Marked"),
    "user_preferences": ("CategoryPreference", "UserPreferences"),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "AskedQuestion",
    "CategoryPreference",
    "Client",
    "ClientError",
    "Connected",
    "CountedSignals",
    "Counts",
    "Digest",
    "DigestLine",
    "DigestMessage",
    "Disconnected",
    "Draining",
    "EventOutcome",
    "Forbidden",
    "Gap",
    "GrowingMessage",
    "GrownText",
    "InboxMessage",
    "InboxPage",
    "ItemError",
    "Marked",
    "Message",
    "NewMessage",
    "Part",
    "PublishError",
    "Publisher",
    "QuestionAnswer",
    "Refused",
    "Result",
    "Revoked",
    "ScheduledMessage",
    "ServerError",
    "SyncClient",
    "SyncGrowingMessage",
    "SyncPublisher",
    "TokenSigner",
    "TooManyConnections",
    "Unauthorized",
    "Unreachable",
    "UserPreferences",
]


if not TYPE_CHECKING:  # a type checker would take every name for one of this module

    def __getattr__(name: str) -> Any:
        """Import a name on first access (PEP 562): a publisher does not load the WebSocket library, nor `engine --help` either client."""
        if name in _MODULE_OF:
            return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Completers list the names that are not imported yet, too."""
    return sorted({*globals(), *__all__})
