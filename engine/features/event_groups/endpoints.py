"""`/v1/event-groups`: what happens to a tenant's users, for consumers that read on where their group stopped.

    GET  .../{group}/events   acknowledges everything up to `position`, and answers with what follows, after `wait` s at the latest
    POST .../{group}/ack      acknowledges, and may leave the group to another consumer

An answer is a few looks at storage, so its cost and size are bounded: `event_page_max` events, and `event_looks_max` pages of entries, most
of which may be other tenants'. `position` of the answer moves over those too. A poll that finds nothing looks every `event_poll_ms`, and
takes its group again after `event_looks_max` looks, long before its lease ends; at most `event_polls_max` wait at one edge, of one tenant
at most as many as are left free.
`engine.features.event_groups.store` says who has a group, and what a position is.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from engine.api.access import Access, check_own_tenant, limit_of
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.api.json_bodies import decode_body
from engine.auth.tokens import ADMIN, EVENTS, Principal
from engine.config import Config
from engine.core.model.names import is_group
from engine.errors import Invalid
from engine.features.dead_letters.endpoints import summary
from engine.features.event_groups import description
from engine.features.event_groups.store import (
    EventStreams,
    Gap,
    GroupEvent,
    Look,
    OutcomeEvent,
    Position,
    PresenceEvent,
    Taken,
    gaps_of,
    parse_position,
)
from engine.http.endpoint_table import EndpointTable, json_answer, route, without_head
from engine.http.problems import RETRY_AFTER_S, bad_request, conflict, forbidden, not_found, too_many_requests
from engine.publish import media_types
from engine.transports.asgi import until_disconnected

CONSUMER_CHARS_MAX: Final = 128
"""Of a consumer's name for itself."""


class _Acknowledgement(Struct, forbid_unknown_fields=True):
    consumer: str
    position: str | UnsetType = UNSET
    leave: bool = False


class _Poll(Struct, eq=False):
    """One that waits, until its deadline."""

    deadline_ms: float

    def end(self, _by: object = None) -> None:
        """Nobody waits for it any more: it must not take the group again."""
        self.deadline_ms = -math.inf


_ACKNOWLEDGEMENT: Final = msgspec.json.Decoder(_Acknowledgement)


class EventGroups:
    """The groups, on one edge.

    Args:
        clock: milliseconds that never step.
        draining: whether this edge is about to end; polls are answered then.
    """

    def __init__(self, config: Config, store: EventStreams, clock: Callable[[], int], draining: Callable[[], bool]) -> None:
        self._config = config
        self._store = store
        self._clock = clock
        self._draining = draining
        self._polls = Counter[str]()  # by tenant
        self._waiting: dict[tuple[str, str, str], set[_Poll]] = {}  # by tenant, group and consumer

    def allow(self, principal: Principal) -> None:
        """Raises Problem: 403, the token has neither scope."""
        if not principal.scopes & {ADMIN, EVENTS}:
            raise forbidden(f"the scope `{EVENTS}` or `{ADMIN}` is needed", scope=EVENTS)

    async def list(self, tenant: str) -> dict[str, Any]:
        """The groups as `GET /v1/event-groups` answers them. Raises StorageUnavailable."""
        groups = await self._store.groups(tenant)
        return {
            "tenant": tenant,
            "groups": [
                {"group": one.group, "position": str(one.position), "held_by": one.held_by, "behind_ms": one.behind_ms} for one in groups
            ],
        }

    async def drop(self, tenant: str, group: str) -> None:
        """Forget a group. Raises Problem: 404; StorageUnavailable."""
        _check_group(group)
        if not await self._store.drop(tenant, group):
            raise not_found("there is no such group")

    async def acknowledge(self, tenant: str, group: str, body: bytes) -> dict[str, Any]:
        """Store how far a consumer has come. Raises Problem: 400, 404, 409 or 422; StorageUnavailable."""
        _check_group(group)
        given = decode_body(_ACKNOWLEDGEMENT, body, _Acknowledgement)
        if not _is_consumer(given.consumer):
            raise media_types.unacceptable(Invalid(_CONSUMER, "$.consumer"))
        try:
            reached = None if given.position is UNSET else parse_position(given.position)
        except Invalid as error:
            raise media_types.unacceptable(Invalid(error.detail, "$.position")) from None
        if given.leave:
            for poll in self._waiting.get((tenant, group, given.consumer), ()):
                poll.end()
        taken = await self._take(tenant, group, given.consumer, reached, leave=given.leave)
        position = Position(taken.position.parts) if taken.lost else taken.position  # the gaps are for the next poll
        return {"position": str(position), "held_by": taken.consumer}

    async def poll(self, tenant: str, group: str, query: QueryParams, wait_s: float, receive: Receive) -> dict[str, Any]:
        """The next events of a group, for the consumer that has it, until its connection ends.

        Raises Problem: 400, 404, 409 or 429; StorageUnavailable.
        """
        _check_group(group)
        outcomes = query.get("outcomes", "false")
        if outcomes not in ("true", "false"):
            raise bad_request("`outcomes`: true or false, whether this group reads outcomes too")
        consumer, begin = query.get("consumer", ""), query.get("begin", "newest")
        if not _is_consumer(consumer):
            raise bad_request(f"`consumer`: {_CONSUMER}")
        if begin not in ("newest", "oldest"):
            raise bad_request("`begin`: newest or oldest, where a new group begins")
        count_max = self._config.event_page_max
        limit = limit_of(query, count_max, count_max)
        try:
            reached = parse_position(query["position"]) if query.get("position") else None
        except Invalid as error:
            raise bad_request(f"`position`: {error.detail}") from None
        if outcomes == "true" and not self._config.history_url:
            raise conflict("`outcomes`: this engine records none: the setting history_url is empty", type="about:blank")
        if reached and outcomes == "false":
            reached = reached.without_outcomes()
        if self._polls[tenant] >= self._config.event_polls_max - self._polls.total():
            raise too_many_requests(f"{self._polls[tenant]} consumers of this tenant wait for events at this edge", RETRY_AFTER_S)
        self._polls[tenant] += 1
        waits = _Poll(self._clock() + int(wait_s * 1000))
        self._waiting.setdefault((tenant, group, consumer), set()).add(waits)
        leaving = asyncio.ensure_future(until_disconnected(receive))
        leaving.add_done_callback(waits.end)
        try:
            how = {"oldest": begin == "oldest", "outcomes": outcomes == "true"}
            return await self._wait(tenant, group, consumer, reached, limit, waits, how)
        finally:
            leaving.cancel()
            self._polls[tenant] -= 1
            if not self._polls[tenant]:
                del self._polls[tenant]
            others = self._waiting[tenant, group, consumer]
            others.discard(waits)
            if not others:
                del self._waiting[tenant, group, consumer]

    async def _wait(
        self, tenant: str, group: str, consumer: str, reached: Position | None, limit: int, waits: _Poll, how: dict[str, bool]
    ) -> dict[str, Any]:
        while True:
            taken = await self._take(tenant, group, consumer, reached, **how)
            holder, found = taken.consumer, Look([], taken.position, False)
            if holder == consumer:
                found = gaps_of(taken, reached) if taken.lost else await self._search(tenant, taken.position, limit, waits)
                reached = found.position  # stored when nothing was found up to there
            else:
                await self._pause(waits)
                reached = None
            if found.events or found.more or self._clock() >= waits.deadline_ms or self._draining():
                return {**_page(found), **({"held_by": holder} if holder != consumer else {})}

    async def _search(self, tenant: str, position: Position, limit: int, waits: _Poll) -> Look:
        """The first look that finds something, or the last of `event_looks_max`."""
        look = Look([], position, False)
        for _ in range(self._config.event_looks_max):
            look = await self._store.look(tenant, look.position, limit)
            if look.events or not (look.more or await self._pause(waits)):
                break
        return look

    async def _pause(self, waits: _Poll) -> bool:
        """Wait until it is time for another look; false at the end of the time, or of this edge."""
        left_ms = waits.deadline_ms - self._clock()
        if left_ms <= 0 or self._draining():
            return False
        await asyncio.sleep(min(self._config.event_poll_ms, left_ms) / 1000)
        return True

    async def _take(self, tenant: str, group: str, consumer: str, reached: Position | None, **how: bool) -> Taken:
        taken = await self._store.take(tenant, group, consumer, reached, **how)
        if taken is None:
            raise conflict(f"a tenant has at most {self._config.event_groups_max} groups; DELETE one", type="about:blank")
        return taken


