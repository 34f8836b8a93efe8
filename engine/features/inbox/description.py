"""The inbox: messages that are kept, what became of them, and how many are unread."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from engine.config import Config
from engine.core.model.constants import SEQ_MAX
from engine.features.inbox.inboxes import LIMIT_DEFAULT, MARKS, QUERY_CHARS_MAX
from engine.http.description.json_schema import COUNT, SEQ, TIME_MS, Schema, object_of, printable, ref
from engine.http.description.member_schemas import always, delivered
from engine.http.description.operation import Part, json_of, operation, parameter, whose

by_client = partial(operation, "receiving", "connect")


def paths(config: Config) -> Part:
    """See `Description`."""
    number: Schema = {"type": "integer", "minimum": 0, "maximum": SEQ_MAX}
    limits: Schema = {
        "type": "integer",
        "minimum": 1,
        "maximum": config.inbox_page_max,
        "default": min(LIMIT_DEFAULT, config.inbox_page_max),
    }
    inbox_query = (
        whose(config),
        parameter("before", "query", "`before` of the last page.", number | {"minimum": 1}),
        parameter("limit", "query", "So many at most.", limits),
        parameter("unread", "query", "Only those that are not read.", {"type": "boolean", "default": False}),
        parameter("archived", "query", "Those that are archived, in place of the others.", {"type": "boolean", "default": False}),
        parameter(
            "type", "query", "Of this type; all that begin with it where it ends in `.*`.", {"type": "string", "maxLength": QUERY_CHARS_MAX}
        ),
        parameter("q", "query", "With this text in any of their values, in any case.", {"type": "string", "maxLength": QUERY_CHARS_MAX}),
    )
    return {
        "GET /v1/inbox": by_client(
            "inbox",
            "The messages that are kept for a user, the newest first. Needs no connection, and acknowledges nothing.",
            {200: ("A page of them, and the counts.", json_of("Inbox"))},
            (404,),
            parameters=inbox_query,
        ),
        "/v1/inbox/{mark}": [parameter("mark", "path", "What is done with them.", {"enum": list(MARKS)}, required=True)],
        "POST /v1/inbox/{mark}": by_client(
            "markInbox",
            "Mark messages; durable with the answer. `read` and `archive` acknowledge what is pending.",
            {200: ("Done, and the counts.", json_of("InboxCounts"))},
            (404, 409),
            parameters=(whose(config),),
            body=json_of("InboxChoice"),
        ),
    }


def schemas(config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """See `Description`."""
    return {
        "Inbox": object_of(
            "Messages that are kept for a user, the newest first.",
            required=("messages", "unread", "unseen", "revision"),
            messages={"type": "array", "items": ref("InboxMessage")},
            before={**SEQ, "description": "Begins the next page; absent when there is none."},
            **_COUNTS,
        ),
        "InboxMessage": _inbox_message(),
        "InboxCounts": object_of(
            "The counts of an inbox; a higher revision is newer.",
            required=("unread", "unseen", "revision"),
            unknown={"type": "array", "items": {"type": "string"}, "description": "Ids that are not in the inbox; absent without any."},
            **_COUNTS,
        ),
        "InboxChoice": {
            "type": "object",
            "description": "Which messages: these, all up to a sequence number, or all.",
            "properties": {
                "ids": {"type": "array", "items": printable(config), "maxItems": config.items_max},
                "upto": {**SEQ, "minimum": 1},
                "epoch": printable(config, "Of `upto`: the one before the number in an `event_id`. With another one nothing is marked."),
                "all": {"const": True},
            },
            "oneOf": [{"required": ["ids"]}, {"required": ["upto"]}, {"required": ["all"]}],
            "additionalProperties": False,
        },
    }


_COUNTS: Final[dict[str, Schema]] = {"unread": COUNT, "unseen": COUNT, "revision": COUNT}
_INBOX_STATES: Final = ("acknowledged", "read", "seen", "archived", "pinned")


def _inbox_message() -> Schema:
    truth: Schema = {"type": "boolean"}
    return object_of(
        "A message as it was delivered, with what became of it.",
        required=("event_id", "accepted_at", *always("attempt"), *_INBOX_STATES),
        **delivered("attempt", "early"),
        accepted_at=TIME_MS,
        **dict.fromkeys(_INBOX_STATES, truth),
    )
