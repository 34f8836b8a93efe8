"""The description of the log of acts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from engine.config import Config
from engine.features.audit.audit_log import PAGE_MAX
from engine.http.description.json_schema import TIME_MS, Schema, answer_of, object_of
from engine.http.description.operation import Part, json_of, operation, parameter

ENTRY_PATTERN: Final = "[0-9]{1,15}-[0-9]{1,10}"
"""Ids that Redis gives entries of a stream, until the year 33658."""

by_operator = partial(operation, "operating", "operator")


def paths(config: Config) -> Part:
    """See `Description`."""
    limit: Schema = {"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": 100}
    entry: Schema = {"type": "string", "pattern": f"^{ENTRY_PATTERN}$"}
    return {
        "GET /v1/audit": by_operator(
            "listActs",
            "The acts of operators and admins: the newest first, or with `after` the oldest of the later ones first.",
            {200: ("Some of them.", json_of("ActPage"))},
            parameters=(
                parameter("before", "query", "The `before` of the page before.", entry),
                parameter("after", "query", "The `entry` of an act: only later ones.", entry),
                parameter("limit", "query", "How many at most.", limit),
            ),
        )
    }


def schemas(config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """See `Description`."""
    text: Schema = {"type": "string"}
    act = answer_of(
        "An act that took effect.",
        optional=("jti", "details"),
        entry={**text, "description": "Its id, which grows."},
        at=TIME_MS,
        tenant={**text, "description": "Of the token."},
        by={**text, "description": "The user of the token."},
        jti={**text, "description": "Of the token, where it has one."},
        act={**text, "description": "A word, such as `scale` or `erase_user`."},
        on={**text, "description": "The path of the request."},
        details={"type": "object", "description": "What the act was, where the path does not say it."},
    )
    return {
        "ActPage": object_of(
            "Some acts.",
            required=("acts",),
            acts={"type": "array", "items": act, "maxItems": PAGE_MAX},
            before={**text, "description": "Begins the next page; absent at the end."},
        )
    }
