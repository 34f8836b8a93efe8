"""One user, its report and its erasure, and the listings for operators beside the status (`engine.api.inspection`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from engine.config import Config, redis_urls
from engine.core.controller.load_points import LoadPoint
from engine.http.description.json_schema import COUNT, SEQ, TIME_MS, Schema, answer_of, ref
from engine.http.description.operation import TENANT, Part, json_of, operation, parameter, user_in_path

_TEXT: Final[Schema] = {"type": "string"}


def paths(config: Config) -> Part:
    """The paths, by name."""
    user = user_in_path(config)

    def listing(name: str, summary: str, schema: str) -> Part:
        return {"get": operation(name, "operating", summary, {200: ("As of now.", json_of(schema))}, (429, 503), scope="operator")}

    server = "|".join(str(number) for number in range(len(redis_urls(config.redis_url))))
    after = parameter(
        "after",
        "query",
        "The `after` of the page before.",
        {"type": "string", "pattern": f"^({server})-([0-9]{{1,19}}|1[0-7][0-9]{{18}})$"},
    )
    return {
        "/v1/load": listing("load", "The load of the last hour, a point every few seconds, the oldest first.", "LoadHistory"),
        "/v1/tenants": listing("listTenants", "What the largest tenants have in storage, and the quotas.", "TenantList"),
        "/v1/topics": {
            "get": operation(
                "listTopics",
                "operating",
                "The topics of a tenant with their numbers of subscribers. A page may have none, and be followed by others.",
                {200: ("Some of them.", json_of("TopicPage"))},
                (400, 429, 503),
                scope="admin",
                parameters=(TENANT, after),
            )
        },
        "/v1/quarantine": listing("quarantine", "Stored records that could not be read, the newest first.", "QuarantineList"),
        "/v1/slow-clients": listing("slowClients", "Connections whose clients do not acknowledge, the worst first.", "SlowClientList"),
        "/v1/users/{user}": {
            "parameters": [user],
            "get": operation(
                "userReport",
                "operating",
                "Where a user is, what waits for it, and what was decided about it.",
                {200: ("As of now; empty for a user of whom nothing is known.", json_of("UserReport"))},
                (400, 404, 429, 503),
                scope="admin",
                parameters=(TENANT,),
            ),
            "delete": operation(
                "eraseUser",
                "contact policy",
                "Erase a user: messages, timers, profile, subscriptions, timeline, entries in streams for other systems. Connections are "
                "closed with 4403. After a 503 repeat it: nothing of the user is left only with the 204.",
                {204: ("Nothing of the user is left.", {})},
                (404, 429, 503),
                scope="admin",
            ),
        },
    }


def schemas(config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """The schemas of their bodies, by name."""
    connection: dict[str, Schema] = {
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
    oldest: Schema = {**TIME_MS, "description": "When the oldest unacknowledged message was first sent."}
    messages = _rows(seq=SEQ, id=_TEXT, type=_TEXT, priority=_TEXT, ts=TIME_MS, expires=TIME_MS, count=COUNT, data={})
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
            connections=_rows(optional=("oldest",), **connection, oldest=oldest),
            topics={"type": "array", "items": _TEXT},
            windows=_rows(collapse=_TEXT, count=COUNT, closes_ms=TIME_MS),
            profile=ref("Profile"),
            events={"type": "object", "additionalProperties": TIME_MS, "description": "When events that rules refer to came last."},
            decisions=_rows(optional=("until",), id=_TEXT, at=TIME_MS, event=_TEXT, reason=_TEXT, until=TIME_MS),
            messages={**messages, "maxItems": config.user_report_rows_max, "description": "The newest pending ones."},
            timers={"type": "array", "items": ref("Scheduled"), "maxItems": config.user_report_rows_max},
            active_at=TIME_MS,
        ),
        "LoadHistory": answer_of(
            "The load of the last hour, the oldest point first.",
            every_ms=COUNT,
            points={"type": "array", "items": _load_point(), "maxItems": config.load_points_max},
        ),
        "TenantList": answer_of(
            "What the largest tenants have in storage, and the quotas in force.",
            tenants=_rows(tenant=_TEXT, users=COUNT, stored_bytes=COUNT, topics=COUNT, signal_names=COUNT),
            quotas={"type": "object", "additionalProperties": {"type": "integer"}},
        ),
        "TopicPage": answer_of(
            "Topics of a tenant. `after` begins the next page, and is absent at the end.",
            optional=("after",),
            tenant=_TEXT,
            total=COUNT,
            topics=_rows(topic=_TEXT, subscribers=COUNT),
            after=_TEXT,
        ),
        "QuarantineList": answer_of(
            "Stored records that could not be read.",
            total=COUNT,
            records=_rows(part=_TEXT, origin=_TEXT, at=TIME_MS, bytes=COUNT, beginning=_TEXT, key=_TEXT),
        ),
        "SlowClientList": answer_of(
            "Connections whose oldest unacknowledged message is older than `slow_ms`, and those with messages that used up their tries.",
            slow_ms=COUNT,
            clients=_rows(optional=("oldest",), tenant=_TEXT, user=_TEXT, behind=COUNT, **connection, oldest=oldest),
        ),
    }


def _load_point() -> Schema:
    numbers: dict[str, Schema] = {
        field.name: {"type": "number" if field.name.endswith(("_ms", "_pct")) else "integer", "minimum": 0}
        for field in msgspec.structs.fields(LoadPoint)
    }
    text = "The load of `over_ms` up to `at`; counts of that time, other figures as of its end. A figure that is 0 or unknown is left out."
    return answer_of(text, optional=tuple(numbers.keys() - {"at", "over_ms"}), **numbers)


def _rows(*, optional: tuple[str, ...] = (), **members: Schema) -> Schema:
    return {"type": "array", "items": answer_of("A row.", optional=optional, **members)}
