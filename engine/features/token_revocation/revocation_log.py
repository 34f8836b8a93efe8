"""The revocations of tokens in Redis: a stream that any edge appends to and every edge follows.

    log      stream: one entry per revocation in force, `p` the id of the entry before it, `e` `b` `x` the revocation
    entries  hash: what is revoked -> id in the log, `before`, expiry      expiries  sorted set: the same, by expiry
    state    hash: `last`, the id that was given last                     tenants   hash: tenant -> its number of revocations
    useless  list: ids in the log whose revocation was merged or has expired

An append is one script run: drop what has expired, check the limits, merge with an earlier revocation of the same, append. It is not
fenced, and repeating it changes nothing. What a reader has read is a prefix as long as the next entry names the last one it has read; if
not, storage has lost some, and the whole log is read. Entries that are merged over and over stay in the log for `_USELESS_MAX` others, or a
tenant's admin could have every edge read everything all the time.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import redis.asyncio as redis
from msgspec import Struct

from engine.config import Config
from engine.core.model.revocation import Revocation, revocation_of
from engine.errors import Overloaded
from engine.features.token_revocation.keys import (
    REVOCATION_ENTRIES_KEY,
    REVOCATION_EXPIRIES_KEY,
    REVOCATION_LOG_KEY,
    REVOCATION_STATE_KEY,
    REVOCATION_TENANTS_KEY,
    REVOCATION_USELESS_KEY,
)
from engine.store.lua import Replicas, Script
from engine.store.storage_calls import StorageCalls

log = logging.getLogger(__name__)

_REVOKE = Script.beside(__file__, "token_revoke")
_ENTRY_ID: Final = re.compile("[0-9]{1,20}-[0-9]{1,20}")
_PAGE: Final = 1000
"""Entries per read, some 100 bytes each."""

_USELESS_MAX: Final = 1000
"""Merged and expired entries left in the log: several times what is appended between two reads of an edge."""

_WAIT_MS_MAX: Final = 3_600_000  # of `Retry-After` at the limit, however long the oldest revocation lasts


class RevocationsRead(Struct, frozen=True):
    """What a read has found.

    Attributes:
        revocations: all of them, or those behind the given head.
        head: to be given to the next read.
        whole: they are all that storage has.
    """

    revocations: list[Revocation]
    head: str
    whole: bool


class RevocationLog:
    """The log, for edges."""

    def __init__(self, client: redis.Redis, config: Config) -> None:
        self._client = client
        self._replicas = Replicas.wanted(config)
        self._limits = (config.revocations_max, config.revocations_per_tenant_max)

    async def append(self, revocations: Sequence[Revocation]) -> None:
        """Make revocations durable.

        Raises:
            Overloaded: there are too many; none of those from the first refused one on is in force.
            StorageUnavailable: no reply, or too few replicas have it; it may be in force: repeat it.
        """
        keys = [
            REVOCATION_LOG_KEY,
            REVOCATION_ENTRIES_KEY,
            REVOCATION_EXPIRIES_KEY,
            REVOCATION_STATE_KEY,
            REVOCATION_TENANTS_KEY,
            REVOCATION_USELESS_KEY,
        ]
        for revocation in revocations:
            arguments = [revocation.entry, revocation.tenant, revocation.before_ms, revocation.expires_ms, *self._limits, _USELESS_MAX]
            reply = await _REVOKE.run(self._client, keys, arguments, self._replicas)
            if reply[0] == b"FULL":
                wait_ms = min(max(float(reply[2]) - time.time() * 1000, 0.0), _WAIT_MS_MAX)
                raise Overloaded(f"too many tokens and users are revoked ({reply[1].decode()}), until some of these tokens expire", wait_ms)

    async def read(self, head: str) -> RevocationsRead:
        """The revocations behind `head`, "" for all of them. All are read, too, when what follows `head` is not the continuation.

        Raises StorageUnavailable.
        """
        with StorageCalls("revocations"):
            found: Any = await self._client.hget(REVOCATION_STATE_KEY, "last")
            last = _text(found)
            damaged = found is not None and _ENTRY_ID.fullmatch(last) is None
            if damaged:
                last = ""  # everything is read until the next append puts it right
            elif last == head:
                return RevocationsRead([], head, whole=not head)
            if head and last:
                revocations, previous, reached = await self._entries(head)
                if revocations and previous == head:
                    return RevocationsRead(revocations, max(last, reached, key=_position), whole=False)
            revocations, _, _ = await self._entries("")
        return RevocationsRead(revocations, last, whole=True)

    async def _entries(self, after: str) -> tuple[list[Revocation], str, str]:
        """The entries of the log behind an id; the id that the first one follows, and the id of the last one."""
        revocations: list[Revocation] = []
        previous = ""
        reached = after
        while True:
            page: Any = await self._client.xrange(REVOCATION_LOG_KEY, f"({reached}" if reached else "-", count=_PAGE)
            if page and reached == after:
                previous = _text(page[0][1].get(b"p"))
            revocations += _revocations(page)  # page by page: all at once would keep the event loop for long
            if len(page) < _PAGE:
                return revocations, previous, _text(page[-1][0]) if page else reached
            reached = _text(page[-1][0])


def _revocations(entries: Sequence[Any]) -> list[Revocation]:
    found = []
    for entry_id, fields in entries:
        try:
            found.append(revocation_in(fields))
        except (KeyError, ValueError) as error:
            log.error("the revocation at %s cannot be read and is not in force: %r", entry_id, error)
    return found


def revocation_in(fields: Mapping[bytes, bytes]) -> Revocation:
    """The revocation in an entry of the log. Raises KeyError, ValueError: it is damaged."""
    return revocation_of(fields[b"e"].decode(), int(fields[b"b"]), int(fields[b"x"]))


def _position(entry_id: str) -> int:
    return int(entry_id.partition("-")[0] or 0)


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="replace")
