"""CloudEvents 1.0 as items, in the JSON format and in the binary mode of the HTTP binding.

In structured mode a body holds whole events. In binary mode (HTTP binding, section 3.1) the headers `ce-<name>` are the attributes of one
event, the body is its data and `Content-Type` the media type of that. Both give the same item, so an event may be repeated in either.

`source` and `id` together identify an event (CloudEvents 1.0, section 3.1): two sources may use one id. An item has one id of bounded
length, so it is a hash of both; the receiver finds the two themselves in `context`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, Literal
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import UNSET, Raw, UnsetType

from engine.core.model.names import is_user
from engine.core.model.trace_context import parse_traceparent
from engine.errors import Invalid
from engine.publish.items import Item, Options, rfc3339_ms

ID_PREFIX: Final = "ce:"

Headers = Sequence[tuple[bytes, bytes]]
"""`(name, value)`, names in lower case."""

_PREFIX: Final = b"ce-"
_REQUIRED: Final = ("specversion", "id", "source", "type")
_MARKS: Final = frozenset(_PREFIX + name.encode() for name in _REQUIRED)
_HASH_CHARS: Final = 32  # 128 bits
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
_options: Final = attrgetter(*Options.__struct_fields__)
_ITEM_NAMES: Final = {"user": "subject", "ts": "time", "context": "source"}


class CloudEvent(Options, gc=False, kw_only=True):
    """A CloudEvents 1.0 event.

    Extension attributes named like the engine's own fields mean the same; others are ignored, as the specification requires. So is a
    `traceparent`, of the extension "distributed tracing", that is not valid.
    """

    specversion: Literal["1.0"]
    id: str
    source: str
    subject: str
    time: str | UnsetType = UNSET
    data_base64: Raw | UnsetType = UNSET

    def item(self, id_chars_max: int) -> Item:
        """The same as an item; `id_chars_max` bounds `id` and `source`.

        Raises:
            Invalid: an attribute has a value that CloudEvents or the engine do not allow.
        """
        if self.data_base64 is not UNSET:
            raise Invalid("binary data is not supported; send JSON in `data`", "$.data_base64")
        for name, text in (("id", self.id), ("source", self.source)):
            if not is_user(text, id_chars_max):
                raise Invalid(f"text of 1 to {id_chars_max} characters without control characters", f"$.{name}")
        item = Item(*_options(self))
        if item.traceparent is not UNSET and parse_traceparent(item.traceparent) is None:
            item.traceparent = UNSET
        item.user = self.subject
        item.id = message_id(self.source, self.id)
        item.context = Raw(msgspec.json.encode({"source": self.source, "id": self.id}))
        if self.time is not UNSET:
            item.ts = rfc3339_ms(self.time, "$.time")
        return item


_ATTRIBUTES: Final = frozenset(CloudEvent.__struct_fields__) - {"data", "data_base64"}


def message_id(source: str, id: str) -> str:
    """The id of the message that an event becomes: the same for two events exactly when `source` and `id` are.

    `ce:` and the first 128 bits of a SHA-256, in hexadecimal, of: the length of `source` in bytes of UTF-8, in decimal; a colon;
    `source`; `id`. With the length in front no two pairs give the same text.
    """
    name = source.encode()
    return ID_PREFIX + hashlib.sha256(b"%d:%b%b" % (len(name), name, id.encode())).hexdigest()[:_HASH_CHARS]


def is_binary(headers: Headers) -> bool:
    """Is an event in these headers? One of the required attributes is enough.

    Without the others the request is rejected: published as something else, it would have lost its identity.
    """
    return any(name in _MARKS for name, _ in headers)


def attribute(headers: Headers, name: bytes) -> bytes:
    """The value of one attribute as it was sent; empty when there is none."""
    return next((value for header, value in headers if header == _PREFIX + name), b"")


def from_binary(headers: Headers, data: Raw | UnsetType) -> CloudEvent:
    """An event in binary mode.

    Raises:
        Invalid: a header is missing, given twice or not decodable; its path is that of the attribute in the JSON format.
        msgspec.ValidationError: a value does not have the attribute's type.
    """
    attributes: dict[str, str | Raw | int] = {}
    for header, value in headers:
        name = header.removeprefix(_PREFIX).decode("latin-1")
        if header.startswith(_PREFIX) and name in _ATTRIBUTES:
            if name in attributes:
                raise Invalid("given more than once", f"$.{name}")
            attributes[name] = _decoded(value, name)
    for name in (*_REQUIRED, "subject"):
        if name not in attributes:
            raise Invalid("this header is needed", f"$.{name}")
    at = attributes.get("at")
    if isinstance(at, str) and at.isascii() and at.isdigit():
        attributes["at"] = int(at)
    event = msgspec.convert(attributes, CloudEvent, strict=False)  # not strict: numbers and booleans are text in a header
    event.data = data
    return event


def _decoded(value: bytes, name: str) -> str:
    """The text of a header (HTTP binding, section 3.1.3.2): quotes removed, as older versions sent them, then percent-decoded once."""
    if len(value) > 1 and value.startswith(b'"') and value.endswith(b'"'):
        value = _ESCAPED.sub(rb"\1", value[1:-1])
    try:
        return unquote_to_bytes(value).decode()
    except UnicodeDecodeError:
        raise Invalid("not UTF-8 once it is percent-decoded", f"$.{name}") from None


def path_of(path: str, *, binary: bool) -> str:
    """Where a publisher wrote what is at this path of the item: `$.subject`, in binary mode the header `ce-subject`."""
    name, *rest = path.removeprefix("$.").split(".", 1)
    name = _ITEM_NAMES.get(name, name)
    if binary and name in _ATTRIBUTES:
        return _PREFIX.decode() + name
    if binary and name == "data":
        return ".".join(("$", *rest))
    return path if path == "$" else ".".join(("$", name, *rest))
