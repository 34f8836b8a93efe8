"""The JSON Schemas of a message's members, from their table (`engine.core.model.members`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from engine.config import Config
from engine.core.model import members
from engine.core.model.members import DELIVERED, SENT, Kind, Member
from engine.core.model.message import TIMER_EFFECT
from engine.core.model.question import CHOICE_CHARS_MAX, LABEL_CHARS_MAX
from engine.http.description.json_schema import (
    EPOCH_ON,
    SEQ,
    TIME_MS,
    TRACEPARENT,
    Schema,
    event_type,
    items_of,
    printable,
    topic_name,
    user_name,
)

_LINK: Final = r"^([Hh][Tt][Tt][Pp][Ss]?://[^\s\u0000-\u0020\u007f/?#\\]|/(?!/))[^\s\u0000-\u0020\u007f\\]*$"


def sent(config: Config, categories: Sequence[str], *names: str) -> dict[str, Schema]:
    """What a publisher may give: these members, or all. `categories`: as for `engine.http.description.document`."""
    found = {name: _sent(SENT[name], config) for name in names or SENT}
    if "category" in found and categories:
        found["category"]["enum"] = list(categories)
    return found


def extensions(config: Config, categories: Sequence[str]) -> dict[str, Schema]:
    """The extension attributes of a CloudEvent that are members of a message."""
    return sent(config, categories, *(name for name, member in SENT.items() if member.attribute))


def delivered(*left_out: str) -> dict[str, Schema]:
    """What a client gets, but for these members."""
    return {name: _delivered(member) for name, member in DELIVERED.items() if name not in left_out}


def always(*left_out: str) -> tuple[str, ...]:
    """What every delivered message has, but for these members."""
    return tuple(name for name, member in DELIVERED.items() if member.always and name not in left_out)


def when(config: Config) -> dict[str, Schema]:
    """The members that say when to deliver."""
    return sent(config, (), "delay", "at")


def _sent(member: Member, config: Config) -> Schema:
    make = _OF_KIND.get(member.kind)
    schema = _of_type(member.kind) if make is None else make(config)
    return {**schema, "description": f"{member.meaning} {member.limit(config)}".rstrip()}


def _delivered(member: Member) -> Schema:
    schema = _DELIVERED_KIND.get(member.kind)
    return {**(_of_type(member.kind) if schema is None else schema), "description": member.meaning}


def _of_type(kind: Kind) -> Schema:
    return msgspec.json.schema(kind.type)


def _collapse(config: Config) -> Schema:
    return {
        "type": "object",
        "properties": {
            "key": printable(config),
            "window": {
                "type": "number",
                "minimum": 0,
                "maximum": config.collapse_window_s_max,
                "description": "Seconds from the first message of the key, in which they become one. `ttl` must be longer."
                f" `data` has at most {config.collapse_data_bytes_max} bytes then.",
            },
            "leading": {"type": "boolean", "description": "Deliver the first message at once; the summary replaces it. Needs a window."},
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
    }


def _choices(config: Config) -> Schema:
    properties: dict[str, Schema] = {
        "id": printable(config, "For programs.") | {"maxLength": CHOICE_CHARS_MAX},
        "label": user_name(config, "On the button.") | {"maxLength": LABEL_CHARS_MAX},
        "style": {"enum": ["plain", "primary", "danger"], "default": "plain"},
    }
    choice = {"type": "object", "properties": properties, "required": ["id", "label"], "additionalProperties": False}
    return {"type": "array", "items": choice, "maxItems": config.question_answers_max, "description": "Each with an id of its own."}


def _ask(config: Config) -> Schema:
    return {
        "type": "object",
        "properties": {
            "answers": _choices(config),
            "text": {"type": "boolean", "description": "The answer may have a text; without `answers` it is one."},
            "deadline": {
                "description": "Seconds, or a duration such as `30m`; then the default is the answer.",
                "oneOf": [
                    {"type": "number", "exclusiveMinimum": 0, "maximum": config.question_deadline_s_max},
                    {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$", "format": "deadline"},
                ],
                "default": config.question_deadline_s_default,
            },
            "default": {"type": "string", "description": "Id of the answer at the deadline; without it there is none then."},
            "to": {
                "description": "How many members of a topic give the same answer: the first, all who are subscribed, or so many.",
                "oneOf": [{"enum": ["anyone", "everyone"]}, {"type": "integer", "minimum": 1, "maximum": config.question_members_max}],
                "default": "anyone",
            },
            "do": {"type": "string", "format": "target", "description": "A target among `question_targets`, called with the answer."},
            "event": event_type(config) | {"description": "Type of the event that the rules get with the answer."},
        },
        "anyOf": [
            {"properties": {"answers": {"minItems": 1}}, "required": ["answers"]},
            {"properties": {"text": {"const": True}}, "required": ["text"]},
        ],
        "additionalProperties": False,
    }


_OF_KIND: Final[Mapping[Kind, Callable[[Config], Schema]]] = {
    members.TYPE: event_type,
    members.USER: user_name,
    members.USERS: lambda config: items_of(config, user_name(config)),
    members.TOPIC: topic_name,
    members.ID: lambda config: printable(config) | {"not": {"pattern": f"^{TIMER_EFFECT}"}},
    members.LINK: lambda config: {"type": "string", "maxLength": config.context_bytes_max, "pattern": _LINK},
    members.TIME_MS: lambda _config: TIME_MS,
    members.DELAY: lambda config: {"type": "number", "minimum": 0, "maximum": config.delay_s_max},
    members.TTL: lambda config: {
        "type": "number",
        "exclusiveMinimum": 0,
        "maximum": config.ttl_s_max,
        "default": config.ttl_s_default,
    },
    members.DUE: lambda _config: {"oneOf": [{"type": "integer", "minimum": 0}, EPOCH_ON]},
    members.COLLAPSE: _collapse,
    members.ASK: _ask,
    members.TRACE: lambda _config: TRACEPARENT,
}

_DELIVERED_KIND: Final[Mapping[Kind, Schema]] = {
    members.SEQ: SEQ,
    members.TIME_MS: TIME_MS,
    members.TRACE: TRACEPARENT,
    members.COUNT: {"type": "integer", "minimum": 1},
    members.TRUE: {"const": True},
}
"""Of a member that the engine has checked or made; its type for any other."""
