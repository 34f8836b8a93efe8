"""Health, figures, pages, and the problem that any endpoint may answer."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config import Config
from engine.http.description.json_schema import DURABILITY, Schema, answer_of, object_of, ref
from engine.http.description.operation import Part, operation


def paths(_config: Config) -> Part:
    """See `Description`."""

    def public(name: str, summary: str, media_type: str, problems: tuple[int, ...] = (), schema: Part | None = None) -> Part:
        content = {media_type: {"schema": schema or {"type": "string"}}}
        return operation("operating", None, name, summary, {200: ("As said.", content)}, problems)

    text: Part = {"schema": {"type": "string"}}
    return {
        "GET /healthz": public("health", "This process is up.", "application/json", schema=ref("Health")),
        "GET /readyz": public("ready", "Storage, shards and schedulers answer.", "application/json", (503,), ref("Readiness")),
        "GET /metrics": operation(
            "operating",
            "metrics",
            "metrics",
            "Figures of the whole engine for Prometheus, in its text format or, where `Accept` prefers it, OpenMetrics 1.0.",
            {200: ("As said.", {"text/plain": text, "application/openmetrics-text": text})},
        ),
        "GET /openapi.json": public("openapi", "This document.", "application/json", schema={"type": "object"}),
        "GET /": public("demo", "A live demo page.", "text/html"),
        "GET /admin": public("admin", "A page for operators, which asks for a token.", "text/html"),
        "GET /client.js": public("client", "The browser client, an ES module.", "text/javascript"),
    }


def schemas(_config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """See `Description`."""
    return {
        "Health": answer_of("The state in a word.", status={"type": "string"}),
        "Readiness": object_of(
            "The state in a word.",
            required=("status", "quarantined", "degraded"),
            status={"type": "string"},
            degraded={
                "type": "array",
                "items": {"type": "string"},
                "description": "Parts that do less than they should, such as `rules`, or `history` while its database is away; "
                "`/v1/status` has the reasons.",
            },
            quarantined={
                "type": ["integer", "null"],
                "description": "Stored records that could not be read; null when that is not known now.",
            },
            durability=DURABILITY,
            stores_away={
                "type": "array",
                "items": {"type": "integer"},
                "description": "Stores of a Redis Cluster that do not answer, while others do. Left out when all answer.",
            },
        ),
        "Problem": _problem(),
    }


def _problem() -> Schema:
    error = object_of(
        "One bad field.",
        required=("detail",),
        index={"type": "integer", "description": "Which item of the request, from 0."},
        path={"type": "string", "description": "JSON path of the field: `$.priority`, in an array `$[3].priority`."},
        detail={"type": "string"},
    )
    return object_of(
        "Problem details (RFC 9457).",
        required=("type", "title", "status", "detail"),
        type={"type": "string", "format": "uri-reference"},
        title={"type": "string"},
        status={"type": "integer"},
        detail={"type": "string"},
        errors={"type": "array", "items": error},
        results={"type": "array", "items": ref("Result"), "description": "Of 409, 429 and 503 on publishing: each item's outcome."},
        quota={"type": "string", "description": "Of 429, where the tenant has used up a quota: the name of its setting."},
        failing={"type": "array", "items": {"type": "string"}, "description": "Of `/readyz`: what does not answer."},
    )
