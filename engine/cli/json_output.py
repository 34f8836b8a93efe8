"""A value as JSON on standard output."""

from __future__ import annotations

import sys
from typing import Any


def print_json(value: Any) -> None:
    """With line breaks, as `jq` prints it."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
