"""Parser of `text/event-stream` (WHATWG HTML, section 9.2.6), of bytes in pieces of any size."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

_LINE_END: Final = re.compile(rb"\r\n|\n|\r(?=[\s\S])")  # a final \r may be half of \r\n: it waits


class ServerEvent(Struct, frozen=True):
    """One event. `name` is `message` where the stream does not say."""

    name: str
    data: bytes


class EventStreamParser:
    """The events of one stream. `id:` and `retry:` are ignored: the data has both."""

    def __init__(self) -> None:
        self._rest = b""
        self._begun = False  # the first line was read
        self._name = ""
        self._data: list[bytes] = []

    @property
    def size(self) -> int:
        """Bytes of the event that has not ended."""
        return len(self._rest) + sum(map(len, self._data))

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """The events that end in this piece."""
        *lines, self._rest = _LINE_END.split(self._rest + piece)
        if lines and not self._begun:
            self._begun = True
            lines[0] = lines[0].removeprefix(BOM_UTF8)
        for line in lines:
            if line:
                field, _, value = line.partition(b":")
                value = value.removeprefix(b" ")
                if field == b"data":
                    self._data.append(value)
                elif field == b"event":
                    self._name = value.decode("utf-8", "replace")
                continue
            if self._data:
                yield ServerEvent(self._name or "message", b"\n".join(self._data))
            self._name = ""
            self._data = []
