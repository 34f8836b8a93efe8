"""Explanations: what would become of notifications."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config import Config
from engine.http.description.json_schema import SEQ, TIME_MS, Schema, items_of, object_of, ref
from engine.http.description.operation import TENANT, Part, json_of, operation


def paths(config: Config) -> Part:
    """The paths, by name."""
    return {
        "/v1/explain": {
            "post": operation(
                "explain",
                "contact policy",
                "What would become of notifications now, and why. Changes nothing.",
                {200: ("One result for each user of each item.", json_of("ExplainAnswer"))},
                (400, 408, 413, 415, 422, 429, 503),
                scope="publish",
                parameters=(TENANT,),
                body={"application/json": {"schema": {"oneOf": [ref("Notification"), items_of(config, ref("Notification"))]}}},
            )
        },
    }


def schemas(_config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """The schemas of their bodies, by name."""
    return {
        "ExplainAnswer": object_of(
            "What would become of each item, in order; one result per user for `users`.",
            required=("results",),
            results={
                "type": "array",
                "items": object_of(
                    "Of one user, or of a topic or everyone.",
                    required=("decision", "reasons"),
                    user={"type": "string"},
                    topic={"type": "string"},
                    broadcast={"const": True},
                    decision={"enum": ["deliver", "defer", "digest", "inbox", "merge", "suppress", "duplicate", "conflict"]},
                    reasons={
                        "type": "array",
                        "items": object_of(
                            "A word for programs, a sentence for people.",
                            required=("code", "detail"),
                            code={"type": "string"},
                            detail={"type": "string"},
                        ),
                    },
                    until={**TIME_MS, "description": "When it would be delivered, where that is not now; ms since the epoch."},
                    seq={**SEQ, "description": "Of a duplicate's first."},
                ),
            },
        ),
    }
