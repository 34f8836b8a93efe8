"""Scheduled notifications in the answers of `/v1/scheduled`."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access
from engine.api.ack_and_patch import parse_patch
from engine.core.model.names import is_id
from engine.core.model.routing import mailbox_key, split_key, topic_of
from engine.core.wire import records as wire
from engine.errors import Overloaded, Unavailable
from engine.http.description import timer_paths
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.http.problems import ALREADY_FIRED, bad_request, conflict, not_found


def as_json(timer: wire.Timer) -> dict[str, Any]:
    """The JSON object of a timer: its notification, when it is due and for whom, and what it does instead of delivering it."""
    topic = topic_of(timer.key)
    whom: dict[str, Any] = {"user": split_key(timer.key)[1]} if topic is None else {"topic": topic} if topic else {"broadcast": True}
    members = {"scheduled_id": timer.sid, "scheduled_at": timer.due_ms, "created_at": timer.created_ms, **whom}
    if timer.action is not None:
        members["action"] = timer.action.target
    return {**members, "notification": msgspec.Raw(b"{%b}" % timer.envelope.body)}


def raise_unless_ok(answer: wire.TimerAnswer) -> wire.TimerAnswer:
    """Return the answer when its status is OK.

    Raises:
        Problem: 404, or 409 when it was delivered already.
        Overloaded, Unavailable: the scheduler refused, or storage did not answer.
    """
    if answer.status == wire.OK:
        return answer
    if answer.status == wire.NOT_FOUND:
        raise not_found("no such scheduled notification")
    if answer.status == wire.ALREADY_FIRED:
        raise conflict("it has been delivered already", type=ALREADY_FIRED)
    if answer.status == wire.OVERLOADED:
        raise Overloaded(answer.detail or "a limit is reached")
    raise Unavailable(answer.detail or "durable storage did not answer")


def position_of(text: str) -> tuple[int, str]:
    """Due time and scheduled id in the `next` of an answer. Raises Problem: 400."""
    if timer_paths.POSITION.fullmatch(text) is None:
        raise bad_request("`after`: the `next` of an answer is needed; leave it out for the soonest")
    due_ms, _, sid = text.partition("-")
    return int(due_ms), sid


def table(access: Access) -> EndpointTable:
    """The endpoints."""

    async def list_scheduled(request: Request) -> Response:
        """`GET /v1/scheduled?user=&collapse=&after=`."""
        key, collapse = timers_of(request)
        after = position_of(request.query_params.get("after", "0-"))
        answer = raise_unless_ok(await access.gateway.shard_client.list_timers(key, collapse, after=after))
        more = {"next": f"{answer.timers[-1].due_ms}-{answer.timers[-1].sid}"} if answer.detail else {}
        return json_answer({"scheduled": [as_json(timer) for timer in answer.timers], **more})

    async def cancel_all(request: Request) -> Response:
        """`DELETE /v1/scheduled?user=&collapse=`. The digest by mail is the user's own, and goes on."""
        key, collapse = timers_of(request)
        answer = raise_unless_ok(await access.gateway.shard_client.cancel_all(key, collapse))
        if not collapse:
            await access.gateway.times_changed(key, None)
        return json_answer({"cancelled": answer.count})

    def timers_of(request: Request) -> tuple[str, str]:
        """The mailbox key and the collapse key ("" for all) that the query names."""
        principal = access.authenticate(request, "publish")
        user = access.queried_user(request)
        collapse = request.query_params.get("collapse")
        if user is None:
            raise bad_request("the query parameter `user` is needed")
        if collapse is not None and not is_id(collapse, access.config.id_chars_max):
            raise bad_request("`collapse`: a collapse key is needed; leave it out for all timers of the user")
        return mailbox_key(principal.tenant, user), collapse or ""

    async def inspect(request: Request) -> Response:
        """`GET /v1/scheduled/{sid}`."""
        principal = access.authenticate(request, "publish")
        answer = raise_unless_ok(await access.gateway.shard_client.inspect(principal.tenant, request.path_params["sid"]))
        return json_answer(as_json(answer.timers[0]))

    async def reschedule(request: Request) -> Response:
        """`PATCH /v1/scheduled/{sid}`."""
        principal = access.authenticate(request, "publish")
        body = await access.body(request)
        due_ms = parse_patch(body, access.config, access.gateway.wall_ms())
        answer = raise_unless_ok(await access.gateway.shard_client.reschedule(principal.tenant, request.path_params["sid"], due_ms))
        return json_answer(as_json(answer.timers[0]))

    async def cancel(request: Request) -> Response:
        """`DELETE /v1/scheduled/{sid}`."""
        principal = access.authenticate(request, "publish")
        sid = request.path_params["sid"]
        raise_unless_ok(await access.gateway.shard_client.cancel(principal.tenant, sid))
        return json_answer({"scheduled_id": sid, "status": "cancelled"})

    routes = [
        route("/v1/scheduled", GET=list_scheduled, DELETE=cancel_all),
        route("/v1/scheduled/{sid:segment}", GET=inspect, PATCH=reschedule, DELETE=cancel),
    ]
    return EndpointTable(routes, timer_paths)
