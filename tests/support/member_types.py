"""The types that a member of a message may have."""

from __future__ import annotations

import typing
from types import NoneType, UnionType
from typing import Any, Final

from msgspec import Raw, UnsetType

from engine.publish.items import Ask, Collapse

_IN_JSON: Final = {Raw: Any, Collapse: dict, Ask: dict[str, Any]}


def alternatives(kind: Any) -> set[Any]:
    """The types of a union, but for those that stand for a member that is left out, and `int` beside `float`."""
    if typing.get_origin(kind) in (UnionType, typing.Union):
        found = {one for part in typing.get_args(kind) for one in alternatives(part)}
    else:
        found = {_IN_JSON.get(kind, kind)} - {UnsetType, NoneType}
    return found - {int} if float in found else found
