"""One message that grows, as an edge has it in memory. Pure: text goes in by offset, parts for devices and chunks for storage come out.

Offsets count bytes of the text in UTF-8. A publisher that repeats a part repeats the same text at the same offset, also to
another edge. So an offset says what is new in a part, and what is missing before it.

    text:   |-- stored --|-- being stored --|-- unstored --|      `stored` <= `size`
            |-- shown ---------------|------ unshown ------|      `shown`  <= `size`

    a part ...                          is
    that begins at `size` or before     taken; what is there already is cut away
    that begins behind `size`           BEHIND: the publisher sends again from `size`
    beyond the largest text             FULL: nothing of it is taken
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from engine.config import Config
from engine.core.model.json_depth import within_depth

PARTS_MAX: Final = 5000
"""Of one request: some 20 ms of an edge."""

OK: Final = "ok"
BEHIND: Final = "behind"
FULL: Final = "full"
ENDED: Final = "ended"
REPLACED: Final = "replaced"
"""States of a part in the answer to its publisher: taken; to be sent again from `have`; too long; no such message grows; another writer has
begun it anew."""

IDLE: Final = "idle"
"""Why a message ended whose publisher did not end it."""

_LINE_BYTES: Final = 1
"""What a line of a list may cost in `data` beyond its part of the text: two quotes and a comma, in place of an escaped line feed."""

_LEVELS: Final = 2
"""Of `data` and its list, around a line."""

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_members: Final = msgspec.json.Decoder(dict[str, Raw])


class Head(Struct, frozen=True, array_like=True):
    """What does not change of a message that grows.

    Attributes:
        item: as the publisher sent it, with its id: the message at the end is made of it.
        body: the members that devices get with the first part, in JSON without braces.
        list: the text is a list of JSON values, one a line.
        idle: the ending of a message whose publisher fell silent; b"" for none.

    An ending is a JSON object, with a `type` that replaces that of the item, or `data` whose members are added to it.
    """

    item: bytes
    body: bytes
    list: bool = False
    idle: bytes = b""


def json_bytes(text: str, line_bytes: int = 0) -> int:
    """The size of a text in JSON, without its quotes; each line costs `line_bytes` more."""
    return len(_encode(text)) - 2 + (line_bytes and line_bytes * text.count("\n"))


class Growth:
    """One message that grows.

    Args:
        key: mailbox key of its user.
        id: of the message.
        generation: grows with each writer that begins it anew.
        text: that storage has.
        progress: likewise, in JSON; b"" for none.
        body: the members of the message, for the first part; None: devices have had it.
        store: the store of its user.
        lines: its text is a list, one value a line.

    Attributes:
        size: bytes of the text.
        stored: so many of them are in storage.
        shown: so many of them were sent to devices, or were in storage when this edge began.
        active_ms: of the last part, on the clock of the edge.
        due_ms: likewise, when this edge last moved the time at which the message ends by itself.
    """

    __slots__ = (
        "_body",
        "_json_bytes",
        "_line_bytes",
        "_progress_unshown",
        "_progress_unstored",
        "_storing",
        "_under_way",
        "_unshown",
        "_unstored",
        "active_ms",
        "due_ms",
        "generation",
        "id",
        "key",
        "progress",
        "shown",
        "size",
        "store",
        "stored",
    )

    def __init__(
        self,
        key: str,
        id: str,
        generation: int,
        text: bytes = b"",
        progress: bytes = b"",
        body: bytes | None = None,
        store: int = 0,
        *,
        lines: bool = False,
    ) -> None:
        self.key = key
        self.store = store
        self.id = id
        self.generation = generation
        self.size = self.stored = self.shown = len(text)
        self.progress = progress
        self.active_ms = 0
        self.due_ms = -math.inf
        self._body = body
        self._line_bytes = _LINE_BYTES if lines else 0
        self._json_bytes = json_bytes(text.decode(errors="replace"), self._line_bytes)
        self._unstored: list[bytes] = []
        self._unshown: list[bytes] = []
        self._storing = 0  # bytes under way to storage
        self._under_way = False  # a chunk is, also without text
        self._progress_unshown = self._progress_unstored = False

    @property
    def unstored(self) -> int:
        """Bytes that storage does not have."""
        return self.size - self.stored

    @property
    def waits_for_storage(self) -> bool:
        """Is there something to store that is not under way?"""
        return self.unstored > self._storing or self._progress_unstored

    @property
    def is_stored(self) -> bool:
        return not (self._under_way or self.waits_for_storage)

    @property
    def waits_for_devices(self) -> bool:
        """Is there something to show?"""
        return bool(self._unshown) or self._progress_unshown or self._body is not None

    def take(self, offset: int, text: str, progress: bytes, json_bytes_max: int) -> str:
        """Take a part; returns its state. `progress`: in JSON; b"" for the one that is there."""
        data = text.encode()
        if offset > self.size:
            return BEHIND
        fresh = data if offset == self.size else data[self.size - offset :]
        if fresh and fresh[0] & 0xC0 == 0x80:
            return BEHIND  # cut inside a character: it is not the text that is here
        if fresh:
            grown = self._json_bytes + json_bytes(text if len(fresh) == len(data) else fresh.decode(), self._line_bytes)
            if grown > json_bytes_max:
                return FULL
            self._json_bytes = grown
            self.size += len(fresh)
            self._unstored.append(fresh)
            self._unshown.append(fresh)
        if progress and progress != self.progress:
            self.progress = progress
            self._progress_unshown = self._progress_unstored = True
        return OK

    def part(self) -> bytes:
        """What is to be shown, as a frame for devices. It counts as shown."""
        text = b"".join(self._unshown).decode()
        self._unshown.clear()
        progress = self.progress if self._progress_unshown else b""
        frame = part_frame(self.id, self.generation, self.shown, text, progress, self._body, lines=self._line_bytes > 0)
        self._body, self._progress_unshown, self.shown = None, False, self.size
        return frame

    def chunk(self) -> tuple[int, bytes, bytes]:
        """(offset, text, progress or b""): what is to be stored. It is under way until `chunk_stored` or `chunk_failed`."""
        chunk = b"".join(self._unstored)
        self._unstored = [chunk] if chunk else []
        self._storing, self._under_way = len(chunk), True
        progress = self.progress if self._progress_unstored else b""
        self._progress_unstored = False
        return self.stored, chunk, progress

    def chunk_stored(self, size: int) -> bool:
        """Storage has so many bytes. False when it lacks what was in it before: this edge cannot go on with the message."""
        first, self._storing, self._under_way = self._storing, 0, False
        if size < self.stored + first:
            return False
        if first:
            self._unstored.pop(0)
        self.stored += first
        return True

    def chunk_failed(self) -> None:
        """Storage did not answer, and may have it or not: it is stored again."""
        self._storing, self._under_way = 0, False
        self._progress_unstored = bool(self.progress)


def part_frame(
    id: str, generation: int, offset: int, text: str, progress: bytes = b"", body: bytes | None = None, *, lines: bool = False
) -> bytes:
    """A part for devices; `body`: the members of the message, with its first part, which says whether the text is a list."""
    more = b"" if not progress else b',"progress":' + progress
    message = b"" if body is None else b',"message":{%b}%b' % (body, b',"list":true' if lines else b"")
    return b'{"type":"part","id":%b,"generation":%d,"offset":%d,"text":%b%b%b}' % (
        _encode(id),
        generation,
        offset,
        _encode(text),
        more,
        message,
    )


def item_at_end(head: Head, text: bytes, progress: bytes, reason: str, config: Config, ending: bytes = b"") -> bytes:
    """The item that is published at the end: the one that began with its ending, the text or the list, the progress, and why it ended.

    A progress for which `data` has no room is left out: control characters take six bytes each.
    """
    members, ends = _members.decode(head.item), _members.decode(ending or b"{}")
    data: dict[str, Any] = {}
    for raw in (members.get("data"), ends.get("data")):
        data |= {} if raw is None else _members.decode(raw)
    if head.list:
        data["items"] = values_of(text, config.json_depth_max - _LEVELS)
    else:
        data["text"] = text.decode(errors="replace")
    if reason:
        data["ended"] = reason
    if progress and len(_encode(data | {"progress": Raw(progress)})) <= config.data_bytes_max:
        data["progress"] = Raw(progress)
    return _encode({**members, **ends, "data": data})


def without_category(item: bytes) -> bytes | None:
    """The item as one that names no category; None: it names none."""
    members = _members.decode(item)
    return None if members.pop("category", None) is None else _encode(members)


def values_of(text: bytes, depth_max: int) -> list[Raw | str]:
    """The values of a list: the lines of its text, as they were written, since `1e9` would grow.

    A line that is no JSON, or has more than `depth_max` levels, is a text.
    """
    found: list[Raw | str] = []
    for line in text.decode(errors="replace").split("\n"):
        if line:
            try:
                _decode(line)
            except (msgspec.DecodeError, RecursionError):
                found.append(line)
            else:
                found.append(Raw(line.encode()) if within_depth(line.encode(), depth_max) else line)
    return found
