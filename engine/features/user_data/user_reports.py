"""`GET /v1/users/{user}`: what an operator, or the admin of a tenant, may see of a user.

Put together from the user's shard (presence, connections, counts, what the contact policy decided), its pending messages in memory and in
storage, and its scheduler. Bounded in each part; nothing is acknowledged, loaded or changed.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from engine.api.scheduled import as_json, raise_unless_ok
from engine.core.model.constants import LOW
from engine.core.model.routing import split_key
from engine.core.policy.profile import NO_PROFILE, shown
from engine.core.wire.records import ConnectionState, ReadUser, Step, UserIs
from engine.gateway.shard_client import ShardClient
from engine.store.pending_bodies import PendingBodies

ROWS_MAX: Final = 50
"""Pending messages, and timers, of one user in one answer."""

_BYTES_MAX: Final = 256 << 10
"""Of these messages."""


class _Message(Struct):
    """What is shown of a pending message."""

    id: str = ""
    type: str = ""
    priority: str = "normal"
    ts: int = 0
    count: int = 1
    data: Raw = Raw(b"null")


_MESSAGE: Final = msgspec.json.Decoder(_Message)


async def report(shard_client: ShardClient, bodies: PendingBodies, key: str) -> dict[str, Any]:
    """The report of a user; for a user of whom nothing is known, one without anything.

    Raises:
        Overloaded: too many records await answers.
        Unavailable: the shard or the scheduler did not answer.
        StorageUnavailable: storage did not.
    """
    user, backlog, listed = await asyncio.gather(
        shard_client.ask(UserIs, lambda ref: ReadUser(ref, key), LOW),
        shard_client.read_backlog(key, ROWS_MAX, _BYTES_MAX),
        shard_client.list_timers(key, limit=ROWS_MAX),
    )
    timers = raise_unless_ok(listed).timers
    stored = (await bodies.read(key, backlog.cold, _BYTES_MAX)).messages if backlog.cold else []
    messages = {row.seq: _message(row.seq, row.expires_ms, row.body) for row in backlog.rows}
    messages |= {one.seq: _message(one.seq, one.expires_ms, one.envelope.body) for one in stored if one.seq not in messages}
    return {
        **state_of(key, user),
        "messages": [messages[seq] for seq in sorted(messages, reverse=True)[:ROWS_MAX]],
        "timers": [as_json(timer) for timer in timers],
    }


def state_of(key: str, user: UserIs) -> dict[str, Any]:
    """The members of a report that the user's shard has in memory."""
    tenant, name = split_key(key)
    return {
        "tenant": tenant,
        "user": name,
        "presence": user.presence,
        **({"active_at": user.seen_ms} if user.seen_ms else {}),
        "head": user.head,
        "floor": user.floor,
        "pending": user.pending,
        "in_memory": user.in_memory,
        "connections": [connection_json(connection) for connection in user.connections],
        "topics": user.topics,
        "windows": [msgspec.structs.asdict(window) for window in user.windows],
        "profile": shown(user.profile or NO_PROFILE),
        "events": user.events,
        "decisions": _decisions(user),
    }


def connection_json(state: ConnectionState) -> dict[str, Any]:
    """A connection as the interface shows it."""
    members = msgspec.structs.asdict(state)
    members["since"] = members.pop("since_ms")
    oldest = members.pop("oldest_ms")
    return {**members, "oldest": oldest} if oldest else members


def _decisions(user: UserIs) -> list[dict[str, Any]]:
    """The latest first."""
    return [{"id": id, **_step(step)} for id, step in reversed(user.decisions)]


def _step(step: Step) -> dict[str, Any]:
    until = {"until": step.until_ms} if step.until_ms else {}
    return {"at": step.at_ms, "event": step.event, "reason": step.reason, **until}


def _message(seq: int, expires_ms: int, body: bytes) -> dict[str, Any]:
    return {"seq": seq, "expires": expires_ms, **msgspec.structs.asdict(_MESSAGE.decode(b"{%b}" % body))}
