"""The topics of users, and of a tenant."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from engine.config import Config, store_urls
from engine.http.description.json_schema import COUNT, Schema, answer_of, object_of, rows, topic_name
from engine.http.description.operation import TENANT, Part, json_of, operation, parameter, whose

by_admin = partial(operation, "operating", "admin")
by_client = partial(operation, "receiving", "connect")


def paths(config: Config) -> Part:
    """See `Description`."""
    topic = parameter("topic", "path", "The topic; it may contain slashes.", topic_name(config), required=True)
    answer = {200: ("The topics that the user is subscribed to now.", json_of("Subscriptions"))}
    store = "|".join(str(number) for number in range(len(store_urls(config.redis_url))))
    after = parameter(
        "after", "query", "The `after` of the page before.", {"type": "string", "pattern": f"^({store})-([0-9]{{1,19}}|1[0-7][0-9]{{18}})$"}
    )
    return {
        "GET /v1/subscriptions": by_client("listSubscriptions", "The topics a user is subscribed to.", answer, parameters=(whose(config),)),
        "/v1/subscriptions/{topic}": [topic],
        "PUT /v1/subscriptions/{topic}": by_client(
            "subscribe",
            "Subscribe to a topic, from now on. The claim `topics` of the token, where there is one, must allow it.",
            answer,
            parameters=(whose(config),),
        ),
        "DELETE /v1/subscriptions/{topic}": by_client("unsubscribe", "End a subscription.", answer, parameters=(whose(config),)),
        "GET /v1/topics": by_admin(
            "listTopics",
            "The topics of a tenant with their numbers of subscribers. A page may have none, and be followed by others.",
            {200: ("Some of them.", json_of("TopicPage"))},
            parameters=(TENANT, after),
        ),
    }


def schemas(config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """See `Description`."""
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
        "TopicPage": answer_of(
            "Topics of a tenant. `after` begins the next page, and is absent at the end.",
            optional=("after",),
            tenant={"type": "string"},
            total=COUNT,
            topics=rows(topic={"type": "string"}, subscribers=COUNT),
            after={"type": "string"},
        ),
    }
