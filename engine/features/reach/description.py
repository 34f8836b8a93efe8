"""The addresses of users in other channels."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.config import Config
from engine.features.reach.core.addresses import EMAIL_CHARS_MAX, EMAIL_PATTERN, URL_CHARS_MAX, URLS_MAX
from engine.http.description.json_schema import Schema, closed_object
from engine.http.description.operation import TENANT, Part, json_of, operation, user_in_path


def paths(config: Config) -> Part:
    """The paths, by name."""
    answer = {200: ("The addresses as they are kept.", json_of("Channels"))}
    return {
        "/v1/users/{user}/channels": {
            "parameters": [user_in_path(config)],
            "get": operation(
                "getChannels",
                "contact policy",
                "The addresses of a user. The user's own token may ask, or one with the scope `publish` or `admin`.",
                answer,
                (400, 404, 429, 503),
                scope="connect",
                parameters=(TENANT,),
            ),
            "put": operation(
                "setChannels",
                "contact policy",
                "Keep these addresses, in place of those that were kept; durable with the answer. The scope `admin` will do as well.",
                answer,
                (400, 404, 408, 413, 422, 429, 503),
                scope="publish",
                body=json_of("Channels"),
            ),
        },
    }


def schemas(config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """The schemas of their bodies, by name."""
    email: Schema = {
        "description": "A mail address; left out: none.",
        "oneOf": [{"const": ""}, {"type": "string", "maxLength": EMAIL_CHARS_MAX, "pattern": EMAIL_PATTERN}],
    }
    apprise: Schema = {
        "description": "URLs of Apprise, which begin as one of the setting `apprise_urls`.",
        "type": "array",
        "items": {
            "type": "string",
            "format": "apprise-url",
            "maxLength": URL_CHARS_MAX,
            "pattern": f"^({'|'.join(map(re.escape, config.apprise_urls))})[!-~]*$",
        },
        "maxItems": URLS_MAX if config.apprise_urls else 0,
    }
    return {"Channels": closed_object("Addresses of a user, by channel.", email=email, apprise=apprise)}
