"""Publishing: notifications, and CloudEvents."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from engine.config import Config
from engine.http.description.json_schema import DURABILITY, EPOCH_ON, NO_CONTROLS, SEQ, TIME_MS, Schema, items_of, object_of, ref, user_name
from engine.http.description.member_schemas import extensions, sent
from engine.http.description.operation import Part, json_of, operation

by_publisher = partial(operation, "publishing", "publish")


def paths(config: Config) -> Part:
    """See `Description`."""
    body: Part = {
        "application/json": {
            "schema": {"oneOf": [ref("Notification"), items_of(config, ref("Notification"))]},
            "example": {"user": "ann", "type": "post.liked", "data": {"post": 7}},
        },
        "application/x-ndjson": {"schema": {"type": "string", "description": "One notification per line."}},
        "application/cloudevents+json": {"schema": ref("CloudEvent")},
        "application/cloudevents-batch+json": {"schema": items_of(config, ref("CloudEvent"))},
    }
    return {
        "POST /v1/notifications": by_publisher(
            "publish",
            "Publish one or many notifications. All or none of a well-formed request is accepted; a 202 is on durable storage.",
            {202: ("Accepted.", json_of("PublishAnswer"))},
            (409, 415),
            body=body,
        ),
    }


def schemas(config: Config, categories: Sequence[str]) -> dict[str, Schema]:
    """See `Description`."""
    return {
        "Notification": _notification(config, categories),
        "CloudEvent": _cloud_event(config, categories),
        "PublishAnswer": object_of(
            "What became of each item, in order; one result per user for `users`.",
            required=("accepted", "results"),
            accepted={"type": "integer", "description": "How many were accepted, scheduled or merged."},
            results={"type": "array", "items": ref("Result")},
            durability=DURABILITY,
        ),
        "Result": object_of(
            "What became of one item: for one user, or for a topic or everyone (each mailbox gives a broadcast a `seq` of its own).",
            required=("id", "status"),
            id={"type": "string"},
            user={"type": "string"},
            status={"enum": ["accepted", "scheduled", "merged", "duplicate", "suppressed", "conflict", "unavailable", "overloaded"]},
            seq=SEQ,
            scheduled_id={"type": "string"},
            scheduled_at=TIME_MS,
            reason={"type": "string"},
            topic={"type": "string"},
            broadcast={"const": True},
        ),
    }


def _notification(config: Config, categories: Sequence[str]) -> Schema:
    return {
        "type": "object",
        "properties": sent(config, categories),
        "required": ["type"],
        "oneOf": [_to("user"), _to("users"), _to_many("topic"), _to_many("broadcast", const=True)],
        "not": {"required": ["delay", "at"]},
        "additionalProperties": False,
    }


def _to(recipient: str) -> Schema:
    """One kind of recipient, and no other."""
    others: Schema = {name: False for name in ("user", "users", "topic") if name != recipient}
    return {"required": [recipient], "properties": others if recipient == "broadcast" else {**others, "broadcast": {"const": False}}}


def _to_many(recipient: str, **value: Any) -> Schema:
    """A topic, or everyone: without the fields that are for users only."""
    only = _to(recipient)
    for_users: Schema = {"collapse": False, "category": False, "unless_active": {"const": False}}
    return {**only, "properties": {**only["properties"], **for_users, **({recipient: value} if value else {})}}


def _cloud_event(config: Config, categories: Sequence[str]) -> Schema:
    return {
        "type": "object",
        "description": "A CloudEvents 1.0 event; further attributes are ignored. `source` and `id` become `context`.",
        "properties": {
            "specversion": {"const": "1.0"},
            "id": {
                "type": "string",
                "minLength": 1,
                "maxLength": config.event_id_chars_max,
                "pattern": NO_CONTROLS,
                "description": "With `source` the idempotency key: the message's id is `ce:` and a hash of both.",
            },
            "source": {"type": "string", "format": "uri-reference", "minLength": 1, "maxLength": config.event_id_chars_max},
            **sent(config, categories, "type", "data"),
            "subject": user_name(config, "Whom to notify."),
            "time": EPOCH_ON,
            "data_base64": False,
            **extensions(config, categories),
            "traceparent": {"type": "string", "description": "Its extension for distributed tracing; ignored when it is not valid."},
        },
        "not": {"required": ["delay", "at"]},
        "required": ["specversion", "id", "source", "type", "subject"],
    }
