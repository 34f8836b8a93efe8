"""The versions of the rules in Redis, read by every edge and changed by operators, one at a time.

    state    hash: `state`, `engine.features.rules.core.versions.VersionState` as JSON; `stamp`, another text after each change
    texts    hash: number of a version -> its TOML

    tenants  hash: tenant with rules of its own, which has a state and texts likewise -> the stamp of its state

A change names the stamp of the state it was made from, and is refused when that is not there any more: of two operators who change
something at once, one is told. A stamp has a random part, so a state that storage has lost is never taken for the one that came after it.
What storage has is what counts: after a restored backup, or a fail-over that lost the last second, edges follow what is there then.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import redis.asyncio as redis
from msgspec import Struct

from engine.config import Config
from engine.errors import CorruptRecord
from engine.features.rules.core.versions import VersionInfo, VersionState
from engine.features.rules.keys import RULES_TENANTS_KEY, rules_state_key, rules_texts_key
from engine.store.lua import Replicas, Script
from engine.store.storage_calls import StorageCalls

_CHANGE = Script.beside(__file__, "rules_change")
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(VersionState).decode


class StoredState(Struct, frozen=True):
    """A state, and its stamp; "" before the first change."""

    stamp: str = ""
    state: VersionState = VersionState()


class RulesStore:
    """The versions, for edges. `tenant`: whose own they are; "": the operator's."""

    def __init__(self, client: redis.Redis, config: Config, tenant: str = "") -> None:
        self._tenant = tenant
        self._client = client
        self._replicas = Replicas.wanted(config)

    async def stamp(self) -> str:
        """The stamp of the state that is stored. Raises StorageUnavailable."""
        with StorageCalls("rules"):
            found: Any = await self._client.hget(rules_state_key(self._tenant), "stamp")
        return "" if found is None else str(found, "ascii", "replace")

    async def read(self) -> StoredState:
        """The state that is stored.

        Raises:
            StorageUnavailable: no reply.
            CorruptRecord: it cannot be decoded.
        """
        with StorageCalls("rules"):
            found: list[Any] = await self._client.hmget(rules_state_key(self._tenant), ["stamp", "state"])
        stamp, state = found
        if stamp is None or state is None:
            return StoredState()
        try:
            return StoredState(str(stamp, "ascii", "replace"), _decode(state))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptRecord(f"the stored versions of the rules cannot be read: {error}") from error

    async def recovered(self) -> StoredState:
        """In place of a state that cannot be decoded: the versions whose texts are stored, none of them in force.

        Raises StorageUnavailable.
        """
        with StorageCalls("rules"):
            stamp: Any = await self._client.hget(rules_state_key(self._tenant), "stamp")
            texts: Any = await self._client.hgetall(rules_texts_key(self._tenant))
        found = sorted((int(number), text) for number, text in texts.items() if number.isdigit())
        versions = tuple(VersionInfo(number, 0, "", 0, len(text), hashlib.sha256(text).hexdigest()) for number, text in found)
        last = versions[-1].version if versions else 0
        return StoredState(str(stamp or b"", "ascii", "replace"), VersionState(last=last, versions=versions))

    async def texts(self, versions: Iterable[int]) -> dict[int, str]:
        """The texts of these versions; those that are not stored are left out.

        Raises:
            StorageUnavailable: no reply.
            CorruptRecord: one of them is no text.
        """
        numbers = list(versions)
        if not numbers:
            return {}
        with StorageCalls("rules"):
            found: list[Any] = await self._client.hmget(rules_texts_key(self._tenant), [str(number) for number in numbers])
        try:
            return {number: text.decode() for number, text in zip(numbers, found, strict=True) if text is not None}
        except UnicodeDecodeError as error:
            raise CorruptRecord(f"a stored version of the rules cannot be read: {error}") from error

    async def change(self, read: StoredState, state: VersionState, text: str | None = None) -> StoredState | None:
        """Store the state that follows `read`; None, and nothing is changed, when another one has followed it.

        Args:
            text: of the version `state.last`, when it is new.

        Raises StorageUnavailable: no reply, or too few replicas have it; it may have been stored.
        """
        kept = {info.version for info in state.versions}
        dropped = [info.version for info in read.state.versions if info.version not in kept]
        number = int(read.stamp.partition("-")[0] or 0) + 1
        changed = StoredState(f"{number}-{secrets.token_hex(4)}", state)
        added = ("", "") if text is None else (state.last, text)
        arguments = [read.stamp, changed.stamp, _encode(state), *added, self._tenant, *dropped]
        reply = await _CHANGE.run(
            self._client, [rules_state_key(self._tenant), rules_texts_key(self._tenant), RULES_TENANTS_KEY], arguments, self._replicas
        )
        return changed if reply[0] == b"OK" else None


async def stamps_of_tenants(client: redis.Redis) -> dict[str, str]:
    """The stamp of each tenant that has stored rules of its own. Raises StorageUnavailable."""
    with StorageCalls("rules of tenants"):
        found: Any = await client.hgetall(RULES_TENANTS_KEY)
    return {tenant.decode(): stamp.decode() for tenant, stamp in found.items()}
