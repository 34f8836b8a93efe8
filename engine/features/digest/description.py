"""The description of the digest's endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from engine.config import Config
from engine.core.model.constants import TS_MS_MAX
from engine.features.digest.by_mail import PATH
from engine.features.policy.description import PAGE
from engine.http.description.json_schema import SEQ, TIME_MS, Schema, answer_of, object_of
from engine.http.description.operation import Part, json_of, operation, parameter

by_client = partial(operation, "receiving", "connect")
by_anyone = partial(operation, "receiving", None)


def paths(config: Config) -> Part:
    """See `Description`."""
    lines: Schema = {"type": "integer", "minimum": 1, "maximum": config.digest_lines_max, "default": config.digest_lines}
    since: Schema = {"type": "integer", "minimum": 0, "maximum": TS_MS_MAX, "default": 0}
    return {
        "GET /v1/digest": by_client(
            "digest",
            "What the bearer has missed, in a few lines: pending messages grouped by intent. Acknowledges nothing.",
            {200: ("The lines, the most important first, each with its messages.", json_of("Digest"))},
            parameters=(
                parameter(
                    "since",
                    "query",
                    "What came from then on, ms since the epoch: pending, or unread in the inbox. Without it: what is pending.",
                    since,
                ),
                parameter("limit", "query", "Lines at most.", lines),
            ),
        ),
        PATH: [parameter("token", "query", "Of the link.", required=True)],
        f"GET {PATH}": by_anyone(
            "askNoDigest",
            "A page with a button; changes nothing.",
            {200: ("The page.", PAGE), 404: ("The link is not valid, or too old.", PAGE), 503: ("Storage does not answer.", PAGE)},
        ),
        f"POST {PATH}": by_anyone(
            "endDigests",
            "End the digests by mail (RFC 8058); durable with the answer. Repeats change nothing.",
            {200: ("Done.", PAGE), 404: ("The link is not valid, or too old.", PAGE), 503: ("Storage does not answer.", PAGE)},
            (408, 413),
        ),
    }


def schemas(_config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """See `Description`."""
    return {
        "Digest": answer_of(
            "What a user has missed.",
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
                        "items": answer_of("One of them.", id={"type": "string"}, seq=SEQ, event_id={"type": "string"}),
                    },
                    **{"from": TIME_MS},
                ),
            },
            skipped={"type": "object", "description": "Messages left out, by reason.", "additionalProperties": {"type": "integer"}},
            older={"type": "boolean", "description": "Whether more messages are pending than a digest tells of."},
            model={"type": "boolean", "description": "Whether a model grouped what no rule settles."},
        )
    }
