"""Stored values: a version byte, a CRC-32C of owner and content, the content.

A disk or a memory module that alters a bit alters a message that would be delivered as true. So every stored value with bodies or sequence
numbers is checked whenever it is read, and a damaged one is not read at all.

A value that does not name its owner has the owner in its checksum: read in the place of another's, it is a damaged one.
"""

from __future__ import annotations

from typing import Final

import msgspec
from google_crc32c import value

from engine.core.model.constants import FORMAT_VERSION

CONTENT_AT: Final = 5
"""Bytes before the content."""


def sealed(content: bytes, owner: bytes = b"") -> bytes:
    """The value that storage keeps of `owner`, where the content does not name it."""
    return b"%b%b%b" % (FORMAT_VERSION, value(owner + content).to_bytes(4, "little"), content)


def unsealed(blob: bytes, owner: bytes = b"") -> bytes:
    """The content of a stored value.

    Raises:
        msgspec.DecodeError: it is of another version, of another owner, or damaged.
    """
    if blob[:1] != FORMAT_VERSION:
        raise msgspec.DecodeError(f"version {blob[0]} of the stored formats is unknown" if blob else "the value is empty")
    content = blob[CONTENT_AT:]
    if value(owner + content).to_bytes(4, "little") != blob[1:CONTENT_AT]:
        raise msgspec.DecodeError("the checksum is another: the value is damaged")
    return content
