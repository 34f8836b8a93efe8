"""The addresses of users in other channels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Final

from engine.config import Config
from engine.features.policy.description import PAGE
from engine.features.reach.caught_mails import MAILS_MAX
from engine.features.reach.core.addresses import (
    AUTH_PATTERN,
    BROWSERS_MAX,
    EMAIL_CHARS_MAX,
    EMAIL_PATTERN,
    ENDPOINT_CHARS_MAX,
    URL_CHARS_MAX,
    URLS_MAX,
)
from engine.features.reach.own_channels import PATH
from engine.http.description.json_schema import TIME_MS, Schema, answer_of, closed_object, ref, rows
from engine.http.description.operation import TENANT, Part, json_of, operation, parameter, user_in_path

_TEXT: Final[Schema] = {"type": "string"}

by_client = partial(operation, "contact policy", "connect")
by_operator = partial(operation, "operating", "operator")
by_publisher = partial(operation, "contact policy", "publish")
by_anyone = partial(operation, "contact policy", None)


def paths(config: Config) -> Part:
    """See `Description`."""
    answer = {200: ("The addresses as they are kept.", json_of("Channels"))}
    return {
        "/v1/users/{user}/channels": [user_in_path(config)],
        "GET /v1/users/{user}/channels": by_client(
            "getChannels",
            "The addresses of a user. The user's own token may ask, or one with the scope `publish` or `admin`.",
            answer,
            (404,),
            parameters=(TENANT,),
        ),
        "PUT /v1/users/{user}/channels": by_publisher(
            "setChannels",
            "Keep these addresses, in place of those that were kept; durable with the answer. Without `push` the browsers stay. The "
            "scope `admin` will do as well.",
            answer,
            (404,),
            body=json_of("Channels"),
        ),
        "GET /v1/caught-mails": by_operator(
            "listCaughtMails",
            "The newest mails, where `smtp_url` is `catch://`: none of them was sent.",
            {200: ("As of now.", json_of("CaughtMails"))},
            (404,),
        ),
        "GET /v1/channels": by_client("getOwnChannels", "The addresses of the bearer.", answer, (400,)),
        "PUT /v1/channels/email": by_client(
            "setOwnEmail",
            "Send a mail to this address, whose link makes it the bearer's. Until then it is not used.",
            {
                200: ("It is the bearer's already.", json_of("EmailWanted")),
                202: ("The mail server took the mail.", json_of("ConfirmationAsked")),
            },
            (404,),
            body=json_of("EmailWanted"),
        ),
        "DELETE /v1/channels/email": by_client("removeOwnEmail", "Forget the address; durable.", answer, (400,)),
        "GET /v1/channels/push": by_client(
            "getPushKey",
            "The key of the engine, with which a browser subscribes; 404 where pushes are not installed.",
            {200: ("The key, base64url.", json_of("PushKey"))},
            (404,),
        ),
        "PUT /v1/channels/push": by_client(
            "addBrowser",
            f"Push to this browser of the user, too; durable with the answer. The oldest of more than {BROWSERS_MAX} is forgotten.",
            {204: ("It is kept.", {})},
            body=json_of("PushSubscription"),
        ),
        "/v1/channels/push/{id}": [
            parameter(
                "id",
                "path",
                "The first 32 hexadecimal digits of the SHA-256 of the endpoint.",
                {"type": "string", "pattern": "^[0-9a-f]{32}$"},
                required=True,
            )
        ],
        "DELETE /v1/channels/push/{id}": by_client(
            "removeBrowser", "Push to this browser no more; idempotent.", {204: ("It is not kept.", {})}, (404,)
        ),
        PATH: [parameter("token", "query", "Of the link.", required=True)],
        f"GET {PATH}": by_anyone(
            "askConfirmation",
            "A page with a button; changes nothing.",
            {200: ("The page.", PAGE), 404: ("The link is not valid, or too old.", PAGE), 503: ("Storage does not answer.", PAGE)},
        ),
        f"POST {PATH}": by_anyone(
            "confirmAddress",
            "Use the address of the link; durable with the answer. Repeats change nothing.",
            {200: ("Done.", PAGE), 404: ("The link is not valid, or too old.", PAGE), 503: ("Storage does not answer.", PAGE)},
            (408, 413),
        ),
    }


def schemas(config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """See `Description`."""
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
    scheme, hosts = "https?" if config.webhook_networks else "https", "|".join(map(_host, config.push_hosts))
    keys = closed_object(
        "The keys of the browser, base64url.",
        required=("p256dh", "auth"),
        p256dh={"type": "string", "format": "p256-point"},
        auth={"type": "string", "pattern": AUTH_PATTERN},
    )
    browser = closed_object(
        "As `PushSubscription.toJSON()` of a browser has it.",
        required=("endpoint", "keys"),
        endpoint={
            "description": "URL of a push service that the setting `push_hosts` names.",
            "type": "string",
            "format": "push-endpoint",
            "pattern": f'^{scheme}://({hosts})(:[1-9][0-9]{{0,3}})?(/[!"$-~]*)?$',
            "maxLength": ENDPOINT_CHARS_MAX,
        },
        keys=keys,
        expirationTime={"description": "Milliseconds since the epoch.", "type": ["number", "null"]},
    )
    push: Schema = {
        "description": "Browsers, the newest last.",
        "type": "array",
        "items": ref("PushSubscription"),
        "maxItems": BROWSERS_MAX,
    }
    given: Schema = {"type": "string", "maxLength": EMAIL_CHARS_MAX, "pattern": EMAIL_PATTERN}
    return {
        "Channels": closed_object("Addresses of a user, by channel.", email=email, apprise=apprise, push=push),
        "PushSubscription": browser,
        "PushKey": closed_object("The key of the engine.", required=("key",), key={"type": "string"}),
        "CaughtMails": answer_of(
            "Mails that were not sent, the newest first.",
            mails=rows(at=TIME_MS, to=_TEXT, subject=_TEXT, text=_TEXT) | {"maxItems": MAILS_MAX},
        ),
        "EmailWanted": closed_object("A mail address.", required=("email",), email=given),
        "ConfirmationAsked": closed_object(
            "The address, and until when its link is good.", required=("email", "confirm_until"), email=given, confirm_until=TIME_MS
        ),
    }


def _host(pattern: str) -> str:
    """The hosts that a pattern of `push_hosts` allows, as a regular expression."""
    return f"[A-Za-z0-9][A-Za-z0-9-]{{0,60}}{re.escape(pattern[1:])}" if pattern.startswith("*.") else re.escape(pattern)
