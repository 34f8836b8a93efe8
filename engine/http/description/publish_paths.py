"""Publishing: notifications, CloudEvents, and events for the rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.config import Config
from engine.core.model.constants import PRIORITIES
from engine.core.model.message import TIMER_EFFECT
from engine.http.description.json_schema import (
    ANY,
    DURABILITY,
    EPOCH_ON,
    NO_CONTROLS,
    SEQ,
    TIME_MS,
    TRACEPARENT,
    Schema,
    closed_object,
    event_type,
    items_of,
    object_of,
    printable,
    ref,
    topic_name,
    user_name,
)
from engine.http.description.operation import Part, json_of, operation
from engine.http.description.timer_paths import when


def paths(config: Config) -> Part:
    """The paths, by name."""
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
        "/v1/notifications": {
            "post": operation(
                "publish",
                "publishing",
                "Publish one or many notifications. All or none of a well-formed request is accepted; a 202 is on durable storage.",
                {202: ("Accepted.", json_of("PublishAnswer"))},
                (400, 408, 409, 413, 415, 422, 429, 503),
                scope="publish",
                body=body,
            ),
            "get": operation(
                "publishOnConnection",
                "publishing",
                "A WebSocket, subprotocol `notify.v1.json`, each of whose `publish` frames is a request; see PROTOCOL.md.",
                {101: ("The connection speaks WebSocket.", {})},
                (400, 426, 429, 503),
                scope="publish",
            ),
        },
        "/v1/events": {
            "post": operation(
                "event",
                "publishing",
                "An event for the rules, which publish, schedule and cancel. Sending it again under its id changes nothing.",
                {202: ("What the rules made of it is on durable storage.", json_of("EventAnswer"))},
                (400, 408, 409, 413, 422, 429, 503),
                scope="publish",
                body=json_of("Event"),
            )
        },
    }


def schemas(config: Config, categories: Sequence[str]) -> dict[str, Schema]:
    """The schemas of their bodies, by name."""
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
        "Event": closed_object(
            "Something that happened to or by a user.",
            required=("type", "user"),
            type=event_type(config),
            user=user_name(config),
            id=printable(config, "Idempotency key."),
            actor=_around(config),
            target=_around(config),
            context=_around(config),
            ts=TIME_MS,
            data=_data(config),
        ),
        "EventAnswer": object_of(
            "What the rules made of an event.",
            required=("matched", "results", "scheduled", "cancelled"),
            matched={"type": "array", "items": {"type": "string"}, "description": "Names of the rules."},
            results={"type": "array", "items": ref("Result")},
            scheduled={"type": "array", "items": {"type": "string"}, "description": "Scheduled ids."},
            cancelled={"type": "integer", "description": "Scheduled notifications that the event ended."},
            durability=DURABILITY,
        ),
    }


def _notification(config: Config, categories: Sequence[str]) -> Schema:
    around = _around(config)
    return {
        "type": "object",
        "properties": {
            "type": event_type(config),
            "user": user_name(config, "Whom to notify."),
            "collapse": {
                "type": "object",
                "description": "With a `window`, messages of a `key` become one notification when it ends. Without: for a user who is"
                " behind, the newest message of a `key` stands for the older ones that nobody was sent.",
                "properties": {
                    "key": printable(config),
                    "window": {
                        "type": "number",
                        "minimum": 0,
                        "maximum": config.collapse_window_s_max,
                        "description": "Seconds from the first message of the key; `ttl` must be longer. `data` has at most"
                        f" {config.collapse_data_bytes_max} bytes then.",
                    },
                    "leading": {
                        "type": "boolean",
                        "description": "Deliver the first message at once; the summary replaces it. Needs a window.",
                    },
                    "text": {
                        "type": "string",
                        "maxLength": config.collapse_text_chars_max,
                        "description": "Template of the summary's `text`, `{count} people liked {target}`. Needs a window.",
                    },
                },
                "required": ["key"],
                "if": {"properties": {"window": {"exclusiveMinimum": 0}}, "required": ["window"]},
                "else": {"properties": {"leading": {"const": False}, "text": False}},
                "additionalProperties": False,
            },
            "users": items_of(config, user_name(config)) | {"description": "Several at once, all under the same id."},
            "topic": topic_name(config, "Whoever is subscribed to it, or a member by token. Low priority unless given."),
            "broadcast": {
                "type": "boolean",
                "description": "Everyone: who is connected, and who connects before it expires. Low priority unless given.",
            },
            "id": printable(
                config, "Idempotency key, kept 24 h per user: a repeat gets the first answer and delivers nothing. Made when absent."
            )
            | {"not": {"pattern": f"^{TIMER_EFFECT}"}},
            "data": _data(config),
            "actor": around,
            "target": around,
            "context": around,
            "ts": {**TIME_MS, "description": "When it happened, milliseconds since the epoch; now when absent."},
            "unless_active": {
                "type": "boolean",
                "default": False,
                "description": "Not when the user has been active since now, once it is delivered. For users only.",
            },
            **_options(config, categories),
            "traceparent": TRACEPARENT,
        },
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
            "type": event_type(config),
            "subject": user_name(config, "Whom to notify."),
            "time": EPOCH_ON,
            "data": _data(config),
            "data_base64": False,
            "traceparent": {"type": "string", "description": "Its extension for distributed tracing; ignored when it is not valid."},
            **_options(config, categories),
        },
        "not": {"required": ["delay", "at"]},
        "required": ["specversion", "id", "source", "type", "subject"],
    }


def _options(config: Config, categories: Sequence[str]) -> dict[str, Schema]:
    """The fields a notification and a CloudEvent have in common."""
    return {
        "priority": {"enum": list(PRIORITIES), "default": "normal"},
        **when(config),
        "ttl": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": config.ttl_s_max,
            "default": config.ttl_s_default,
            "description": "Seconds after which it is not delivered any more; they count from when it is due.",
        },
        "retain": {"type": "boolean", "default": True, "description": "`false`: only for whoever is connected now."},
        "url": {
            "type": "string",
            "maxLength": config.context_bytes_max,
            "pattern": r"^([Hh][Tt][Tt][Pp][Ss]?://[^\s\u0000-\u0020\u007f/?#\\]|/(?!/))[^\s\u0000-\u0020\u007f\\]*$",
            "description": "The link a client opens: an http(s) URL, or a path on the site of the page that shows the message; at most"
            f" {config.context_bytes_max} bytes.",
        },
        "category": {
            **({"enum": list(categories)} if categories else {"type": "string"}),
            "description": "Whose limits it counts against: one that the rules define, or `touch`. For users only.",
        },
    }


def _around(config: Config) -> Schema:
    return {**ANY, "description": f"Any JSON of at most {config.context_bytes_max} bytes."}


def _data(config: Config) -> Schema:
    return {**ANY, "description": f"Any JSON of at most {config.data_bytes_max} bytes."}
