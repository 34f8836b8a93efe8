"""The log of operators' acts: one stream of Redis for all tenants, bounded by `audit_entries_max`.

    endpoint --it has taken effect--> `append` --> the answer goes out

An edge that dies in between has acted and recorded nothing; the operator got no answer, repeats the act, and that is recorded. So is an
act while storage is away: the edge logs it, and answers, since refusing would not undo it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import redis.asyncio as redis
from msgspec import Struct

from engine.config import Config
from engine.core.model.routing import mailbox_key
from engine.core.wire.records import UNREADABLE
from engine.features.audit.keys import AUDIT_KEY
from engine.store.storage_calls import StorageCalls

_READ: Final = 1000
"""Acts at a time, when all are looked at: 0.3 MB."""

PAGE_MAX: Final = 500
"""Acts of one answer."""

_DETAIL_BYTES_MAX: Final = 4096
"""Of the details of one act; longer ones are left out."""

_USERS: Final = "/v1/users/"

_details: Final = msgspec.json.Decoder(dict[str, Any])


class Act(Struct, frozen=True):
    """An act.

    Attributes:
        entry: its id in the log, `<ms since the epoch>-<number>`, by the clock of Redis; "" before it is there.
        tenant, by, jti: of the token: its tenant, its user, and the claim where it has one.
        act: a word, such as `scale`.
        on: the path of the request, without its query.
        details: further members, by name.
    """

    tenant: str
    by: str
    jti: str
    act: str
    on: str
    details: Mapping[str, Any] = {}
    entry: str = ""

    @property
    def at_ms(self) -> int:
        """When it took effect, ms since the epoch."""
        return int(self.entry.partition("-")[0])

    def is_about(self, key: str) -> bool:
        """Whether the user with this mailbox key did it, or it was done to that user."""
        user = self.details.get("user")
        if user is None and self.on.startswith(_USERS):
            user = unquote(self.on.removeprefix(_USERS).partition("/")[0])
        return key in (mailbox_key(self.tenant, self.by), mailbox_key(self.details.get("tenant", self.tenant), user or ""))


class AuditLog:
    """The log, for an edge. Every method raises StorageUnavailable."""

    def __init__(self, client: redis.Redis, config: Config) -> None:
        self._client = client
        self._entries_max = config.audit_entries_max

    async def append(self, act: Act) -> None:
        details = msgspec.json.encode(act.details)
        fields: dict[Any, Any] = {"tenant": act.tenant, "by": act.by, "jti": act.jti, "act": act.act, "on": act.on}
        fields["details"] = details if len(details) <= _DETAIL_BYTES_MAX else b"{}"
        with StorageCalls("audit log"):
            await self._client.xadd(AUDIT_KEY, fields, maxlen=self._entries_max, approximate=True)

    async def after(self, entry: str, count: int, before: str = "") -> list[Act]:
        """Up to `count` acts after this entry, and before another one where that is given, the oldest first."""
        if before and before.strip("0") == "-":  # before 0-0 there is nothing, and Redis refuses to look there
            return []
        with StorageCalls("audit log"):
            entries: Any = await self._client.xrange(AUDIT_KEY, f"({entry}", f"({before}" if before else "+", count)
        return [_act(found.decode(), fields) for found, fields in entries]

    async def about(self, key: str) -> AsyncIterator[Act]:
        """The acts of, and about, the user with this mailbox key, the oldest first."""
        last = "0-0"
        while acts := await self.after(last, _READ):
            for act in acts:
                if act.is_about(key):
                    yield act
            last = acts[-1].entry

    async def page(self, before: str, count: int) -> list[Act]:
        """Up to `count` acts before this entry, "" for the newest; the newest first."""
        if before.strip("0") == "-":  # before 0-0 there is nothing, and Redis refuses to look there
            return []
        with StorageCalls("audit log"):
            entries: Any = await self._client.xrevrange(AUDIT_KEY, f"({before}" if before else "+", "-", count)
        return [_act(entry.decode(), fields) for entry, fields in entries]


def _act(entry: str, fields: Mapping[bytes, bytes]) -> Act:
    tenant, by, jti, act, on = (fields.get(name, b"").decode(errors="replace") for name in (b"tenant", b"by", b"jti", b"act", b"on"))
    try:
        details = _details.decode(fields.get(b"details", b"{}"))
    except UNREADABLE:  # one damaged act must not hide the others
        details = {"damaged": True}
    return Act(tenant, by, jti, act, on, details, entry)
