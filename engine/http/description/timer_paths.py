"""Notifications that wait for their time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from engine.config import Config
from engine.http.description.json_schema import TIME_MS, Schema, object_of, printable, ref, user_name
from engine.http.description.member_schemas import when
from engine.http.description.operation import Part, json_of, operation, parameter

POSITION: Final = re.compile(r"[0-9]{1,15}-([0-9]{1,2}-[!-~]{1,300})?")
"""In a listing: due time and scheduled id of the last timer of an answer."""


def paths(config: Config) -> Part:
    """The paths, by name."""
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
        "/v1/scheduled": {
            "get": operation(
                "listScheduled",
                "publishing",
                "The scheduled notifications of a user.",
                {200: ("They.", json_of("ScheduledList"))},
                (400, 429, 503),
                scope="publish",
                parameters=(user, collapse, after),
            ),
            "delete": operation(
                "cancelAllScheduled",
                "publishing",
                "Cancel the scheduled notifications of a user that have not fired.",
                {200: ("They will not be delivered.", json_of("CancelledAll"))},
                (400, 429, 503),
                scope="publish",
                parameters=(user, collapse),
            ),
        },
        "/v1/scheduled/{sid}": {
            "parameters": [scheduled_id],
            "get": operation(
                "inspectScheduled",
                "publishing",
                "One scheduled notification.",
                {200: ("It.", json_of("Scheduled"))},
                (404, 409, 429, 503),
                scope="publish",
            ),
            "patch": operation(
                "reschedule",
                "publishing",
                "Move it to another time.",
                {200: ("As it is now.", json_of("Scheduled"))},
                (400, 404, 408, 409, 413, 422, 429, 503),
                scope="publish",
                body=json_of("Schedule"),
            ),
            "delete": operation(
                "cancelScheduled",
                "publishing",
                "Cancel it.",
                {200: ("Cancelled.", json_of("Cancelled"))},
                (404, 409, 429, 503),
                scope="publish",
            ),
        },
    }


def schemas(config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """The schemas of their bodies, by name."""
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
        "Cancelled": object_of(
            "It will not be delivered.", required=("scheduled_id", "status"), scheduled_id={"type": "string"}, status={"const": "cancelled"}
        ),
        "CancelledAll": object_of(
            "None of them will be delivered.", required=("cancelled",), cancelled={"type": "integer", "description": "How many they were."}
        ),
    }
