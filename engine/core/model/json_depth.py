"""How deeply JSON is nested: receivers cannot read what is nested without bounds."""

from __future__ import annotations

import re
from typing import Final

_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')
_TO_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKET: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")


def within_depth(text: bytes, depth_max: int) -> bool:
    """Is valid JSON nested at most so deep? Takes the innermost brackets away, level by level, at the speed of C."""
    brackets = _STRING.sub(b"", text).translate(None, _NO_BRACKET).translate(_TO_SQUARE)
    for _ in range(depth_max):
        if not brackets:
            return True
        brackets = brackets.replace(b"[]", b"")
    return not brackets
