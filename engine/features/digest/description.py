"""The description of the digest's endpoint."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config import Config
from engine.core.model.constants import TS_MS_MAX
from engine.features.digest.by_mail import PATH
from engine.features.policy.description import PAGE
from engine.http.description.json_schema import SEQ, TIME_MS, Schema, object_of
from engine.http.description.operation import Part, json_of, operation, parameter


def paths(config: Config) -> Part:
    """The paths, by name."""
    lines: Schema = {"type": "integer", "minimum": 1, "maximum": config.digest_lines_max, "default": config.digest_lines}
    since: Schema = {"type": "integer", "minimum": 0, "maximum": TS_MS_MAX, "default": 0}
    return {
        "/v1/digest": {
            "get": operation(
                "digest",
                "receiving",
                "What the bearer has missed, in a few lines: pending messages grouped by intent. Acknowledges nothing.",
                {200: ("The lines, the most important first, each with its messages.", json_of("Digest"))},
                (400, 429, 503),
                scope="connect",
                parameters=(
                    parameter(
                        "since",
                        "query",
                        "What happened from then on, ms since the epoch: pending, or unread in the inbox. Without it: what is pending.",
                        since,
                    ),
                    parameter("limit", "query", "Lines at most.", lines),
                ),
            )
        },
        PATH: {
            "parameters": [parameter("token", "query", "Of the link.", required=True)],
            "get": operation(
                "askNoDigest",
                "receiving",
                "A page with a button; changes nothing.",
                {200: ("The page.", PAGE), 404: ("The link is not valid, or too old.", PAGE), 503: ("Storage does not answer.", PAGE)},
                scope=None,
            ),
            "post": operation(
                "endDigests",
                "receiving",
                "End the digests by mail (RFC 8058); durable with the answer. Repeats change nothing.",
                {200: ("Done.", PAGE), 404: ("The link is not valid, or too old.", PAGE), 503: ("Storage does not answer.", PAGE)},
                (408, 413),
                scope=None,
            ),
        },
    }


def schemas(_config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """The schemas of their bodies, by name."""
    return {
        "Digest": object_of(
            "What a user has missed.",
            required=("since", "until", "messages", "lines", "skipped", "older", "model"),
            since=TIME_MS,
            until=TIME_MS,
            messages={"type": "integer", "description": "Told of by the lines."},
            lines={
                "type": "array",
                "items": object_of(
                    "Messages of one intent.",
                    required=("text", "intent", "priority", "count", "from", "to", "messages"),
                    text={"type": "string", "description": "In Chinese when the profile's `locale` is, else in English."},
                    intent={"type": "string"},
                    priority={"enum": ["high", "normal"]},
                    count={"type": "integer", "description": "Messages that they stand for."},
                    to=TIME_MS,
                    messages={
                        "type": "array",
                        "items": object_of(
                            "One of them.", required=("id", "seq", "event_id"), id={"type": "string"}, seq=SEQ, event_id={"type": "string"}
                        ),
                    },
                    **{"from": TIME_MS},
                ),
            },
            skipped={"type": "object", "description": "Messages left out, by reason.", "additionalProperties": {"type": "integer"}},
            older={"type": "boolean", "description": "Whether more messages are pending than a digest tells of."},
            model={"type": "boolean", "description": "Whether a model grouped what no rule settles."},
        ),
    }
