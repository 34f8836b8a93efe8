"""The words of which the JSON Schemas (2020-12) are made that `GET /openapi.json` describes requests and answers with.

A request schema allows what the engine accepts, and nothing else; its limits are those of the configuration. Rules that JSON Schema cannot
state are in the descriptions: times relative to now, limits in bytes, a `ttl` longer than the window, quiet hours that would end when they
begin, the syntax of templates. And integers are written without a fraction: `1.0` is one for JSON Schema and is rejected here.
"""

from __future__ import annotations

from typing import Any, Final

from engine.config import Config
from engine.core.model.constants import SEQ_MAX, TS_MS_MAX

Schema = dict[str, Any]

TIME_MS: Schema = {"type": "integer", "minimum": 0, "maximum": TS_MS_MAX, "description": "Milliseconds since the epoch."}
SEQ: Schema = {"type": "integer", "minimum": 0, "maximum": SEQ_MAX, "description": "Sequence number within the user's mailbox."}
EPOCH_ON: Schema = {"type": "string", "format": "date-time", "pattern": r"^(19[7-9][0-9]|[2-9][0-9]{3})-"}  # not before 1970
NO_CONTROLS = r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]+$"
EVENT_TYPE = r"[A-Za-z0-9_/:-]+(\.[A-Za-z0-9_/:-]+)*"
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
DURABILITY: Final[Schema] = {
    "enum": ["everysec", "os", "memory", "evictable", "unknown"],
    "description": 'Only where storage keeps less of accepted messages than promised (`redis_durability = "reported"`): what it keeps.',
}
TRACEPARENT: Final[Schema] = {
    "type": "string",
    "pattern": "^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$",
    "description": "W3C Trace Context: the trace that the message belongs to.",
}


def ref(name: str) -> Schema:
    """A reference to a named schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def object_of(description: str, *, required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """An object; other members may come."""
    return {"type": "object", "description": description, "properties": properties, "required": list(required)}


def answer_of(description: str, *, optional: tuple[str, ...] = (), **members: Schema) -> Schema:
    """An object that has all of these members but the optional ones."""
    return object_of(description, required=tuple(name for name in members if name not in optional), **members)


def closed_object(description: str, *, required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """An object in which other members are an error."""
    return object_of(description, required=required, **properties) | {"additionalProperties": False}


def user_name(config: Config, description: str = "Text without control characters.") -> Schema:
    """The name of a user."""
    return {
        "type": "string",
        "minLength": 1,
        "maxLength": config.id_chars_max,
        "pattern": NO_CONTROLS,
        "description": description,
    }


def printable(config: Config, description: str = "Printable text.") -> Schema:
    """An id or another name. Its format stands for what no regular expression of JSON Schema says: no invisible characters."""
    return user_name(config, description) | {"format": "printable"}


def topic_name(config: Config, description: str = "Printable text without spaces and `*`.") -> Schema:
    """The name of a topic."""
    return printable(config, description) | {"pattern": r"^[^\s*\u0000-\u001f\u007f-\u009f\u2028\u2029]+$", "format": "topic"}


def items_of(config: Config, schema: Schema) -> Schema:
    """An array of items."""
    return {"type": "array", "items": schema, "minItems": 1, "maxItems": config.items_max}


def event_type(config: Config) -> Schema:
    """The type of an event or a message."""
    return user_name(config, "Words joined by dots, `post.liked`.") | {"pattern": f"^{EVENT_TYPE}$"}


def rows(*, optional: tuple[str, ...] = (), **members: Schema) -> Schema:
    """An array of objects with these members."""
    return {"type": "array", "items": answer_of("A row.", optional=optional, **members)}
