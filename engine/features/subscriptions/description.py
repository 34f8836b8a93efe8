"""The topics that users are subscribed to."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config import Config
from engine.http.description.json_schema import Schema, object_of, topic_name
from engine.http.description.operation import Part, json_of, operation, parameter, whose


def paths(config: Config) -> Part:
    """The paths, by name."""
    topic = parameter("topic", "path", "The topic; it may contain slashes.", topic_name(config), required=True)
    answer = {200: ("The topics that the user is subscribed to now.", json_of("Subscriptions"))}
    problems = (400, 429, 503)
    return {
        "/v1/subscriptions": {
            "get": operation(
                "listSubscriptions",
                "receiving",
                "The topics a user is subscribed to.",
                answer,
                problems,
                scope="connect",
                parameters=(whose(config),),
            ),
        },
        "/v1/subscriptions/{topic}": {
            "parameters": [topic],
            "put": operation(
                "subscribe",
                "receiving",
                "Subscribe to a topic, from now on. The claim `topics` of the token, where there is one, must allow it.",
                answer,
                problems,
                scope="connect",
                parameters=(whose(config),),
            ),
            "delete": operation(
                "unsubscribe", "receiving", "End a subscription.", answer, problems, scope="connect", parameters=(whose(config),)
            ),
        },
    }


def schemas(config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """The schemas of their bodies, by name."""
    return {
        "Subscriptions": object_of(
            "The topics a user is subscribed to.",
            required=("user", "topics"),
            user={"type": "string"},
            topics={"type": "array", "items": topic_name(config), "maxItems": config.topics_per_user_max},
            by_token={
                "type": "array",
                "items": topic_name(config),
                "description": "Topics that the bearer's token names: its connections are members of them without a subscription.",
            },
        ),
    }
