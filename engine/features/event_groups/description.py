"""Groups of consumers that read what happened to a tenant's users."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from engine.config import Config
from engine.http.description.json_schema import TIME_MS, Schema, answer_of, closed_object, object_of, ref
from engine.http.description.operation import Part, json_of, operation, parameter

by_consumer = partial(operation, "operating", "events")


def paths(config: Config) -> Part:
    """See `Description`."""
    group = parameter("group", "path", "Its name.", _group_name(), required=True)
    count: Schema = {"type": "integer", "minimum": 1, "maximum": config.event_page_max, "default": config.event_page_max}
    wait: Schema = {"type": "number", "minimum": 0, "default": 25}
    return {
        "GET /v1/event-groups": by_consumer(
            "listEventGroups", "The groups that read the tenant's events, and how far they are.", {200: ("All.", json_of("EventGroupList"))}
        ),
        "/v1/event-groups/{group}": [group],
        "DELETE /v1/event-groups/{group}": by_consumer(
            "dropEventGroup", "Forget a group and its position.", {204: ("It is gone.", {})}, (404,)
        ),
        "/v1/event-groups/{group}/events": [group],
        "GET /v1/event-groups/{group}/events": by_consumer(
            "pollEvents",
            "What happened to the tenant's users behind the group's position. Acknowledges everything up to `position`.",
            {200: ("Events, as soon as there are any, none after `wait`.", json_of("EventPage"))},
            (404, 409),
            parameters=(
                parameter(
                    "consumer",
                    "query",
                    "The caller's name for itself; one consumer at a time has the group.",
                    _consumer_name(),
                    required=True,
                ),
                parameter(
                    "position",
                    "query",
                    "Of the last event handled; empty, or left out, for none.",
                    _position("A position that was answered.") | {"pattern": f"^({_POSITION[1:-1]})?$"},
                ),
                parameter("begin", "query", "Where a new group begins.", {"enum": ["newest", "oldest"], "default": "newest"}),
                parameter(
                    "outcomes",
                    "query",
                    "With what has become of messages, where `history_url` is set.",
                    {"type": "boolean", "default": False},
                ),
                parameter("limit", "query", "How many at most.", count),
                parameter("wait", "query", f"Seconds, at most {config.poll_wait_s_max}.", wait),
            ),
        ),
        "/v1/event-groups/{group}/ack": [group],
        "POST /v1/event-groups/{group}/ack": by_consumer(
            "acknowledgeEvents",
            "Acknowledge events without asking for others; with `leave` the next consumer goes on.",
            {200: ("Stored.", json_of("EventPosition"))},
            (404, 409),
            body=json_of("EventAcknowledgement"),
        ),
    }


def schemas(config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """See `Description`."""
    return {
        "EventGroupList": answer_of(
            "Groups of consumers.",
            tenant={"type": "string"},
            groups={
                "type": "array",
                "maxItems": config.event_groups_max,
                "items": answer_of(
                    "One.",
                    group={"type": "string"},
                    position=_position("Everything up to it was handled."),
                    held_by={"type": "string", "description": "The consumer that has it; empty for none."},
                    behind_ms={
                        "type": "object",
                        "additionalProperties": {"type": "integer", "minimum": 0},
                        "description": "By source: from the group's position to the newest event, of any tenant.",
                    },
                ),
            },
        ),
        "EventPage": object_of(
            "Some events. `held_by`: none, because another consumer has the group.",
            required=("events", "position"),
            events={"type": "array", "items": ref("GroupEvent"), "maxItems": config.event_page_max},
            position=_position("Behind all that was looked at; present it when the events are handled."),
            held_by={"type": "string"},
        ),
        "GroupEvent": object_of(
            "What happened. Its members depend on `event`.",
            required=("event", "position"),
            event={"type": "string", "description": "Of `session:stream`, `dead_letter`, `gap`, or, with `outcomes`, of `/v1/history`."},
            position=_position("Behind it."),
            at=TIME_MS,
            user={"type": "string"},
        ),
        "EventAcknowledgement": closed_object(
            "How far a consumer has come.",
            required=("consumer",),
            consumer=_consumer_name(),
            position=_position("Everything up to it was handled."),
            leave={"type": "boolean", "default": False, "description": "The consumer ends, and the next one may have the group."},
        ),
        "EventPosition": answer_of("The group now.", position=_position("Everything up to it was handled."), held_by={"type": "string"}),
    }


def _group_name() -> Schema:
    return {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"}


def _consumer_name() -> Schema:
    """A consumer's name for itself."""
    return {"type": "string", "minLength": 1, "maxLength": 128, "format": "printable"}


_PART: Final = r"[0-9]{1,15}-([0-9]{1,19}|1[0-7][0-9]{18}|18446744073709551615)"
_POSITION: Final = rf"^([0-9a-z]{{1,16}}\.)?{_PART}\.{_PART}(\.{_PART}(-[0-9]{{1,9}})?)?$"


def _position(description: str) -> Schema:
    """How far a group has read."""
    return {"type": "string", "pattern": _POSITION, "description": description}
