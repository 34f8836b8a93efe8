"""Signals that only count."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from engine.config import Config
from engine.http.description.json_schema import Schema, answer_of, closed_object, items_of, object_of, printable, ref
from engine.http.description.operation import Part, json_of, operation, parameter

by_publisher = partial(operation, "publishing", "publish")


def paths(config: Config) -> Part:
    """See `Description`."""
    names: Schema = items_of(config, printable(config))
    signals: Schema = {"oneOf": [ref("Signal"), items_of(config, ref("Signal")) | {"minItems": 0}]}
    return {
        "POST /v1/signals": by_publisher(
            "countSignals",
            "Signals that only count, such as views: merged by name and added up in storage about a second later, each once.",
            {202: ("Counted here; an edge that dies may lose its last second.", json_of("SignalsAnswer"))},
            body={"application/json": {"schema": signals}},
        ),
        "GET /v1/signals": by_publisher(
            "sumsOfSignals",
            "What signals sum up to in storage.",
            {200: ("By name; 0 for what never came.", json_of("SignalSums"))},
            parameters=(parameter("name", "query", "Of a signal; may be given many times.", names, required=True),),
        ),
    }


def schemas(config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """See `Description`."""
    return {
        "Signal": closed_object(
            "Something that only counts.",
            required=("name",),
            name=printable(config),
            amount={"type": "integer", "minimum": 1, "maximum": 1_000_000_000, "default": 1},
        ),
        "SignalsAnswer": object_of(
            "How many signals were counted, and dropped for want of room.",
            required=("counted", "dropped"),
            counted={"type": "integer"},
            dropped={"type": "integer"},
            quota={"type": "string", "description": "Where some were dropped: the limit, by the name of its setting."},
        ),
        "SignalSums": answer_of("Sums by name.", signals={"type": "object", "additionalProperties": {"type": "integer"}}),
    }
