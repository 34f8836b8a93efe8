"""Puts together everything that the engine keeps of a user. Reads only, piece by piece: a large user costs an edge no memory.

    shard       --state--------> presence, profile, topics, decisions, connections
                --backlog------> messages that are not acknowledged; the bodies of most are in the offline stream
    scheduler   --list---------> scheduled messages
    Redis       --find---------> dead letters, session events, actions that are not done: the streams that an erasure empties
    features    --rows---------> what else they keep: the inbox with its marks, addresses, questions, sampled events, acts, the history

It is no snapshot: what happens meanwhile may be in it, or not. What is left out: ids of accepted messages and counters, which name nobody.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from engine.api.scheduled import as_json
from engine.core.model.constants import LOW
from engine.core.wire.records import ReadUser, UserIs
from engine.features.user_data.user_reports import state_of
from engine.gateway.gateway import Gateway
from engine.store.pending_bodies import PendingBodies
from engine.store.sealed_fields import FIELD, is_whole
from engine.store.user_entries import UserEntry

_PIECE_BYTES: Final = 64 << 10
"""Of the answer, sent at once."""

_MESSAGES: Final = 100
"""Pending messages read at once: 6 MB when all are as large as allowed."""

_BYTES: Final = 1 << 40
"""Of these, no limit: those of a page that were left out would be in no later one."""

_NUMBERS: Final = frozenset(("at", "attempts", "code", "due", "seq"))
"""Fields of entries that are numbers."""

_encode: Final = msgspec.json.Encoder().encode


FindEntries = Callable[[str], AsyncIterator[UserEntry]]
"""(mailbox key) -> the user's entries. Raises StorageUnavailable."""


class UserExport:
    """Exports users, on one edge.

    Args:
        find_entries: of a user in the streams for other systems (`engine.store.user_entries`).
    """

    def __init__(self, gateway: Gateway, bodies: PendingBodies, find_entries: FindEntries) -> None:
        self._gateway = gateway
        self._shard_client = gateway.shard_client
        self._bodies = bodies
        self._find_entries = find_entries

    async def pieces(self, key: str) -> AsyncIterator[bytes]:
        """One JSON object, in pieces of some 64 KB.

        Raises:
            Overloaded, Unavailable, StorageUnavailable, Problem: something does not answer. What was sent is no valid JSON then.
        """
        waiting = bytearray()
        async for part in self._parts(key):
            waiting += part
            if len(waiting) >= _PIECE_BYTES:
                yield bytes(waiting)
                waiting.clear()
        yield bytes(waiting)

    async def _parts(self, key: str) -> AsyncIterator[bytes]:
        state = state_of(key, await self._shard_client.ask(UserIs, lambda ref: ReadUser(ref, key), LOW))
        yield _encode(state | {"at": self._gateway.wall_ms()})[:-1]
        lists: Mapping[str, AsyncIterator[bytes]] = {
            "scheduled": self._scheduled(key),
            "messages": self._pending(key),
            "entries": self._entries(key),
            **{name: rows(key) for name, rows in self._gateway.kept_of_user.items()},
        }
        for name, rows in lists.items():
            yield b',"%b":[' % name.encode()
            comma = b""
            async for row in rows:
                yield comma + row
                comma = b","
            yield b"]"
        yield b"}"

    async def _scheduled(self, key: str) -> AsyncIterator[bytes]:
        """Scheduled messages, the soonest first. One that is moved meanwhile may be missing, or there twice."""
        async for timer in self._shard_client.every_timer(key):
            yield _encode(as_json(timer))

    async def _pending(self, key: str) -> AsyncIterator[bytes]:
        """Messages that are not acknowledged, the newest first, but on each page those in memory before those in the offline stream."""
        before = 0
        while True:
            backlog = await self._shard_client.read_backlog(key, _MESSAGES, _BYTES, before=before)
            for row in backlog.rows:
                yield _message(row.seq, row.expires_ms, row.body)
            for stored in (await self._bodies.read(key, backlog.cold, _BYTES)).messages if backlog.cold else ():
                yield _message(stored.seq, stored.expires_ms, stored.envelope.body)
            before = backlog.before
            if not before:
                return

    async def _entries(self, key: str) -> AsyncIterator[bytes]:
        async for found in self._find_entries(key):
            yield _encode(_entry_json(found))


def _message(seq: int, expires_ms: int, body: bytes) -> bytes:
    return b'{"seq":%d,"expires":%d,%b}' % (seq, expires_ms, body)


def _entry_json(found: UserEntry) -> dict[str, Any]:
    """An entry of a stream; its body, a JSON object, as `notification`. One that is damaged has no body, and says so."""
    members: dict[str, Any] = {"stream": found.stream, "entry": found.entry}
    if "body" in found.fields and not is_whole(found.key.encode(), {name.encode(): value for name, value in found.fields.items()}):
        return {**members, "damaged": True}
    if found.target:
        members["target"] = found.target
    for name, value in found.fields.items():
        if name == "body":
            members["notification"] = Raw(value)
        elif name not in ("tenant", FIELD):
            members[name] = int(value) if name in _NUMBERS and value.isdigit() else value.decode(errors="replace")
    return members