_NAMES: Final = {"message": "id", "sent_ms": "sent", "client_ms": "client_ts"}
"""Columns of the history that have other names here: those of the rest of the interface."""

_CONSUMER: Final = f"a name of 1 to {CONSUMER_CHARS_MAX} printable characters"


def _is_consumer(text: str) -> bool:
    return 0 < len(text) <= CONSUMER_CHARS_MAX and text.isprintable()


def _check_group(group: str) -> None:
    if not is_group(group):
        raise not_found("no group has this name: 1 to 64 of A-Z, a-z, 0-9, _, . and -")


def _page(look: Look) -> dict[str, Any]:
    return {"events": [{"position": str(event.position), **_members(event)} for event in look.events], "position": str(look.position)}


def _members(event: GroupEvent) -> Mapping[str, Any]:
    what = event.what
    if isinstance(what, PresenceEvent):
        return msgspec.structs.asdict(what)
    if isinstance(what, Gap):
        return {"event": "gap", **msgspec.structs.asdict(what)}
    if isinstance(what, OutcomeEvent):
        members = {_NAMES.get(name, name): value for name, value in what.members.items()}
        return {"outcome": what.id.hex(), "at": what.at_ms, "user": what.user, **members}
    return {"event": "dead_letter", **summary(what)}


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    store = EventStreams(ports.redis, ports.config, ports.gateway.wall_ms)
    return EdgeFeature("event_groups", lambda access: table(access, store))


def table(access: Access, store: EventStreams) -> EndpointTable:
    """The endpoints."""
    gateway = access.gateway
    groups = EventGroups(access.config, store, gateway.clock, lambda: gateway.draining)

    def consumer(request: Request) -> Principal:
        """The bearer, who may read the events of its tenant."""
        principal = access.authenticate(request, "")
        groups.allow(principal)
        check_own_tenant(principal, request.query_params)
        return principal

    async def overview(request: Request) -> Response:
        return json_answer(await groups.list(consumer(request).tenant))

    async def drop(request: Request) -> Response:
        await groups.drop(consumer(request).tenant, request.path_params["group"])
        return Response(status_code=204)

    async def poll(request: Request) -> Response:
        principal = consumer(request)
        query, wait_s = request.query_params, access.wait_s(request)
        page = await groups.poll(principal.tenant, request.path_params["group"], query, wait_s, request.receive)
        access.confirm(request)
        return json_answer(page)

    async def acknowledge(request: Request) -> Response:
        principal = consumer(request)
        return json_answer(await groups.acknowledge(principal.tenant, request.path_params["group"], await access.body(request)))

    routes = [
        route("/v1/event-groups", GET=overview),
        route("/v1/event-groups/{group}", DELETE=access.audited("drop_event_group", drop)),
        without_head(route("/v1/event-groups/{group}/events", GET=poll)),
        route("/v1/event-groups/{group}/ack", POST=acknowledge),
    ]
    return EndpointTable(routes, description)
