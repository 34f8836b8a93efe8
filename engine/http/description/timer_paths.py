"""Notifications that wait for their time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Final

from engine.config import Config
from engine.http.description.json_schema import TIME_MS, Schema, answer_of, object_of, printable, ref, user_name
from engine.http.description.member_schemas import when
from engine.http.description.operation import Part, json_of, operation, parameter

POSITION: Final = re.compile(r"[0-9]{1,14}-([0-9]{1,2}-[!-~]{1,300})?")
"""In a listing: due time and scheduled id of the last timer of an answer. No number of so many digits exceeds `AT_MAX_MS`: the scheduler
reads none that does, and ends the link."""

by_publisher = partial(operation, "publishing", "publish")


def paths(config: Config) -> Part:
    """See `Description`."""
    scheduled_id = parameter("sid", "path", "The `scheduled_id` that publishing answered.", required=True)
    user = parameter("user", "query", "Whose.", user_name(config), required=True)
    collapse = parameter("collapse", "query", "Only those of this collapse key; all when left out.", printable(config))
    after = parameter(
        "after",
        "query",
        "The `next` of the answer before; the soonest when left out.",
        {"type": "string", "pattern": f"^{POSITION.pattern}$"},
    )
    return {
        "GET /v1/scheduled": by_publisher(
            "listScheduled",
            "The scheduled notifications of a user.",
            {200: ("They.", json_of("ScheduledList"))},
            parameters=(user, collapse, after),
        ),
        "DELETE /v1/scheduled": by_publisher(
            "cancelAllScheduled",
            "Cancel the scheduled notifications of a user that have not fired.",
            {200: ("They will not be delivered.", json_of("CancelledAll"))},
            parameters=(user, collapse),
        ),
        "/v1/scheduled/{sid}": [scheduled_id],
        "GET /v1/scheduled/{sid}": by_publisher(
            "inspectScheduled", "One scheduled notification.", {200: ("It.", json_of("Scheduled"))}, (404, 409)
        ),
        "PATCH /v1/scheduled/{sid}": by_publisher(
            "reschedule", "Move it to another time.", {200: ("As it is now.", json_of("Scheduled"))}, (404, 409), body=json_of("Schedule")
        ),
        "DELETE /v1/scheduled/{sid}": by_publisher(
            "cancelScheduled", "Cancel it.", {200: ("Cancelled.", json_of("Cancelled"))}, (404, 409)
        ),
    }


def schemas(config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """See `Description`."""
    return {
        "Schedule": {
            "type": "object",
            "description": "When to deliver instead.",
            "properties": when(config),
            "oneOf": [{"required": ["delay"]}, {"required": ["at"]}],
            "additionalProperties": False,
        },
        "Scheduled": object_of(
            "A notification that waits for its time.",
            required=("scheduled_id", "scheduled_at"),
            scheduled_id={"type": "string"},
            scheduled_at=TIME_MS,
            created_at=TIME_MS,
            user={"type": "string"},
            topic={"type": "string"},
            broadcast={"const": True},
            action={"type": "string", "description": "Of a rule with `do`: what it calls in place of delivering the notification."},
            notification={"type": "object", "description": "Its own members: id, type, priority, ts, data and what else was given."},
        ),
        "ScheduledList": object_of(
            "Soonest first.",
            required=("scheduled",),
            scheduled={"type": "array", "items": ref("Scheduled"), "maxItems": config.list_timers_max},
            next={"type": "string", "description": "There are more: `after` of the next request."},
        ),
        "Cancelled": answer_of("It will not be delivered.", scheduled_id={"type": "string"}, status={"const": "cancelled"}),
        "CancelledAll": answer_of("None of them will be delivered.", cancelled={"type": "integer", "description": "How many they were."}),
    }
