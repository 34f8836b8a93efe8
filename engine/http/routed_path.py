"""The path by which a request is routed."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

ENCODED_SLASH: Final = "\ud82f"
"""Stands for a percent-encoded slash in the path that is routed: a lone surrogate, which no decoded text contains."""


def routed_path(target: str) -> str:
    """The path of a request's target, decoded segment by segment (RFC 3986, section 2.2): a slash that was encoded is data, and separates
    nothing."""
    return "/".join([unquote(segment).replace("/", ENCODED_SLASH) for segment in target.split("/")]) if "%" in target else target
