"""The description of profiles, preferences, unsubscribe links and explanations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from engine.config import Config
from engine.core.model.category import CHOICES
from engine.core.model.step import CHANNELS, DIGEST_CHANNEL, PROGRESS
from engine.core.policy.profile import DAYS
from engine.features.policy.core.local_times import QUIET_MAX
from engine.features.policy.core.profile_json import LEVEL_CHARS_MAX, LOCALE_PATTERN
from engine.http.description.json_schema import (
    EVENT_TYPE,
    SEQ,
    TIME_MS,
    Schema,
    answer_of,
    closed_object,
    items_of,
    object_of,
    printable,
    ref,
    user_name,
)
from engine.http.description.operation import TENANT, Part, json_of, operation, parameter, user_in_path, whose

PAGE: Part = {"text/html": {"schema": {"type": "string"}}}

by_client = partial(operation, "contact policy", "connect")
by_publisher = partial(operation, "contact policy", "publish")
by_anyone = partial(operation, "contact policy", None)


def paths(config: Config) -> Part:
    """See `Description`."""
    user = user_in_path(config)
    answer = {200: ("The profile as it is kept.", json_of("Profile"))}
    return {
        "POST /v1/explain": by_publisher(
            "explain",
            "What would become of notifications now, and why. Changes nothing.",
            {200: ("One result for each user of each item.", json_of("ExplainAnswer"))},
            (415,),
            parameters=(TENANT,),
            body={"application/json": {"schema": {"oneOf": [ref("Notification"), items_of(config, ref("Notification"))]}}},
        ),
        "/v1/users/{user}/profile": [user],
        "GET /v1/users/{user}/profile": by_client(
            "getProfile",
            "What a user wants. The user's own token may ask, or one with the scope `publish` or `admin`.",
            answer,
            (404,),
            parameters=(TENANT,),
        ),
        "PUT /v1/users/{user}/profile": by_publisher(
            "setProfile",
            "Keep what a user wants, in place of what was kept; durable with the answer. The scope `admin` will do as well.",
            answer,
            (404,),
            body=json_of("Profile"),
        ),
        "DELETE /v1/users/{user}/profile": by_publisher(
            "forgetProfile", "Forget it: the user wants nothing in particular.", {204: ("Forgotten.", {})}, (404,)
        ),
        "GET /v1/preferences": by_client(
            "getPreferences",
            "What the user has chosen, and may choose: categories, types and targets, quiet hours, zone and language.",
            {200: ("The preferences.", json_of("Preferences"))},
            parameters=(whose(config),),
        ),
        "PATCH /v1/preferences": by_client(
            "changePreferences",
            "Change what the body names, and leave the rest: a merge patch (RFC 7396). Durable with the answer.",
            {200: ("The preferences as they are now.", json_of("Preferences"))},
            parameters=(whose(config),),
            body={media: {"schema": ref("PreferencesPatch")} for media in ("application/merge-patch+json", "application/json")},
        ),
        "POST /v1/unsubscribe-links": by_publisher(
            "makeUnsubscribeLinks",
            "Links with which users turn a category off without login, for the header `List-Unsubscribe` and the text of a mail.",
            {200: ("One for each user, in order; put the address of the engine before the path.", json_of("UnsubscribeLinks"))},
            body=json_of("UnsubscribeLinksWanted"),
        ),
        "/v1/unsubscribe": [parameter("token", "query", "Of the link.", required=True)],
        "GET /v1/unsubscribe": by_anyone(
            "askUnsubscribe",
            "A page with a button; changes nothing.",
            {200: ("The page.", PAGE), 404: ("The link is not valid, or too old.", PAGE), 409: ("It cannot be turned off.", PAGE)},
        ),
        "POST /v1/unsubscribe": by_anyone(
            "unsubscribeByLink",
            "Turn the category of the link off (RFC 8058), or with `again` back on; durable with the answer. Repeats change nothing.",
            {
                200: ("Done, with a button that undoes it.", PAGE),
                404: ("The link is not valid, or too old.", PAGE),
                409: ("It cannot be turned off.", PAGE),
                503: ("Storage does not answer; repeat after `Retry-After`.", PAGE),
            },
            (408, 413),
            body={
                "application/x-www-form-urlencoded": {
                    "schema": {
                        "type": "object",
                        "properties": {"List-Unsubscribe": {"const": "One-Click"}, "again": {"enum": list(CHOICES)}},
                    }
                }
            },
        ),
    }


def schemas(config: Config, categories: Sequence[str]) -> dict[str, Schema]:
    """See `Description`."""
    return {
        "ExplainAnswer": answer_of(
            "What would become of each item, in order; one result per user for `users`.",
            results={
                "type": "array",
                "items": object_of(
                    "Of one user, or of a topic or everyone.",
                    required=("decision", "reasons"),
                    user={"type": "string"},
                    topic={"type": "string"},
                    broadcast={"const": True},
                    decision={"enum": ["deliver", "defer", "digest", "inbox", "merge", "suppress", "duplicate", "conflict"]},
                    reasons={
                        "type": "array",
                        "items": answer_of(
                            "A word for programs, a sentence for people.", code={"type": "string"}, detail={"type": "string"}
                        ),
                    },
                    until={**TIME_MS, "description": "When it would be delivered, where that is not now; ms since the epoch."},
                    seq={**SEQ, "description": "Of a duplicate's first."},
                    steps={
                        "type": "array",
                        "items": object_of(
                            "By which channel the user is told, unless the message was dealt with by then.",
                            required=("channel", "at"),
                            channel={"enum": list(CHANNELS)},
                            at={**TIME_MS, "description": "When the step is due; ms since the epoch."},
                            to={"type": "string"},
                            unless={"enum": list(PROGRESS[1:])},
                            cap={"type": "integer", "description": "At most so many by the channel within `per`."},
                            per={"type": "integer", "description": "Milliseconds."},
                            unwanted={"type": "string", "description": "Why the user does not want it, as of now."},
                        ),
                    },
                ),
            },
        ),
        "Profile": _profile(config),
        "Preferences": _preferences(),
        "PreferencesPatch": _preferences_patch(config, categories),
        "UnsubscribeLinksWanted": closed_object(
            "For whom, and of which category. Exactly one of `user` and `users`.",
            required=("category",),
            category={"enum": list(categories)} if categories else {"type": "string"},
            user=user_name(config),
            users=items_of(config, user_name(config)),
        )
        | {"oneOf": [{"required": ["user"]}, {"required": ["users"]}]},
        "UnsubscribeLinks": answer_of(
            "Paths on the engine, which are secrets.",
            links={"type": "array", "items": answer_of("Of one user.", user={"type": "string"}, path={"type": "string"})},
            expires_at=TIME_MS,
        ),
    }


_CLOCK: Schema = {"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"}


def _profile(config: Config) -> Schema:
    def names(item: Schema) -> Schema:
        return {"type": "array", "items": item, "maxItems": config.profile_entries_max}

    types = names(_types_named(config))
    targets = names(printable(config, "A target: a text, the `id` of an object, or `kind:id`."))
    return closed_object(
        "What a user wants; what is left out is nobody's in particular.",
        required=(),
        **_times_and_language(),
        level={"type": "string", "pattern": "^([a-z0-9][a-z0-9_-]*)?$", "maxLength": LEVEL_CHARS_MAX, "description": "What rules look at."},
        mute=closed_object("Not to be told at all.", types=types, targets=targets),
        digest=closed_object("To be told together instead of one by one.", types=types),
        inbox=closed_object("To be put into the inbox, and not sent.", types=types),
        on=closed_object("To be told one by one, where a wider choice says otherwise.", types=types),
        categories=_choices(config, "By category. What is left out on a PUT leaves those that there are."),
    )


def _preferences() -> Schema:
    choice: Schema = {"enum": list(CHOICES)}
    by_channel: Schema = {"enum": ["on", "off", "digest"]}
    category = object_of(
        "A category of the rules file: what the user may choose, and what holds.",
        required=("may", "default", "choice"),
        title={"type": "string"},
        may={"type": "array", "items": choice},
        default=choice,
        choice=choice,
        channels={
            "type": "object",
            "additionalProperties": by_channel,
            "description": "Of its steps: how the user is told by them; `digest` by mail only.",
        },
    )
    return object_of(
        "What a user has chosen, and may choose.",
        required=(
            "user",
            "zone",
            "locale",
            "quiet",
            "categories",
            "types",
            "targets",
            "channels",
            "quiet_categories",
            "mail_digest",
            "available",
        ),
        user={"type": "string"},
        **_times_and_language(),
        categories={"type": "object", "additionalProperties": choice},
        types={"type": "object", "additionalProperties": choice},
        targets={"type": "object", "additionalProperties": {"const": "off"}},
        channels={"type": "object", "additionalProperties": by_channel, "description": "By `category/channel`."},
        quiet_categories={"type": "object", "additionalProperties": _times_and_language()["quiet"]},
        mail_digest={"anyOf": [_mail_digest(), {"type": "null"}]},
        available={"type": "object", "additionalProperties": category, "description": "Read only."},
    )


def _preferences_patch(config: Config, categories: Sequence[str]) -> Schema:
    plain = {name: {"anyOf": [schema, {"type": "null"}]} for name, schema in _times_and_language().items()}
    choices = (*CHOICES, None)
    maps = {
        "categories": _choices(config, "By category: one that the rules define, unless it is null.", (None,))
        | {"properties": {name: {"enum": list(choices)} for name in categories}},
        "types": _choices(config, "By event type, or beginning of some.", choices, _types_named(config)),
        "targets": _choices(config, "By target.", ("off", None)),
        "channels": _choices(
            config, "By `category/channel`; `*` stands for all other categories.", ("on", "off", None), _of_channels(categories)
        )
        | {"properties": {f"{name}/{DIGEST_CHANNEL}": {"enum": ["on", "off", "digest", None]} for name in ("*", *categories)}},
        "quiet_categories": _choices(config, "Quiet hours by category, in place of `quiet`.", (), {"enum": list(categories)})
        | {"additionalProperties": {"anyOf": [_times_and_language()["quiet"], {"type": "null"}]}},
    }
    plain["mail_digest"] = {"anyOf": [_mail_digest(), {"type": "null"}]}
    nullable = {name: schema | {"type": ["object", "null"]} for name, schema in maps.items()}
    return closed_object("Members to change; null removes a choice, or all of a member.", required=(), **plain, **nullable)


def _mail_digest() -> Schema:
    return closed_object(
        "A digest by mail: at this local time, on these days.",
        required=("at",),
        at=_CLOCK,
        days={"type": "array", "items": {"enum": list(DAYS)}},
    )


def _of_channels(categories: Sequence[str]) -> Schema:
    """The names of choices by channel."""
    return {"enum": [f"{category}/{channel}" for category in ("*", *categories) for channel in CHANNELS]}


def _types_named(config: Config) -> Schema:
    named = user_name(config, "An event type such as `post.liked`, or the beginning of some: `post.*`.")
    return named | {"pattern": rf"^{EVENT_TYPE}(\.\*)?$"}


def _times_and_language() -> dict[str, Schema]:
    quiet = closed_object(
        "From this local time until another one, of the next day when it is earlier; on the days on which it begins.",
        required=("from", "to"),
        to=_CLOCK,
        days={"type": "array", "items": {"enum": list(DAYS)}},
        **{"from": _CLOCK},
    )
    return {
        "zone": {"type": "string", "format": "time-zone", "minLength": 1, "description": "IANA time zone.", "default": "UTC"},
        "locale": {"type": "string", "pattern": LOCALE_PATTERN, "description": 'Language tag of BCP 47, such as `zh-CN`; "": none.'},
        "quiet": {
            "type": "array",
            "items": quiet,
            "maxItems": QUIET_MAX,
            "description": "Quiet hours: what comes then waits until they end. They leave at least a minute of the week.",
        },
    }


def _choices(config: Config, text: str, choices: Sequence[str | None] = CHOICES, names: Schema | None = None) -> Schema:
    return {
        "type": "object",
        "description": text,
        "propertyNames": names or printable(config),
        "additionalProperties": {"enum": list(choices)},
        "maxProperties": config.profile_entries_max,
    }
