"""The description of the endpoint for Ray's Event Export."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from engine.config import Config
from engine.http.description.json_schema import COUNT, Schema, answer_of
from engine.http.description.operation import Part, json_of, operation, parameter

by_anyone = partial(operation, "operating", None)


def paths(_config: Config) -> Part:
    """See `Description`."""
    return {
        "POST /v1/ray-events/{secret}": by_anyone(
            "rayEvents",
            "Takes what Ray's Event Export posts, from this machine and private networks. The path has the secret.",
            {200: ("Its news are stored.", json_of("RayEventsTaken"))},
            (403, 404, 408, 413, 422, 503),
            parameters=(parameter("secret", "path", "The setting `ray_events_secret`.", {"type": "string"}, required=True),),
            body=json_of("RayEvents"),
        )
    }


def schemas(_config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """The schemas of its bodies, by name."""
    return {
        "RayEvents": {
            "type": "array",
            "description": "Messages `RayEvent` of Ray in camel case; those of kinds that are no news are passed over.",
            "items": answer_of("One event.", eventType={"type": "string"}),
        },
        "RayEventsTaken": answer_of(
            "What the array had.",
            events=COUNT,
            news={**COUNT, "description": "Unexpected deaths of actors, nodes and workers."},
            unreadable={**COUNT, "description": "Events of another version of Ray."},
        ),
    }
