"""Snooze: messages that are put away until a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from engine.config import Config
from engine.http.description.json_schema import COUNT, EPOCH_ON, TIME_MS, Schema, answer_of, closed_object, object_of, printable, ref
from engine.http.description.operation import Part, json_of, operation, whose

by_client = partial(operation, "receiving", "connect")


def paths(config: Config) -> Part:
    """See `Description`."""
    asked = (whose(config),)
    return {
        "POST /v1/inbox/snooze": by_client(
            "snooze",
            "Put messages away: each leaves the list and the counts, is acknowledged, and comes back unread at the time.",
            {200: ("They are away; durable.", json_of("SnoozedCounts"))},
            (404, 409),
            body=json_of("Snooze"),
            parameters=asked,
        ),
        "GET /v1/inbox/snooze": by_client(
            "snoozed",
            "The messages that are put away, the next to come first.",
            {200: ("All of them.", json_of("Snoozed"))},
            parameters=asked,
        ),
        "POST /v1/inbox/unsnooze": by_client(
            "unsnooze",
            "Bring messages back now that were put away.",
            {200: ("They come.", json_of("Unsnoozed"))},
            body=json_of("Unsnooze"),
            parameters=asked,
        ),
    }


def schemas(config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """See `Description`."""
    ids: Schema = {"type": "array", "items": printable(config), "minItems": 1, "maxItems": config.items_max}
    unknown: Schema = {"type": "array", "items": {"type": "string"}}
    return {
        "Snooze": closed_object(
            "Which messages, and until when.",
            required=("ids", "until"),
            ids=ids,
            until={
                "description": "Milliseconds since the epoch, or RFC 3339 with an offset. A time in the past is now;"
                f" at most {config.delay_s_max} seconds ahead.",
                "oneOf": [{"type": "integer", "minimum": 0}, EPOCH_ON],
            },
        ),
        "SnoozedCounts": object_of(
            "Until when they are away, and the counts of the inbox without them.",
            required=("until", "unread", "unseen", "revision"),
            until=TIME_MS,
            unread=COUNT,
            unseen=COUNT,
            revision=COUNT,
            unknown={**unknown, "description": "Ids that the inbox does not list; absent without any."},
        ),
        "Unsnooze": closed_object("Which messages.", required=("ids",), ids=ids),
        "Unsnoozed": object_of(
            "The ids of those that come back.",
            required=("coming",),
            coming={"type": "array", "items": {"type": "string"}},
            unknown={**unknown, "description": "Ids of messages that are not away; absent without any."},
        ),
        "Snoozed": answer_of(
            "What is put away.", snoozed={"type": "array", "items": ref("SnoozedMessage"), "maxItems": config.list_timers_max}
        ),
        "SnoozedMessage": answer_of(
            "A message that is put away.",
            id={"type": "string", "description": "Of the message that was put away."},
            until={**TIME_MS, "description": "When it comes back, ms since the epoch."},
            message={"type": "object", "description": "As it will be delivered, with an id of its own; `replaces` names the original."},
        ),
    }
