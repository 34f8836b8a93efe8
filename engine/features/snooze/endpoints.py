"""`/v1/inbox/snooze`: put messages away until a time, show what is put away, and bring it back early.

    in the inbox --a copy is scheduled--> in it, with a timer --the original is archived--> away
    away --the time has come, or `unsnooze` makes it now--> the copy is delivered: unread, with a number of its own

The copy (`engine.features.snooze.copies`) is an ordinary delayed message, and the mark an ordinary mark. Both are durable before the
answer, and neither the schedulers nor the shards know of snoozes. The original is archived last: a message is never away without a timer.

    the edge dies, or storage is away ...       then                        a repeated request
    before the copy is scheduled                nothing has happened        does it all
    after that, before the original is archived both are there; the copy    moves the copy's time, and archives the original
                                                replaces it when it comes
    after the mark, before the answer           it is away                  changes nothing

The later request moves the time, also where two devices snooze one message at the same moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct
from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access
from engine.api.ack_and_patch import check_ids
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.api.json_bodies import decode_body
from engine.api.scheduled import raise_unless_ok
from engine.config import Config
from engine.core.inbox.inbox import ALL, ARCHIVED
from engine.core.model.routing import split_key
from engine.core.wire.records import ALREADY_FIRED, NOT_FOUND, InboxRow, Timer
from engine.errors import Invalid
from engine.features.inbox.inboxes import answered, find_rows, mark_all
from engine.features.snooze import description
from engine.features.snooze.copies import asks, copy_of, original_of
from engine.gateway.gateway import Gateway
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.http.problems import RETRY_AFTER_S, Problem, unavailable
from engine.publish import media_types
from engine.publish.drafts import due_of

_COPIES_MAX: Final = 8
"""Copies of a message: the application may cancel them."""


class _Snooze(Struct, forbid_unknown_fields=True, gc=False):
    """The body of POST /v1/inbox/snooze."""

    ids: list[str]
    until: int | float | str


class _Unsnooze(Struct, forbid_unknown_fields=True, gc=False):
    """The body of POST /v1/inbox/unsnooze."""

    ids: list[str]


_SNOOZE: Final = msgspec.json.Decoder(_Snooze)
_UNSNOOZE: Final = msgspec.json.Decoder(_Unsnooze)


class Snoozes:
    """Snoozes messages of users, on one edge."""

    def __init__(self, config: Config, gateway: Gateway) -> None:
        self._config = config
        self._gateway = gateway
        self._shard_client = gateway.shard_client

    async def snooze(self, key: str, body: bytes) -> dict[str, Any]:
        """Put messages of this mailbox away. Returns the counts, the time, and the ids that the inbox does not list.

        Raises:
            Problem: 400 or 422, the request is not valid; 404, the engine keeps no inboxes; 409, 429 or 503: not all are away; repeat it.
            Overloaded, Unavailable: nothing is, or it is not known; repeat it.
        """
        ids, until_ms = self._asked(body)
        found, epoch = await find_rows(self._shard_client, key, set(ids), self._config, (ALL,))
        for id, row in found.items():
            if asks(row.body):
                raise media_types.unacceptable(Invalid("a question, which stays until its answer or deadline", f"$.ids[{ids.index(id)}]"))
        moved = await self._move(key, ids, until_ms)
        seqs = {found[id].seq for id in moved & found.keys()}  # once more: the request before this one may have ended before the mark
        rows = {id: row for id, row in found.items() if id not in moved}
        scheduled, refused = await self._schedule(key, list(rows.values()), epoch, until_ms)
        seqs |= scheduled
        marked = answered(await mark_all(self._shard_client, key, ARCHIVED, True, sorted(seqs), [], 0, epoch))
        if refused is not None:
            raise refused
        unknown = [id for id in ids if id not in moved and id not in rows]
        counts = {"until": until_ms, "unread": marked.unread, "unseen": marked.unseen, "revision": marked.revision}
        return {**counts, "unknown": unknown} if unknown else counts

    async def _schedule(self, key: str, rows: Sequence[InboxRow], epoch: str, until_ms: int) -> tuple[set[int], Problem | None]:
        """Schedule the copies of these messages. Returns the numbers of those whose copy waits, and why others' do not.

        Raises as `snooze`.
        """
        scheduled, ttl_ms = set[int](), self._config.ttl_s_default * 1000
        for turn in range(_COPIES_MAX):
            if not rows:
                return scheduled, None
            drafts = [copy_of(key, f"{epoch}-{row.seq}", row.body, until_ms, ttl_ms, turn) for row in rows]
            refused: Problem | None = None
            try:
                results: Sequence[Any] = msgspec.to_builtins(await self._shard_client.post(drafts))
            except Problem as problem:
                if "results" not in problem.members:
                    raise
                refused, results = problem, problem.members["results"]
            scheduled |= {row.seq for row, result in zip(rows, results, strict=True) if result.get("scheduled_at")}
            others = {result["id"]: result["scheduled_id"] for result in results if result.get("scheduled_at", until_ms) != until_ms}
            await self._reschedule(key, others, until_ms)  # another device has scheduled them just now
            if refused is not None:
                return scheduled, refused
            rows = [row for row in rows if row.seq not in scheduled]
        raise unavailable("the copy was cancelled again and again", RETRY_AFTER_S)

    async def unsnooze(self, key: str, body: bytes) -> dict[str, Any]:
        """Bring messages back now. Returns the ids of those that come, and of those that are not away. Raises as `snooze`."""
        ids = decode_body(_UNSNOOZE, body, _Unsnooze).ids
        self._check(ids)
        moved = await self._move(key, ids, self._gateway.wall_ms())
        coming, unknown = [id for id in ids if id in moved], [id for id in ids if id not in moved]
        return {"coming": coming, "unknown": unknown} if unknown else {"coming": coming}

    async def away(self, key: str) -> list[dict[str, Any]]:
        """What is put away, the next to come first. Raises Overloaded or Unavailable."""
        return [
            {"id": id, "until": timer.due_ms, "message": msgspec.Raw(b"{%b}" % timer.envelope.body)}
            for id, timer in (await self._timers(key)).items()
        ]

    async def _move(self, key: str, ids: Sequence[str], until_ms: int) -> set[str]:
        """Give those of these messages that are away another time. Returns their ids, without those that have just come back."""
        timers = await self._timers(key)
        return await self._reschedule(key, {id: timers[id].sid for id in ids if id in timers}, until_ms)

    async def _reschedule(self, key: str, sids: Mapping[str, str], until_ms: int) -> set[str]:
        """Give timers, by ids of messages, another time. Returns the ids of those that have not fired."""
        tenant = split_key(key)[0]
        answers = await asyncio.gather(*(self._shard_client.reschedule(tenant, sid, until_ms) for sid in sids.values()))
        moved = set()
        for id, answer in zip(sids, answers, strict=True):
            if answer.status not in (NOT_FOUND, ALREADY_FIRED):
                raise_unless_ok(answer)
                moved.add(id)
        return moved

    async def _timers(self, key: str) -> dict[str, Timer]:
        """By id of the message that each brings back."""
        found = [(original_of(timer), timer) async for timer in self._shard_client.every_timer(key)]
        return {id: timer for id, timer in found if id is not None}

    def _asked(self, body: bytes) -> tuple[list[str], int]:
        asked = decode_body(_SNOOZE, body, _Snooze)
        self._check(asked.ids)
        now_ms = self._gateway.wall_ms()
        try:
            until = asked.until
            if isinstance(until, float):
                if not until.is_integer():
                    raise Invalid("whole milliseconds since the epoch, or RFC 3339 text")
                until = int(until)
            until_ms, _ = due_of(UNSET, until, self._config, now_ms)
        except Invalid as error:
            raise media_types.unacceptable(Invalid(error.detail, "$.until")) from None
        return asked.ids, max(until_ms, now_ms)

    def _check(self, ids: list[str]) -> None:
        try:
            if not ids:
                raise Invalid("at least one id is needed", "$.ids")
            check_ids(ids, self._config)
        except Invalid as error:
            raise media_types.unacceptable(error) from None


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    return EdgeFeature("snooze", lambda access: table(access, Snoozes(ports.config, ports.gateway)))


def table(access: Access, snoozes: Snoozes) -> EndpointTable:
    """The endpoints."""

    async def snooze(request: Request) -> Response:
        """`POST /v1/inbox/snooze?user=`."""
        principal, key, _ = access.subscriber(request)
        access.gateway.check_room(principal.tenant)
        return json_answer(await snoozes.snooze(key, await access.body(request)))

    async def unsnooze(request: Request) -> Response:
        """`POST /v1/inbox/unsnooze?user=`."""
        _, key, _ = access.subscriber(request)
        return json_answer(await snoozes.unsnooze(key, await access.body(request)))

    async def away(request: Request) -> Response:
        """`GET /v1/inbox/snooze?user=`."""
        _, key, _ = access.subscriber(request)
        return json_answer({"snoozed": await snoozes.away(key)})

    routes = [
        route("/v1/inbox/snooze", GET=away, POST=snooze),
        route("/v1/inbox/unsnooze", POST=unsnooze),
    ]
    return EndpointTable(routes, description)
