"""The addresses of users in other channels."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.config import Config
from engine.features.policy.description import PAGE
from engine.features.reach.core.addresses import EMAIL_CHARS_MAX, EMAIL_PATTERN, URL_CHARS_MAX, URLS_MAX
from engine.features.reach.own_channels import PATH
from engine.http.description.json_schema import TIME_MS, Schema, closed_object
from engine.http.description.operation import TENANT, Part, json_of, operation, parameter, user_in_path


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
        "/v1/channels": {
            "get": operation("getOwnChannels", "contact policy", "The addresses of the bearer.", answer, (400, 429, 503), scope="connect"),
        },
        "/v1/channels/email": {
            "put": operation(
                "setOwnEmail",
                "contact policy",
                "Send a mail to this address, whose link makes it the bearer's. Until then it is not used.",
                {
                    200: ("It is the bearer's already.", json_of("EmailWanted")),
                    202: ("The mail server took the mail.", json_of("ConfirmationAsked")),
                },
                (400, 404, 408, 413, 422, 429, 503),
                scope="connect",
                body=json_of("EmailWanted"),
            ),
            "delete": operation(
                "removeOwnEmail", "contact policy", "Forget the address; durable.", answer, (400, 429, 503), scope="connect"
            ),
        },
        PATH: {
            "parameters": [parameter("token", "query", "Of the link.", required=True)],
            "get": operation(
                "askConfirmation",
                "contact policy",
                "A page with a button; changes nothing.",
                {200: ("The page.", PAGE), 404: ("The link is not valid, or too old.", PAGE), 503: ("Storage does not answer.", PAGE)},
                scope=None,
            ),
            "post": operation(
                "confirmAddress",
                "contact policy",
                "Use the address of the link; durable with the answer. Repeats change nothing.",
                {200: ("Done.", PAGE), 404: ("The link is not valid, or too old.", PAGE), 503: ("Storage does not answer.", PAGE)},
                (408, 413),
                scope=None,
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
    given: Schema = {"type": "string", "maxLength": EMAIL_CHARS_MAX, "pattern": EMAIL_PATTERN}
    return {
        "Channels": closed_object("Addresses of a user, by channel.", email=email, apprise=apprise),
        "EmailWanted": closed_object("A mail address.", required=("email",), email=given),
        "ConfirmationAsked": closed_object(
            "The address, and until when its link is good.", required=("email", "confirm_until"), email=given, confirm_until=TIME_MS
        ),
    }
