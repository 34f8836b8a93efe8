"""The description of the history's endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from engine.config import Config
from engine.core.model.constants import TS_MS_MAX
from engine.http.description.json_schema import SEQ, TIME_MS, Schema, object_of, printable, user_name
from engine.http.description.operation import TENANT, Part, json_of, operation, parameter, user_in_path

ROWS_MAX: Final = 500
"""Rows of one answer; 200 KB."""

by_admin = partial(operation, "operating", "admin")
by_client = partial(operation, "contact policy", "connect")


def paths(config: Config) -> Part:
    """See `Description`."""
    user = user_in_path(config)
    return {
        "GET /v1/history": by_admin(
            "history",
            "What has become of messages, events and connections, where `history_url` is set; newest first.",
            {200: ("Some of it.", json_of("HistoryPage"))},
            (404,),
            parameters=(
                TENANT,
                parameter("user", "query", "Only of this user.", user_name(config)),
                parameter("id", "query", "Only of this message or event.", printable(config)),
                parameter("since", "query", "From this time on.", {"type": "integer", "minimum": 0, "maximum": TS_MS_MAX}),
                parameter("until", "query", "Before this time.", {"type": "integer", "minimum": 0, "maximum": TS_MS_MAX}),
                parameter("before", "query", "The `before` of the page before.", {"type": "string", "pattern": "^[0-9a-f]{32}$"}),
                parameter("limit", "query", "How many at most.", {"type": "integer", "minimum": 1, "maximum": ROWS_MAX}),
            ),
        ),
        "/v1/users/{user}/messages/{message}": [user, parameter("message", "path", "Its id.", printable(config), required=True)],
        "GET /v1/users/{user}/messages/{message}": by_client(
            "messageTimeline",
            "What is still known of a message. The user's own token may ask, or one with the scope `publish` or `admin`.",
            {200: ("Where it is, and what happened to it.", json_of("Timeline"))},
            (404,),
            parameters=(TENANT,),
        ),
    }


def schemas(config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """See `Description`."""
    return {
        "Timeline": object_of(
            "What is still known of a message.",
            required=("id", "state", "timeline"),
            id={"type": "string"},
            seq=SEQ,
            state={
                "enum": [
                    *("scheduled", "merged", "suppressed", "deferred", "digested", "inboxed"),
                    *("pending", "sent", "acknowledged", "gone", "refused"),
                ]
            },
            timeline={
                "type": "array",
                "items": object_of(
                    "One thing that happened to it, in their order.",
                    required=("event",),
                    at={**TIME_MS, "description": "Milliseconds since the epoch; left out where it is not known any more."},
                    event={"type": "string"},
                    reason={"type": "string"},
                    until=TIME_MS,
                    **OF_HISTORY,
                ),
            },
            history={"const": "unavailable", "description": "The history does not answer: the timeline is what memory has."},
        ),
        "HistoryPage": object_of(
            "What has become of messages, events and connections, newest first.",
            required=("tenant", "history"),
            tenant={"type": "string"},
            history={
                "type": "array",
                "maxItems": ROWS_MAX,
                "items": object_of(
                    "One thing that happened. Members that do not apply to it are left out.",
                    required=("at", "user", "event"),
                    at=TIME_MS,
                    user={"type": "string", "description": "Empty for a topic or everyone."},
                    event={"type": "string"},
                    id={"type": "string", "description": "Of the message, or of the event."},
                    seq=SEQ,
                    type={"type": "string"},
                    category={"type": "string"},
                    priority={"enum": ["high", "normal", "low"]},
                    reason={"type": "string"},
                    until=TIME_MS,
                    sent=TIME_MS,
                    session={"type": "string"},
                    **OF_HISTORY,
                ),
            },
            before={"type": "string", "pattern": "^[0-9a-f]{32}$", "description": "Where the next page begins; left out at the end."},
        ),
    }


OF_HISTORY: Final[Schema] = {
    "attempt": {"type": "integer", "minimum": 1},
    "device": {"type": "string"},
    "transport": {"enum": ["websocket", "sse", "poll"]},
    "node": {"type": "string", "description": "The edge."},
    "client_ts": {"type": "integer", "description": "Of the ACK, by the client's clock."},
    "rtt_ms": {"type": "integer", "minimum": 0, "description": "From the first send on the connection to the ACK."},
    "read_ms": {"type": "integer", "minimum": 0, "description": "From there to `client_ts`, as far as its clock can be right."},
    "skew_ms": {"type": "integer", "description": "By how much the client's clock is wrong at least; positive: it is ahead."},
    "rule": {"type": "string"},
    "scheduled_id": {"type": "string"},
}
"""What a step of a timeline has from the history, and a row of it."""
