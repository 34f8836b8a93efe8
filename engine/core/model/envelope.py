"""The envelope: all publisher-given fields of a message that travel with it, as one value.

The edge that accepts a message fills it in once. Every record, table and stored format that holds the message holds this value as it is:
`Draft`, `Post`, `Timer`, `StoredMessage`, `Message`, `WindowItem`, `AggregationWindow` and `BroadcastEntry`. So an option that only clients
read is a member of `body` and changes nothing here; one that the shard obeys is one field here and its use.

Not in it: when the message expires. That moment depends on when the message is due, which the engine decides and may change (quiet hours,
`PATCH /v1/scheduled`). A timer keeps the time to live, a post and a message the moment.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from engine.core.model.category import PolicyTerms
from engine.core.model.constants import AT_MAX_MS, HIGH, LOW

Priority = Annotated[int, Meta(ge=HIGH, le=LOW)]


class Merge(Struct, frozen=True, array_like=True, gc=False):
    """How a message is merged with others of its collapse key (`engine.core.mailbox.aggregation_window`).

    Args:
        window_ms: length of the window that the message opens when there is none.
        leading: the message that opens the window is delivered at once.
        text: template of the summary's text, "" for none.
    """

    window_ms: Annotated[int, Meta(ge=1, le=AT_MAX_MS)]
    leading: bool = False
    text: str = ""


class Envelope(Struct, frozen=True, array_like=True, gc=False):
    """A message as its publisher described it; see the module's text. Immutable, so messages to many users share one.

    Args:
        id: the publisher's, or made by the edge.
        digest: 8 bytes over the payload: the same id with another digest is a conflict. b"" where nobody can repeat the id.
        priority: HIGH, NORMAL or LOW.
        retain: kept for a user who is not connected.
        body: JSON members without braces, `"id":"..","type":"..",...,"data":{..}` (`engine.core.model.message`).
        collapse: collapse key: a newer message of the same key may stand for this one (`engine.core.mailbox.conflation`), unless it is
            merged; scheduled messages are listed and cancelled by it. "" for none.
        merge: merged with the others of its collapse key; None: delivered by itself.
        policy_terms: what limits it beside its user's profile; None: nothing.
    """

    id: str
    digest: bytes
    priority: Priority
    retain: bool
    body: bytes
    collapse: str = ""
    merge: Merge | None = None
    policy_terms: PolicyTerms | None = None
