"""JSON Schemas (2020-12) of requests and responses, for `GET /openapi.json`; limits are those of the configuration.

A request schema allows what the engine accepts, and nothing else. Rules that JSON Schema cannot state are in the descriptions: times
relative to now, limits in bytes, a `ttl` longer than the window, quiet hours that would end when they begin, the syntax of templates. And
integers are written without a fraction: `1.0` is one for JSON Schema and is rejected here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from engine.config import Config
from engine.core.model.constants import PRIORITIES, SEQ_MAX, TS_MS_MAX
from engine.core.model.message import TIMER_EFFECT
from engine.core.policy.profile import DAYS, LEVEL_CHARS_MAX
from engine.core.policy.quiet_hours import QUIET_MAX

Schema = dict[str, Any]

_ANY: Schema = {"description": "Any JSON."}
_TIME_MS: Schema = {"type": "integer", "minimum": 0, "maximum": TS_MS_MAX, "description": "Milliseconds since the epoch."}
_SEQ: Schema = {"type": "integer", "minimum": 0, "maximum": SEQ_MAX, "description": "Sequence number within the user's mailbox."}
_EPOCH_ON: Schema = {"type": "string", "format": "date-time", "pattern": r"^(19[7-9][0-9]|[2-9][0-9]{3})-"}  # not before 1970
_NO_CONTROLS = r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]+$"
_EVENT_TYPE = r"[A-Za-z0-9_/:-]+(\.[A-Za-z0-9_/:-]+)*"
_CLOCK: Schema = {"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"}


def ref(name: str) -> Schema:
    """A reference to one of `schemas`."""
    return {"$ref": f"#/components/schemas/{name}"}


_DURABILITY: Final[Schema] = {
    "enum": ["everysec", "os", "memory", "evictable", "unknown"],
    "description": 'Only where storage keeps less of accepted messages than promised (`redis_durability = "reported"`): what it keeps.',
}


def schemas(config: Config, categories: Sequence[str]) -> dict[str, Schema]:
    """All named schemas. `categories`: the names of those that are defined."""
    return {
        "Notification": _notification(config, categories),
        "CloudEvent": _cloud_event(config, categories),
        "PublishAnswer": _object(
            "What became of each item, in order; one result per user for `users`.",
            required=("accepted", "results"),
            accepted={"type": "integer", "description": "How many were accepted, scheduled or merged."},
            results={"type": "array", "items": ref("Result")},
            durability=_DURABILITY,
        ),
        "Result": _object(
            "What became of one item: for one user, or for a topic or everyone (each mailbox gives a broadcast a `seq` of its own).",
            required=("id", "status"),
            id={"type": "string"},
            user={"type": "string"},
            status={"enum": ["accepted", "scheduled", "merged", "duplicate", "suppressed", "conflict", "unavailable", "overloaded"]},
            seq=_SEQ,
            scheduled_id={"type": "string"},
            scheduled_at=_TIME_MS,
            reason={"type": "string"},
            topic={"type": "string"},
            broadcast={"const": True},
        ),
        "Subscriptions": _object(
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
        "Profile": _profile(config),
        "Signal": _closed(
            "Something that only counts.",
            required=("name",),
            name=printable(config),
            amount={"type": "integer", "minimum": 1, "maximum": 1_000_000_000, "default": 1},
        ),
        "SignalsAnswer": _object(
            "How many signals were counted, and dropped for want of room.",
            required=("counted", "dropped"),
            counted={"type": "integer"},
            dropped={"type": "integer"},
            quota={"type": "string", "description": "Where some were dropped: the limit, by the name of its setting."},
        ),
        "SignalSums": _object(
            "Sums by name.", required=("signals",), signals={"type": "object", "additionalProperties": {"type": "integer"}}
        ),
        "ExplainAnswer": _object(
            "What would become of each item, in order; one result per user for `users`.",
            required=("results",),
            results={
                "type": "array",
                "items": _object(
                    "Of one user, or of a topic or everyone.",
                    required=("decision", "reasons"),
                    user={"type": "string"},
                    topic={"type": "string"},
                    broadcast={"const": True},
                    decision={"enum": ["deliver", "defer", "digest", "merge", "suppress", "duplicate", "conflict"]},
                    reasons={
                        "type": "array",
                        "items": _object(
                            "A word for programs, a sentence for people.",
                            required=("code", "detail"),
                            code={"type": "string"},
                            detail={"type": "string"},
                        ),
                    },
                    until={**_TIME_MS, "description": "When it would be delivered, where that is not now; ms since the epoch."},
                    seq={**_SEQ, "description": "Of a duplicate's first."},
                ),
            },
        ),
        "Timeline": _object(
            "What is still known of a message.",
            required=("id", "state", "timeline"),
            id={"type": "string"},
            seq=_SEQ,
            state={
                "enum": ["scheduled", "merged", "suppressed", "deferred", "digested", "pending", "sent", "acknowledged", "gone", "refused"]
            },
            timeline={
                "type": "array",
                "items": _object(
                    "One thing that happened to it, in their order.",
                    required=("event",),
                    at={**_TIME_MS, "description": "Milliseconds since the epoch; left out where it is not known any more."},
                    event={"type": "string"},
                    reason={"type": "string"},
                    until=_TIME_MS,
                ),
            },
        ),
        "Schedule": {
            "type": "object",
            "description": "When to deliver instead.",
            "properties": _when(config),
            "oneOf": [{"required": ["delay"]}, {"required": ["at"]}],
            "additionalProperties": False,
        },
        "Scheduled": _object(
            "A notification that waits for its time.",
            required=("scheduled_id", "scheduled_at"),
            scheduled_id={"type": "string"},
            scheduled_at=_TIME_MS,
            created_at=_TIME_MS,
            user={"type": "string"},
            topic={"type": "string"},
            broadcast={"const": True},
            action={"type": "string", "description": "Of a rule with `do`: what it calls in place of delivering the notification."},
            notification={"type": "object", "description": "Its own members: id, type, priority, ts, data and what else was given."},
        ),
        "ScheduledList": _object(
            "Soonest first.",
            required=("scheduled",),
            scheduled={"type": "array", "items": ref("Scheduled"), "maxItems": config.list_timers_max},
        ),
        "Cancelled": _object(
            "It will not be delivered.", required=("scheduled_id", "status"), scheduled_id={"type": "string"}, status={"const": "cancelled"}
        ),
        "Event": _closed(
            "Something that happened to or by a user.",
            required=("type", "user"),
            type=_event_type(config),
            user=user_name(config),
            id=printable(config, "Idempotency key."),
            actor=_around(config),
            target=_around(config),
            context=_around(config),
            ts=_TIME_MS,
            data=_data(config),
        ),
        "EventAnswer": _object(
            "What the rules made of an event.",
            required=("matched", "results", "scheduled", "cancelled"),
            matched={"type": "array", "items": {"type": "string"}, "description": "Names of the rules."},
            results={"type": "array", "items": ref("Result")},
            scheduled={"type": "array", "items": {"type": "string"}, "description": "Scheduled ids."},
            cancelled={"type": "integer", "description": "Scheduled notifications that the event ended."},
            durability=_DURABILITY,
        ),
        "CancelledAll": _object(
            "None of them will be delivered.", required=("cancelled",), cancelled={"type": "integer", "description": "How many they were."}
        ),
        "Message": _message(),
        "PollAnswer": _object(
            "What is pending, in order. Presenting `last_event_id` in the next request acknowledges all of it.",
            required=("messages", "last_event_id", "resumed"),
            messages={"type": "array", "items": ref("Message")},
            last_event_id={"type": "string", "description": "The cursor for the next request."},
            resumed={"enum": ["new", "ok", "gap"], "description": "`gap`: the cursor given was not one of this mailbox."},
        ),
        "Acknowledgement": {
            "type": "object",
            "description": "`seq` acknowledges everything up to it, `ids` just these messages.",
            "properties": {
                "seq": _SEQ,
                "ids": {"type": "array", "items": printable(config), "maxItems": config.items_max},
                "ts": _TIME_MS,
            },
            "anyOf": [{"required": ["seq"]}, {"required": ["ids"], "properties": {"ids": {"minItems": 1}}}],
            "additionalProperties": False,
        },
        "Acknowledged": _object("Done.", required=("acknowledged",), acknowledged={"const": True}),
        "Revocation": _revocation(config),
        "Revoked": _object(
            "What is revoked, on every edge within a second.",
            required=("revoked", "until"),
            revoked={"enum": ["token", "jti", "user"]},
            before=_TIME_MS,
            until=_TIME_MS | {"description": "When the last of these tokens has expired by itself, milliseconds since the epoch."},
        ),
        "DeadLetterPage": _object(
            "Dead letters of a tenant, and how many there are.",
            required=("tenant", "total", "dead_letters"),
            tenant={"type": "string"},
            total={"type": "integer", "minimum": 0},
            dead_letters={"type": "array", "items": ref("DeadLetterSummary"), "maxItems": config.dead_letters_page_max},
            after=letter_id("Where the next page begins; left out when there is none."),
        ),
        "DeadLetterSummary": _dead_letter("A message that a client refused, or whose action was given up."),
        "DeadLetter": _dead_letter(
            "A message that a client refused, or whose action was given up, with its members.",
            notification={"type": "object", "description": "The message as clients were sent it, without `seq`, `event_id` and `attempt`."},
        ),
        "DeadLetterChoice": _closed(
            "Some dead letters.",
            required=("letters",),
            letters={"type": "array", "items": letter_id("Its `letter`."), "minItems": 1, "maxItems": config.dead_letters_page_max},
        ),
        "Redriven": _object(
            "What became of each dead letter, oldest first.",
            required=("results",),
            results={
                "type": "array",
                "items": _object(
                    "Of one. It is removed with all but `suppressed` and `unreadable`.",
                    required=("letter", "status"),
                    letter={"type": "string"},
                    status={"enum": ["accepted", "scheduled", "merged", "duplicate", "suppressed", "gone", "unreadable"]},
                    id={"type": "string", "description": "Under which it is published."},
                    user={"type": "string"},
                    seq=_SEQ,
                    scheduled_id={"type": "string"},
                    scheduled_at=_TIME_MS,
                    reason={"type": "string"},
                ),
            },
        ),
        "Dropped": _object("How many there were.", required=("dropped",), dropped={"type": "integer", "minimum": 0}),
        "Presence": _object(
            "Whether the user is online: connected, or suspect since its last connection ended abnormally.",
            required=("online", "state", "seq"),
            online={"type": "boolean"},
            state={"enum": ["connected", "suspect", "offline"]},
            seq={**_SEQ, "title": "newest"},
        ),
        "Drain": _object(
            "An edge that leaves its clients to the others.",
            required=("edge", "connections"),
            edge={"type": "string"},
            connections={"type": "integer", "minimum": 0, "title": "when it began"},
        ),
        "Numbers": {
            "type": "object",
            "description": "How many actors there are to be; a number that is left out stays as it is.",
            "properties": {
                "shards": {"type": "integer", "minimum": 1, "maximum": 1024},
                "schedulers": {"type": "integer", "minimum": 1, "maximum": 16},
                "edges": {"type": "integer", "minimum": 1, "maximum": 64},
            },
            "minProperties": 1,
            "additionalProperties": False,
        },
        "Scaling": _scaling(),
        "Health": _object("The state in a word.", required=("status",), status={"type": "string"}),
        "Readiness": _object(
            "The state in a word.",
            required=("status", "quarantined", "degraded"),
            status={"type": "string"},
            degraded={
                "type": "array",
                "items": {"type": "string"},
                "description": "Parts of this edge that do less than they should, such as `rules`; `/v1/status` has the reasons.",
            },
            quarantined={
                "type": ["integer", "null"],
                "description": "Stored records that could not be read; null when that is not known now.",
            },
            durability=_DURABILITY,
        ),
        "Status": _status(),
        "TenantStatus": _tenant_status(),
        "Problem": _problem(),
    }


def _revocation(config: Config) -> Schema:
    time = {"type": "string", "format": "date-time"}
    return {
        "type": "object",
        "description": "One token, itself or by its claim `jti`, or the tokens of a user that were issued (`iat`) before a time.",
        "properties": {
            "token": {"type": "string", "minLength": 1},
            "jti": printable(config),
            "exp": {"type": "integer", "minimum": 0, "description": "The token's `exp`, where it is known: kept no longer than that."},
            "user": user_name(config),
            "before": {"oneOf": [_TIME_MS, time], "description": "Now, when left out; at most 300 s ahead."},
        },
        "oneOf": [{"required": ["token"]}, {"required": ["jti"]}, {"required": ["user"]}],
        "dependentRequired": {"exp": ["jti"], "before": ["user"]},
        "additionalProperties": False,
    }


def _object(description: str, *, required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {"type": "object", "description": description, "properties": properties, "required": list(required)}


def _closed(description: str, *, required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """An object in which other members are an error."""
    return _object(description, required=required, **properties) | {"additionalProperties": False}


def user_name(config: Config, description: str = "Text without control characters.") -> Schema:
    """The name of a user."""
    return {
        "type": "string",
        "minLength": 1,
        "maxLength": config.id_chars_max,
        "pattern": _NO_CONTROLS,
        "description": description,
    }


def printable(config: Config, description: str = "Printable text.") -> Schema:
    """An id or another name. Its format stands for what no regular expression of JSON Schema says: no invisible characters."""
    return user_name(config, description) | {"format": "printable"}


def topic_name(config: Config, description: str = "Printable text without spaces and `*`.") -> Schema:
    """The name of a topic."""
    return printable(config, description) | {"pattern": r"^[^\s*\u0000-\u001f\u007f-\u009f\u2028\u2029]+$", "format": "topic"}


def items_of(config: Config, schema: Schema) -> Schema:
    """An array of items."""
    return {"type": "array", "items": schema, "minItems": 1, "maxItems": config.items_max}


def letter_id(description: str) -> Schema:
    """The id of a dead letter."""
    return {"type": "string", "pattern": "^[0-9]{1,15}-[0-9]{1,10}$", "description": description}


def _dead_letter(description: str, **more: Schema) -> Schema:
    return _object(
        description,
        required=("letter", "at", "user", "id", "seq", "type", "priority", "reason", "attempts", *more),
        letter=letter_id("Its own id."),
        at={**_TIME_MS, "description": "When it was refused, ms since the epoch."},
        user={"type": "string"},
        id={"type": "string", "description": "Of the message."},
        seq=_SEQ,
        type={"type": "string"},
        priority={"enum": list(PRIORITIES)},
        reason={"type": "string", "description": "What the client gave."},
        attempts={"type": "integer", "minimum": 0, "description": "How often it had been sent before."},
        action={
            "type": "string",
            "description": "Of an action that was given up: what was to be called in place of delivering the message.",
        },
        **more,
    )


def _around(config: Config) -> Schema:
    return {**_ANY, "description": f"Any JSON of at most {config.context_bytes_max} bytes."}


def _data(config: Config) -> Schema:
    return {**_ANY, "description": f"Any JSON of at most {config.data_bytes_max} bytes."}


def _when(config: Config) -> dict[str, Schema]:
    return {
        "delay": {
            "type": "number",
            "minimum": 0,
            "maximum": config.delay_s_max,
            "description": "Deliver this many seconds later; a fraction is allowed, 0 is now.",
        },
        "at": {
            "description": "Deliver at this time: milliseconds since the epoch, or RFC 3339 with an offset. A time in the past is now;"
            f" at most {config.delay_s_max} seconds ahead.",
            "oneOf": [{"type": "integer", "minimum": 0}, _EPOCH_ON],
        },
    }


def _options(config: Config, categories: Sequence[str]) -> dict[str, Schema]:
    """The fields a notification and a CloudEvent have in common."""
    return {
        "priority": {"enum": list(PRIORITIES), "default": "normal"},
        **_when(config),
        "ttl": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": config.ttl_s_max,
            "default": config.ttl_s_default,
            "description": "Seconds after which it is not delivered any more; they count from when it is due.",
        },
        "retain": {"type": "boolean", "default": True, "description": "`false`: only for whoever is connected now."},
        "url": {
            "type": "string",
            "maxLength": config.context_bytes_max,
            "pattern": r"^([Hh][Tt][Tt][Pp][Ss]?://[^\s\u0000-\u0020\u007f/?#\\]|/(?!/))[^\s\u0000-\u0020\u007f\\]*$",
            "description": "The link a client opens: an http(s) URL, or a path on the site of the page that shows the message; at most"
            f" {config.context_bytes_max} bytes.",
        },
        "category": {
            "enum": list(categories),
            "description": "Whose limits it counts against: one that the rules define, or `touch`. For users only.",
        },
    }


def _event_type(config: Config) -> Schema:
    return user_name(config, "Words joined by dots, `post.liked`.") | {"pattern": f"^{_EVENT_TYPE}$"}


def _profile(config: Config) -> Schema:
    def names(item: Schema) -> Schema:
        return {"type": "array", "items": item, "maxItems": config.profile_entries_max}

    pattern = user_name(config, "An event type such as `post.liked`, or the beginning of some: `post.*`.")
    types = names(pattern | {"pattern": rf"^{_EVENT_TYPE}(\.\*)?$"})
    quiet = _closed(
        "From this local time until another one, of the next day when it is earlier; on the days on which it begins.",
        required=("from", "to"),
        to=_CLOCK,
        days={"type": "array", "items": {"enum": list(DAYS)}},
        **{"from": _CLOCK},
    )
    targets = names(printable(config, "A target: a text, the `id` of an object, or `kind:id`."))
    return _closed(
        "What a user wants; what is left out is nobody's in particular.",
        zone={"type": "string", "format": "time-zone", "minLength": 1, "description": "IANA time zone.", "default": "UTC"},
        level={"type": "string", "pattern": "^([a-z0-9][a-z0-9_-]*)?$", "maxLength": LEVEL_CHARS_MAX, "description": "What rules look at."},
        quiet={"type": "array", "items": quiet, "maxItems": QUIET_MAX, "description": "Quiet hours: what comes then waits until they end."},
        mute=_closed("Not to be told at all.", types=types, targets=targets),
        digest=_closed("To be told together instead of one by one.", types=types),
    )


def _notification(config: Config, categories: Sequence[str]) -> Schema:
    around = _around(config)
    return {
        "type": "object",
        "properties": {
            "type": _event_type(config),
            "user": user_name(config, "Whom to notify."),
            "collapse": {
                "type": "object",
                "description": "With a `window`, messages of a `key` become one notification when it ends. Without: for a user who is"
                " behind, the newest message of a `key` stands for the older ones that nobody was sent.",
                "properties": {
                    "key": printable(config),
                    "window": {
                        "type": "number",
                        "minimum": 0,
                        "maximum": config.collapse_window_s_max,
                        "description": "Seconds from the first message of the key; `ttl` must be longer. `data` has at most"
                        f" {config.collapse_data_bytes_max} bytes then.",
                    },
                    "leading": {
                        "type": "boolean",
                        "description": "Deliver the first message at once; the summary replaces it. Needs a window.",
                    },
                    "text": {
                        "type": "string",
                        "maxLength": config.collapse_text_chars_max,
                        "description": "Template of the summary's `text`, `{count} people liked {target}`. Needs a window.",
                    },
                },
                "required": ["key"],
                "if": {"properties": {"window": {"exclusiveMinimum": 0}}, "required": ["window"]},
                "else": {"properties": {"leading": {"const": False}, "text": False}},
                "additionalProperties": False,
            },
            "users": items_of(config, user_name(config)) | {"description": "Several at once, all under the same id."},
            "topic": topic_name(config, "Whoever is subscribed to it, or a member by token. Low priority unless given."),
            "broadcast": {
                "type": "boolean",
                "description": "Everyone: who is connected, and who connects before it expires. Low priority unless given.",
            },
            "id": printable(
                config, "Idempotency key, kept 24 h per user: a repeat gets the first answer and delivers nothing. Made when absent."
            )
            | {"not": {"pattern": f"^{TIMER_EFFECT}"}},
            "data": _data(config),
            "actor": around,
            "target": around,
            "context": around,
            "ts": {**_TIME_MS, "description": "When it happened, milliseconds since the epoch; now when absent."},
            "unless_active": {
                "type": "boolean",
                "default": False,
                "description": "Not when the user has been active since now, once it is delivered. For users only.",
            },
            **_options(config, categories),
        },
        "required": ["type"],
        "oneOf": [{"required": ["user"]}, {"required": ["users"]}, _to_many("topic"), _to_many("broadcast", const=True)],
        "not": {"required": ["delay", "at"]},
        "additionalProperties": False,
    }


def _to_many(recipient: str, **value: Any) -> Schema:
    """A topic, or everyone: without the fields that are for users only."""
    others = {"collapse": False, "category": False, "unless_active": {"const": False}}
    return {"required": [recipient], "properties": {**others, recipient: value or True}}


def _cloud_event(config: Config, categories: Sequence[str]) -> Schema:
    return {
        "type": "object",
        "description": "A CloudEvents 1.0 event; further attributes are ignored. `source` and `id` become `context`.",
        "properties": {
            "specversion": {"const": "1.0"},
            "id": {
                "type": "string",
                "minLength": 1,
                "maxLength": config.event_id_chars_max,
                "pattern": _NO_CONTROLS,
                "description": "With `source` the idempotency key: the message's id is `ce:` and a hash of both.",
            },
            "source": {"type": "string", "format": "uri-reference", "minLength": 1, "maxLength": config.event_id_chars_max},
            "type": _event_type(config),
            "subject": user_name(config, "Whom to notify."),
            "time": _EPOCH_ON,
            "data": _data(config),
            "data_base64": False,
            **_options(config, categories),
        },
        "not": {"required": ["delay", "at"]},
        "required": ["specversion", "id", "source", "type", "subject"],
    }


def _message() -> Schema:
    return _object(
        "A message as every transport delivers it.",
        required=("seq", "id", "event_id", "type", "priority", "ts", "attempt", "data"),
        seq=_SEQ,
        id={"type": "string", "description": "Drop what has the id of something handled before."},
        event_id={"type": "string", "description": "The cursor after this message: `<epoch>-<seq>`."},
        type={"type": "string"},
        priority={"enum": list(PRIORITIES)},
        ts=_TIME_MS,
        attempt={"type": "integer", "minimum": 1, "description": "How often it has been sent on this connection."},
        actor=_ANY,
        target=_ANY,
        context=_ANY,
        url={"type": "string", "description": "What the client opens: an http(s) URL, or a path on its own site."},
        count={"type": "integer", "description": "How many were merged into it."},
        data=_ANY,
    )


def _status() -> Schema:
    row = {"type": "object", "properties": {"index": {"type": "integer"}, "alive": {"type": "boolean"}}}
    return _object(
        "A row per actor, and totals.",
        required=("version", "shards", "edges", "schedulers", "totals"),
        version={"type": "string"},
        ready={"type": "boolean"},
        shards={"type": "array", "items": row},
        edges={"type": "array", "items": row},
        schedulers={"type": "array", "items": row},
        controller={"type": "object"},
        redis={"type": "object"},
        scaling=_scaling(),
        totals={"type": "object"},
    )


def _scaling() -> Schema:
    counts = {
        "type": "object",
        "properties": {role: {"type": "integer", "minimum": 0} for role in ("shards", "schedulers", "edges")},
    }
    names = {"type": "array", "items": {"type": "string"}}
    return _object(
        "How many actors are wanted, how many there are, and what is under way.",
        required=(),
        settled={"type": "boolean", "title": "everything is as wanted"},
        wanted=counts,
        by={"type": "string", "title": "who wanted it"},
        wanted_at_ms={"type": "integer"},
        have=counts,
        sharing={"enum": ["", "even", "load"], "title": "what moving slots is to reach"},
        slots_version={"type": "integer"},
        slots_left={"type": "integer", "title": "to be moved"},
        slots_moved={"type": "integer", "title": "since the controller started"},
        moves={"type": "array", "items": {"type": "object"}},
        joining=names,
        leaving=names,
        upgrading={**names, "title": "actors whose processes an upgrade has still to replace"},
        draining={**names, "title": "actors on nodes that are to go"},
        autoscale={"enum": ["off", "dry run", "on"]},
        decisions={"type": "array", "items": {"type": "object"}, "title": "of the autoscaler, the last first"},
    )


def _tenant_status() -> Schema:
    return _object(
        "Figures of one tenant.",
        required=("tenant", "connections", "users", "stored_bytes", "topics", "signal_names", "quotas"),
        tenant={"type": "string"},
        connections={"type": "integer", "minimum": 0, "title": "open at the edges that answer"},
        users={"type": "integer", "minimum": 0, "title": "in storage"},
        stored_bytes={"type": "integer", "minimum": 0, "title": "of their mailboxes and pending messages, as of the last checkpoint"},
        topics={"type": "integer", "minimum": 0, "title": "different ones that users are subscribed to"},
        signal_names={"type": "integer", "minimum": 0, "title": "names of counter signals"},
        quotas={"type": "object", "additionalProperties": {"type": "integer"}, "description": "Those in force, by their settings."},
    )


def _problem() -> Schema:
    error = _object(
        "One bad field.",
        required=("detail",),
        index={"type": "integer", "description": "Which item of the request, from 0."},
        path={"type": "string", "description": "JSON path of the field: `$.priority`, in an array `$[3].priority`."},
        detail={"type": "string"},
    )
    return _object(
        "Problem details (RFC 9457).",
        required=("type", "title", "status", "detail"),
        type={"type": "string", "format": "uri-reference"},
        title={"type": "string"},
        status={"type": "integer"},
        detail={"type": "string"},
        errors={"type": "array", "items": error},
        results={"type": "array", "items": ref("Result"), "description": "Of 409, 429 and 503 on publishing: each item's outcome."},
        quota={"type": "string", "description": "Of 429, where the tenant has used up a quota: the name of its setting."},
        failing={"type": "array", "items": {"type": "string"}, "description": "Of `/readyz`: what does not answer."},
    )
