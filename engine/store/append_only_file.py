r"""Tells a torn end of Redis's append-only file from damage inside it.

A crash cuts the last write short, which was not acknowledged yet. Redis may drop it (`aof-load-truncated`). But a damaged length makes
Redis take everything behind it for the end of one command too: it would drop all later writes, acknowledged ones, with a warning in its
log. So the server starts without that permission first, and gets it only where the file ends within a command, as far as it goes, and no
other command follows the incomplete one.

The file is the sequence of commands as clients send them, RESP arrays of strings: `*2\r\n$3\r\nGET\r\n$1\r\na\r\n`.
"""

from __future__ import annotations

import mmap
import re
from pathlib import Path
from typing import Final

_COMMAND: Final = re.compile(rb"\r\n\*\d{1,7}\r\n\$\d{1,3}\r\n[A-Za-z]{2,20}\r\n")
"""The beginning of a command behind the end of another one."""

_NUMBER: Final = re.compile(rb"[*$](\d{1,10})\r\n")
"""The line of a count or a length."""

_CUT_NUMBER: Final = re.compile(rb"(?:[*$](?:\d{1,10}\r?)?)?\Z")
"""As much of one as there is before the end of the file."""

_RDB: Final = b"REDIS"
"""Begins a file that begins with a dump: written by Redis before 7.0. Where its commands begin, only Redis knows."""


def damage_before_end(path: Path) -> int | None:
    """The position of what is no command, or of an incomplete command that others follow; None where the file is whole, or its end is torn.

    Costs about a second per hundred megabytes.

    Raises OSError.
    """
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content[: len(_RDB)] == _RDB:
                return None
            at = 0
            try:
                while (end := _end_of_command(content, at)) is not None:
                    at = end
            except ValueError:
                return at
            return at if _COMMAND.search(content, at) else None


def _end_of_command(content: mmap.mmap, at: int) -> int | None:
    """Where the command at a position ends; None where the file ends before. Raises ValueError where there is none."""
    if (found := _number(content, at, b"*")) is None:
        return None
    count, at = found
    for _ in range(count):
        if (found := _number(content, at, b"$")) is None:
            return None
        size, at = found
        at += size
        if not b"\r\n".startswith(content[at : at + 2]):
            raise ValueError(f"no end of a line at {at}")
        at += 2
        if at > len(content):
            return None
    return at


def _number(content: mmap.mmap, at: int, mark: bytes) -> tuple[int, int] | None:
    """The number of a line, and where the next one begins; None where the file ends before. Raises ValueError for another line."""
    if mark.startswith(content[at : at + 1]):
        if (whole := _NUMBER.match(content, at)) is not None:
            return int(whole[1]), whole.end()
        if _CUT_NUMBER.match(content, at) is not None:
            return None
    raise ValueError(f"no number at {at}")
