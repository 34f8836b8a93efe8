"""From the bytes of a publish request to items, for each media type. The fields are validated later, in `engine.publish.drafts`.

A request is decoded twice by msgspec, in C: once into plain values, which finds every byte that is no UTF-8, every number no
client could read and every nesting too deep; and once into `Item`s, whose `data`, `actor`, `target` and `context` stay the
bytes the publisher sent. Both passes together cost about a microsecond per item. Only when one of them fails is the request
read item by item, to report the index and the path of every invalid one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from engine.auth.tokens import RawHeaders
from engine.config import Config
from engine.core.model.constants import NORMAL, PRIORITIES
from engine.errors import Invalid
from engine.http.problems import Problem, bad_request, content_too_large, unprocessable, unsupported_media_type
from engine.publish import cloud_events
from engine.publish.cloud_events import CloudEvent
from engine.publish.items import Item

DETAIL_CHARS_MAX: Final = 400  # of one error: it may quote what was sent
FIELD_CHARS_MAX: Final = 64  # of a field name quoted in an error

MEDIA_TYPES: Final = (
    "application/json",
    "application/x-ndjson",
    "application/cloudevents+json",
    "application/cloudevents-batch+json",
)
DATA_TYPES: Final = ("application/json", "application/*+json", "text/*")
"""Of the data of a CloudEvent in binary mode."""


class Form(Enum):
    """How a body holds its items."""

    JSON = "application/json"  # one object or an array
    LINES = "application/x-ndjson"
    EVENT = "application/cloudevents+json"
    EVENTS = "application/cloudevents-batch+json"
    BINARY = "ce-*"  # the data of one CloudEvent whose attributes are headers


class Content(NamedTuple):
    """What the headers of a publish request say about its body."""

    content_type: str | None = None  # the first one, as Starlette has it
    attributes: cloud_events.Headers = ()  # headers `ce-*`
    traceparent: str = ""

    @classmethod
    def of(cls, headers: RawHeaders) -> Content:
        """That of a request with these headers; their names are in lower case."""
        content_type: str | None = None
        attributes: list[tuple[bytes, bytes]] = []
        traceparent = ""
        for header in headers:
            name, value = header
            if name == b"content-type":
                content_type = content_type if content_type is not None else value.decode("latin-1")
            elif name.startswith(b"ce-"):
                attributes.append(header)
            elif name == b"traceparent":
                traceparent = value.decode("latin-1")
        return cls(content_type, attributes, traceparent)

    @property
    def binary(self) -> bool:
        """Is it an event in binary mode? A media type of CloudEvents says that the body holds whole events, whatever the headers are."""
        if not self.attributes or (self.content_type or "").lstrip().lower().startswith("application/cloudevents"):
            return False
        return cloud_events.is_binary(self.attributes)

    @property
    def form(self) -> Form:
        """How the body holds its items.

        Raises:
            Problem: 415, for another media type or another charset than UTF-8.
        """
        return Form.BINARY if self.attributes and self.binary else form_of(self.content_type)


class ParsedBody(Struct):
    """The items of a body. `items[i]` is None where `errors` has the reason; each error has `index`, `path` and `detail`."""

    items: Sequence[Item | None]
    errors: list[dict[str, Any]]
    form: Form
    array: bool  # paths begin with `$[index]`

    @property
    def batch(self) -> bool:
        """The request could have held several items."""
        return self.array or self.form is Form.LINES

    def fault(self, index: int, error: Invalid) -> None:
        """Add the error of one item, with its path as the publisher wrote it."""
        path = error.path
        if self.form in (Form.EVENT, Form.EVENTS, Form.BINARY):
            path = cloud_events.path_of(path, binary=self.form is Form.BINARY)
        if self.array:
            path = f"$[{index}]{path[1:]}"
        self.errors.append({"index": index, "path": path, "detail": error.detail[:DETAIL_CHARS_MAX]})


_HINTS: Final = {
    "$.priority": "allowed are high, normal and low",
    "$.delay": "seconds, a fraction is allowed",
    "$.at": "milliseconds since the epoch, or an RFC 3339 time with its offset",
    "$.ttl": "seconds, a fraction is allowed",
    "$.ts": "whole milliseconds since the epoch",
    "$.specversion": "allowed is 1.0",
}
_VALUE: Final = msgspec.json.Decoder()
_RAWS: Final = msgspec.json.Decoder(list[Raw])
_ITEM: Final = msgspec.json.Decoder(Item)
_ITEMS: Final = msgspec.json.Decoder(list[Item])
_EVENT: Final = msgspec.json.Decoder(CloudEvent)
_EVENTS: Final = msgspec.json.Decoder(list[CloudEvent])
_MESSAGE: Final = re.compile(r"(.*?)(?: - at `([^`]*)`)?", re.DOTALL)
_UNKNOWN_FIELD: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_opens_array: Final = re.compile(rb"[ \t\r\n]*\[").match


@lru_cache(maxsize=64)
def form_of(content_type: str | None) -> Form:
    """The form that a `Content-Type` header names; JSON when there is none.

    Raises:
        Problem: 415, for another media type or another charset than UTF-8.
    """
    name = _media_type(content_type or Form.JSON.value)
    name = "application/x-ndjson" if name == "application/ndjson" else name
    if name not in MEDIA_TYPES:
        raise unsupported_media_type(f"this media type is not accepted; these are: {', '.join(MEDIA_TYPES)}", MEDIA_TYPES)
    return Form(name)


def _media_type(content_type: str) -> str:
    """The media type in lower case, without its parameters. Raises Problem (415) for another charset than UTF-8."""
    media_type, *parameters = content_type.split(";")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() not in ("utf-8", "utf8", "us-ascii"):
            raise unsupported_media_type("JSON is UTF-8; leave the charset out or say so", MEDIA_TYPES)
    return media_type.strip().lower()


class _Peek(Struct, gc=False):
    """The priority of an item, and nothing else."""

    priority: Literal["high", "normal", "low"] = "normal"


_PEEK: Final = msgspec.json.Decoder(_Peek)
_PEEKS: Final = msgspec.json.Decoder(list[_Peek])


def least_priority(body: bytes, content: Content) -> int:
    """The priority of the least important item of a publish request, at a tenth of what parsing it costs.

    A body that cannot be read, or hides the words behind escapes, is of normal priority; parsing it decides.
    """
    if content.binary:
        word = cloud_events.attribute(content.attributes, b"priority").decode("latin-1")
        return PRIORITIES.index(word) if word in PRIORITIES else NORMAL
    if b'"low"' not in body and b'"high"' not in body:
        return NORMAL
    try:
        if content.form is Form.LINES:
            items = _PEEK.decode_lines(body)
        else:
            items = _PEEKS.decode(body) if _opens_array(body) is not None else [_PEEK.decode(body)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Problem):
        return NORMAL
    return max((PRIORITIES.index(item.priority) for item in items), default=NORMAL)


def read(body: bytes, content: Content, config: Config) -> ParsedBody:
    """The items of a request body.

    Raises:
        Problem: 400 for what is no JSON or no UTF-8, 413 for more items than `items_max`, 415 for another media type, 422 for no items
            or nesting beyond what can be read at all.
    """
    form = content.form
    array = form not in (Form.LINES, Form.BINARY) and _opens_array(body) is not None
    try:
        if form is Form.BINARY:
            return _read_binary(body, content, config)
        try:
            parsed = ParsedBody(_read_all(body, form, array, config), [], form, array)
        except (msgspec.ValidationError, Invalid):
            parsed = _read_each(body, form, array, config)
        except msgspec.DecodeError:
            if form is not Form.LINES:
                raise
            parsed = _read_each(body, form, array, config)
    except RecursionError:
        raise unprocessable("nested too deeply", [{"path": "$", "detail": f"at most {config.json_depth_max} levels are allowed"}]) from None
    except UnicodeDecodeError:
        raise bad_request("the body is not valid UTF-8") from None
    except msgspec.DecodeError as error:
        raise bad_request(malformed(error)) from None
    _check_count(len(parsed.items), config)
    return parsed


def _read_all(body: bytes, form: Form, array: bool, config: Config) -> list[Item]:
    """Read all items at once; any exception means that one of them is invalid."""
    if form is Form.LINES:
        _VALUE.decode_lines(body)
        return _ITEM.decode_lines(body)
    _VALUE.decode(body)
    if form is Form.JSON:
        return _ITEMS.decode(body) if array else [_ITEM.decode(body)]
    if form is Form.EVENTS:
        return [event.item(config.event_id_chars_max) for event in _EVENTS.decode(body)]
    return [_EVENT.decode(body).item(config.event_id_chars_max)]


def _read_each(body: bytes, form: Form, array: bool, config: Config) -> ParsedBody:
    """Read item by item, to find all that are invalid."""
    pieces = [body]
    if form is Form.LINES:
        pieces = [line for line in body.splitlines() if line.strip()]
    elif array and form is not Form.EVENT:
        pieces = [bytes(raw) for raw in _RAWS.decode(body)]
    _check_count(len(pieces), config)
    items: list[Item | None] = []
    parsed = ParsedBody(items, [], form, array and form is not Form.EVENT)
    for index, piece in enumerate(pieces):
        try:
            items.append(_read_one(piece, form, array, config))
        except Invalid as error:
            items.append(None)
            parsed.fault(index, error)
    return parsed


def _read_one(piece: bytes, form: Form, array: bool, config: Config) -> Item:
    """One item, or `Invalid` with the path of what is wrong in it."""
    if form is Form.EVENTS and not array:
        raise Invalid("expected an array of events")
    try:
        item = _EVENT.decode(piece).item(config.event_id_chars_max) if form in (Form.EVENT, Form.EVENTS) else _ITEM.decode(piece)
    except msgspec.ValidationError as error:
        raise invalid(error, Item) from None
    except msgspec.DecodeError as error:
        raise Invalid(malformed(error)) from None
    except UnicodeDecodeError:
        raise Invalid("not valid UTF-8") from None
    for name in ("actor", "target", "context", "data"):
        value = getattr(item, name)
        if value is not UNSET:
            try:
                _VALUE.decode(value)
            except msgspec.DecodeError as error:
                raise Invalid(malformed(error), f"$.{name}") from None
            except UnicodeDecodeError:
                raise Invalid("not valid UTF-8", f"$.{name}") from None
    return item


def _read_binary(body: bytes, content: Content, config: Config) -> ParsedBody:
    """The one item of an event in binary mode."""
    parsed = ParsedBody([None], [], Form.BINARY, array=False)
    data = _data(body, content.content_type)
    try:
        parsed.items = [cloud_events.from_binary(content.attributes, data).item(config.event_id_chars_max)]
    except msgspec.ValidationError as error:
        parsed.fault(0, invalid(error, CloudEvent))
    except Invalid as error:
        parsed.fault(0, error)
    return parsed


def _data(body: bytes, content_type: str | None) -> Raw | UnsetType:
    """The data of an event in binary mode as JSON: JSON as it is, text as a string, as the JSON format of CloudEvents has them."""
    media_type = _media_type(content_type or Form.JSON.value)
    if not body.strip():
        return UNSET
    if media_type.startswith("text/"):
        return Raw(msgspec.json.encode(body.decode()))
    if media_type != Form.JSON.value and not media_type.endswith("+json"):
        raise unsupported_media_type(f"the data of a CloudEvent in binary mode is one of: {', '.join(DATA_TYPES)}", DATA_TYPES)
    _VALUE.decode(body)
    return Raw(body.strip())


def _check_count(count: int, config: Config) -> None:
    if count == 0:
        raise unprocessable("there is nothing to publish", [{"path": "$", "detail": "at least one item is needed"}])
    if count > config.items_max:
        raise too_many(config)


def too_many(config: Config) -> Problem:
    """413: more items, one per user, than a request may hold."""
    return content_too_large(f"a request holds at most {config.items_max} items, counting each user of `users`")


def malformed(error: msgspec.DecodeError) -> str:
    """What msgspec found, for people."""
    detail = str(error)
    if "truncated" in detail:  # msgspec's message also for a lone surrogate, which RFC 7493 forbids
        return "JSON is malformed: it ends too early, or holds a lone surrogate"
    return detail


def invalid(error: msgspec.ValidationError, kind: type[Struct]) -> Invalid:
    """What msgspec found while it read a `kind`, with the path apart and with what is allowed there."""
    found = _MESSAGE.fullmatch(str(error))
    detail, path = (found[1], found[2] or "$") if found else (str(error), "$")
    unknown = _UNKNOWN_FIELD.fullmatch(detail)
    if unknown:
        name = unknown[1][:FIELD_CHARS_MAX]
        allowed = f"; allowed are {', '.join(kind.__struct_fields__)}" if path == "$" else ""
        return Invalid(f"unknown field `{name}`{allowed}", f"{path}.{name}")
    hint = _HINTS.get(path)
    return Invalid(f"{detail}; {hint}" if hint else detail, path)


def unacceptable(error: Invalid) -> Problem:
    """422 for the one thing that is wrong with a request."""
    detail = error.detail[:DETAIL_CHARS_MAX]
    return unprocessable(f"{error.path}: {detail}"[:DETAIL_CHARS_MAX], [{"path": error.path, "detail": detail}])
