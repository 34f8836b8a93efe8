"""`GET /v1/history`: what has become of messages, events and connections, from the database (`engine.features.history`).

The archivist answers; an edge has no database. While it does not answer, so do these requests: 503. Everything else goes on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access, limit_of
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.config import Config
from engine.core.model.constants import TS_MS_MAX
from engine.core.model.names import is_id
from engine.core.model.routing import split_key
from engine.core.wire.records import Step
from engine.features.history import description, figures
from engine.features.history.description import ROWS_MAX
from engine.features.history.timeline import timeline
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.http.problems import bad_request, not_found

_NAMES: Final = {
    "at_ms": "at",
    "user_id": "user",
    "message": "id",
    "until_ms": "until",
    "sent_ms": "sent",
    "client_ms": "client_ts",
}
"""Columns whose members have other names: those of the rest of the interface."""

_OMITTED: Final = ("id", "tenant")

QueryHistory = Callable[[Mapping[str, Any], int], Awaitable[list[dict[str, Any]]]]
"""(conditions, at most so many rows) -> rows, newest first, see `HistoryDatabase.query`. Raises Unavailable."""

_TIMELINE_MAX: Final = 200
"""Rows of one message that its timeline has, the newest: three for each device, and retries."""

_CURSOR_BYTES: Final = 16


class History:
    """The history, on one edge.

    Args:
        query: asks the archivist; None: there is no history.
    """

    def __init__(self, config: Config, query: QueryHistory | None) -> None:
        self._config = config
        self._query = query

    async def page(self, tenant: str, user: str | None, query: QueryParams) -> dict[str, Any]:
        """Some rows, newest first, as `GET /v1/history` answers them. `user`: that of the query.

        Raises:
            Problem: 400, or 404, there is no history.
            Unavailable: the archivist does not answer.
        """
        if self._query is None:
            raise not_found("this engine keeps no history: the setting history_url is empty")
        wanted, limit = self._conditions(query)
        of_user = {} if user is None else {"user": user}
        rows = await self._query({"tenant": tenant, **of_user, **wanted}, limit)
        page: dict[str, Any] = {"tenant": tenant, "history": [_members(row) for row in rows]}
        return {**page, "before": rows[-1]["id"].hex()} if len(rows) == limit else page

    def _conditions(self, query: QueryParams) -> tuple[dict[str, Any], int]:
        unknown = sorted(set(query) - {"tenant", "user", "id", "since", "until", "before", "limit"})
        if unknown:
            raise bad_request(f"`{unknown[0]}`: there is no such parameter; there are user, id, since, until, before, limit, tenant")
        wanted: dict[str, Any] = {}
        if "id" in query:
            if not is_id(query["id"], self._config.event_id_chars_max):
                raise bad_request("`id`: printable text, the id of a message or an event")
            wanted["message"] = query["id"]
        for name in ("since", "until"):
            if name in query:
                text = query[name]
                if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) <= TS_MS_MAX):
                    raise bad_request(f"`{name}`: milliseconds since the epoch")
                wanted[f"{name}_ms"] = int(text)
        if "before" in query:
            wanted["before"] = _cursor(query["before"])
        limit = limit_of(query, ROWS_MAX, 100)
        return wanted, limit

    async def steps(self, tenant: str, user: str, message: str) -> list[Step] | None:
        """The steps of a message's timeline that the history has; None when there is none. Raises Unavailable."""
        if self._query is None:
            return None
        rows = await self._query({"tenant": tenant, "user": user, "message": message}, _TIMELINE_MAX)
        return [Step(row["at_ms"], row["event"], row.get("reason", ""), row.get("until_ms", 0), _details(row)) for row in reversed(rows)]


def _cursor(text: str) -> bytes:
    try:
        cursor = bytes.fromhex(text)
    except ValueError:
        cursor = b""
    if len(cursor) != _CURSOR_BYTES or cursor.hex() != text:
        raise bad_request("`before`: what the page before answered as `before`")
    return cursor


def _members(row: Mapping[str, Any]) -> dict[str, Any]:
    return {_NAMES.get(name, name): value for name, value in row.items() if name not in _OMITTED}


def _details(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a step of a timeline has beyond its own members."""
    names = ("attempt", "device", "transport", "node", "client_ms", "rtt_ms", "read_ms", "skew_ms", "rule", "scheduled_id")
    return {_NAMES.get(name, name): row[name] for name in names if name in row}


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    query = ports.find_actor("archivist", "the archivist of the history", "its database") if ports.config.history_url else None
    if query is not None:
        ports.gateway.kept_of_user["history"] = partial(_rows_of, query)
    return feature_of(query)


def feature_of(query: QueryHistory | None) -> EdgeFeature:
    """The feature, of its parts."""
    return EdgeFeature("history", lambda access: table(access, query), metrics=figures.METRICS, is_degraded=figures.is_degraded)


async def _rows_of(query: QueryHistory, key: str) -> AsyncIterator[bytes]:
    """Every row of a user in JSON, the newest first, for an export. Raises Unavailable."""
    tenant, user = split_key(key)
    wanted: dict[str, Any] = {"tenant": tenant, "user": user}
    while True:
        rows = await query(wanted, ROWS_MAX)
        for row in rows:
            yield msgspec.json.encode(_members(row))
        if len(rows) < ROWS_MAX:
            return
        wanted["before"] = rows[-1]["id"]


def table(access: Access, query: QueryHistory | None) -> EndpointTable:
    """The endpoints."""
    history = History(access.config, query)

    async def page(request: Request) -> Response:
        return json_answer(await history.page(access.tenant_of(request), access.queried_user(request), request.query_params))

    async def steps(request: Request) -> Response:
        key, message = access.user_of(request, own=True), request.path_params["message"]
        if not is_id(message, access.config.id_chars_max):
            raise not_found("no message has this id")
        return json_answer(await timeline(access.gateway.shard_client, history.steps, key, message))

    routes = [
        route("/v1/history", GET=page),
        route("/v1/users/{user:segment}/messages/{message:rest}", GET=steps),
    ]
    return EndpointTable(routes, description)
