"""A checksum for entries of streams that other systems read by their fields: one more field.

The other stored values begin with theirs (`engine.core.model.sealed`); these stay readable by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google_crc32c import extend

FIELD: Final = "crc32c"
"""Eight hexadecimal digits, of the stream's key and of all other fields in the order of their names, each behind its length."""


def with_checksum(stream: str, fields: Mapping[str, Any]) -> dict[Any, Any]:
    """The fields of an entry for the stream with this key, and their checksum."""
    return {**fields, FIELD: _checksum(stream.encode(), {name.encode(): _bytes_of(value) for name, value in fields.items()})}


def is_whole(stream: bytes, fields: Mapping[bytes, bytes]) -> bool:
    """Whether an entry as Redis returns it is as it was written. One without a checksum is not, nor one of another stream."""
    return fields.get(FIELD.encode()) == _checksum(stream, {name: value for name, value in fields.items() if name != FIELD.encode()})


def _checksum(stream: bytes, fields: Mapping[bytes, bytes]) -> bytes:
    crc = extend(0, b"%d:" % len(stream) + stream)
    for name in sorted(fields):
        for part in (name, fields[name]):
            crc = extend(crc, b"%d:" % len(part) + part)
    return b"%08x" % crc


def _bytes_of(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
