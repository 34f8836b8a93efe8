"""One user: its report, its export and its erasure (`engine.features.user_data.endpoints`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from engine.config import Config
from engine.features.user_data.user_reports import ROWS_MAX
from engine.http.description.json_schema import COUNT, SEQ, TIME_MS, Schema, answer_of, object_of, ref, rows
from engine.http.description.operation import TENANT, Part, json_of, operation, user_in_path

_TEXT: Final[Schema] = {"type": "string"}

CONNECTION: Final[dict[str, Schema]] = {
    "edge": _TEXT,
    "session": {**_TEXT, "description": "The `connection` of the welcome."},
    "device": _TEXT,
    "transport": {"enum": ["websocket", "sse", "poll"]},
    "since": TIME_MS,
    "sent": {**SEQ, "description": "The last number that sending has passed."},
    "unacknowledged": {**COUNT, "description": "Messages sent and not settled."},
    "rtt_ms": {**COUNT, "description": "The estimate of the time from a send to its ACK; 0 while there is none."},
    "exhausted": {**COUNT, "description": "Messages that used up their tries here: they wait for another connection."},
}
OLDEST: Final[Schema] = {**TIME_MS, "description": "When the oldest unacknowledged message was first sent."}
"""A connection, as reports and listings show it."""

by_admin = partial(operation, "operating", "admin")


def paths(config: Config) -> Part:
    """See `Description`."""
    user = user_in_path(config)
    return {
        "/v1/users/{user}": [user],
        "GET /v1/users/{user}": by_admin(
            "userReport",
            "Where a user is, what waits for it, and what was decided about it.",
            {200: ("As of now; empty for a user of whom nothing is known.", json_of("UserReport"))},
            (404,),
            parameters=(TENANT,),
        ),
        "DELETE /v1/users/{user}": operation(
            "contact policy",
            "admin",
            "eraseUser",
            "Erase a user: messages, timers, profile, subscriptions, timeline, entries in streams for other systems. Connections are "
            "closed with 4403. After a 503 repeat it: nothing of the user is left only with the 204.",
            {204: ("Nothing of the user is left.", {})},
            (404,),
        ),
        "/v1/users/{user}/export": [user],
        "GET /v1/users/{user}/export": by_admin(
            "exportUser",
            "Everything that is kept of a user. It is written while it is read: an answer that is cut off is no valid JSON.",
            {200: ("As of now, though no snapshot; empty for a user of whom nothing is known.", json_of("UserExport"))},
            (404,),
            parameters=(TENANT,),
        ),
    }


def schemas(_config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """See `Description`."""
    messages = rows(seq=SEQ, id=_TEXT, type=_TEXT, priority=_TEXT, ts=TIME_MS, expires=TIME_MS, count=COUNT, data={})
    return {
        "UserReport": answer_of(
            "A user: where it is, what waits for it, what was decided about it.",
            optional=("active_at",),
            tenant=_TEXT,
            user=_TEXT,
            presence={"enum": ["connected", "suspect", "offline"]},
            head={**SEQ, "description": "The newest number."},
            floor={**SEQ, "description": "Everything up to it is settled."},
            pending={**COUNT, "description": "Unsettled messages."},
            in_memory={**COUNT, "description": "Those of them that the shard has in memory."},
            connections=rows(optional=("oldest",), **CONNECTION, oldest=OLDEST),
            topics={"type": "array", "items": _TEXT},
            windows=rows(collapse=_TEXT, count=COUNT, closes_ms=TIME_MS),
            profile=ref("Profile"),
            events={"type": "object", "additionalProperties": TIME_MS, "description": "When events that rules refer to came last."},
            decisions=rows(optional=("until",), id=_TEXT, at=TIME_MS, event=_TEXT, reason=_TEXT, until=TIME_MS),
            messages={**messages, "maxItems": ROWS_MAX, "description": "The newest pending ones."},
            timers={"type": "array", "items": ref("Scheduled"), "maxItems": ROWS_MAX},
            active_at=TIME_MS,
        ),
        "UserExport": object_of(
            "The members of `UserReport` but `timers`, and everything that other places have of the user.",
            required=("tenant", "user", "at", "profile", "topics", "scheduled", "messages", "entries"),
            tenant=_TEXT,
            user=_TEXT,
            at={**TIME_MS, "description": "When it was begun, ms since the epoch."},
            profile=ref("Profile"),
            topics={"type": "array", "items": _TEXT},
            scheduled={"type": "array", "items": ref("Scheduled")},
            messages=_kept("Messages that are not acknowledged, as they are delivered, with `expires`."),
            inbox=_kept("Messages of the inbox with their marks, as `GET /v1/inbox` has them; archived ones last."),
            entries=_kept("Dead letters, session events, and actions that are not done, as `stream` says."),
            preferences=_kept("What the user has chosen, as `GET /v1/preferences` has it, without `available`."),
            channels=_kept("Addresses in other channels."),
            questions=_kept("Questions that the user was asked, with the answers."),
            sampled_events=_kept("Events of the sample for dry runs of rules that name the user."),
            acts=_kept("Acts of operators about the user, and the user's own, as `GET /v1/audit` has them. An erasure leaves them."),
            history=_kept("What has become of the user's messages; only with `history_url`."),
        ),
    }


def _kept(description: str) -> Schema:
    return {"type": "array", "items": {"type": "object"}, "description": description}
