"""The addresses of users, in Redis: a hash per tenant on the first server. Each value names its owner in its checksum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec
import redis.asyncio as redis

from engine.config import Config
from engine.core.model.action import ChannelCap
from engine.core.model.routing import split_key
from engine.core.model.sealed import sealed, unsealed
from engine.errors import StorageUnavailable
from engine.features.reach.core.addresses import NO_ADDRESSES, Addresses, decoder, encode_addresses
from engine.features.reach.keys import channels_asked_key, channels_erased_key, channels_key, channels_told_key
from engine.store.lua import Replicas, Script
from engine.store.storage_calls import StorageCalls

_CHANGE: Final = Script.beside(__file__, "channels_change")
_ASK: Final = Script.beside(__file__, "channels_ask")
_COUNT: Final = Script.beside(__file__, "channels_count")
_ERASE: Final = Script.beside(__file__, "channels_erase")
LINK_S: Final = 3600
"""How long a link of confirmation is good: somebody who gives an address looks into its mailbox at once."""

_LINKS_MS: Final = 2 * LINK_S * 1000  # the clocks of edges and Redis differ
_ROUNDS_MAX: Final = 20
"""Changes of one user at once: a user has some devices."""


class MailAsked(NamedTuple):
    """Whether a mail of confirmation may be sent, see `count_asked`."""

    wait_ms: int  # until it may; 0: now
    at_ms: int  # when it was asked for, by the clock of storage


class CapCount(IntEnum):
    """Whether a step counts in the cap of its channel, see `channels_count.lua`."""

    NO = 0
    NOW = 1
    BEFORE = 2


class AddressStore:
    """The addresses of all users. `client`: of the first server. Every method raises StorageUnavailable."""

    def __init__(self, client: redis.Redis, config: Config) -> None:
        self._client = client
        self._replicas = Replicas.wanted(config)

    async def read(self, key: str) -> Addresses:
        """Those of the user with this mailbox key. A damaged value is none: nothing is sent to an address that may be another's."""
        return read_addresses(await self._stored(key), key)

    async def change(self, key: str, change: Callable[[Addresses], Addresses]) -> Addresses:
        """Keep what `change` makes of the addresses of a user, and return it; durable on return. None leaves nothing.

        `change` is pure: it is called again when somebody else changed them meanwhile.
        """
        changed = await self._change(key, change, "")
        assert changed is not None, "no time was given"
        return changed

    async def confirm(self, key: str, email: str, asked_ms: int) -> bool:
        """Keep a mail address whose link was asked for then; durable on return. False: the user was erased since, and nothing is kept."""
        return await self._change(key, lambda found: msgspec.structs.replace(found, email=email), str(asked_ms)) is not None

    async def _change(self, key: str, change: Callable[[Addresses], Addresses], unless_erased_since: str) -> Addresses | None:
        tenant, user = split_key(key)
        keys = [channels_key(tenant), channels_erased_key(_digest(key))]
        for _ in range(_ROUNDS_MAX):
            stored = await self._stored(key)
            wanted = change(read_addresses(stored, key))
            value = b"" if wanted == NO_ADDRESSES else sealed(encode_addresses(wanted), key.encode())
            reply = await _CHANGE.run(self._client, keys, [user, stored, value, unless_erased_since], self._replicas)
            if reply[0] != b"CHANGED":
                return wanted if reply[0] == b"OK" else None
        raise StorageUnavailable("addresses: they change all the time")

    async def erase(self, key: str) -> None:
        """Forget those of a user; idempotent. Links of before confirm nothing from then on."""
        tenant, user = split_key(key)
        await _ERASE.run(self._client, [channels_key(tenant), channels_erased_key(_digest(key))], [user, _LINKS_MS], self._replicas)

    async def count_asked(self, limits: Mapping[str, int], span_ms: int) -> MailAsked:
        """Count one more mail of confirmation for each of these names, unless one has as many as its limit in `span_ms`."""
        reply = await _ASK.run(self._client, [channels_asked_key(name) for name in limits], [span_ms, *limits.values()])
        return MailAsked(int(reply[1]), int(reply[2]))

    async def uncount_asked(self, names: Iterable[str]) -> None:
        """Count one mail less for each of these names: it was not sent."""
        await _ASK.run(self._client, [channels_asked_key(name) for name in names], [0])

    async def count_told(self, key: str, channel: str, cap: ChannelCap, step: str) -> CapCount:
        """Count a step that the user is told of; NO where the cap is reached. One that counts already counts from now on."""
        arguments = [_digest(step), cap.most, cap.span_ms]
        reply = await _COUNT.run(self._client, [_told_key(key, channel, cap)], arguments, self._replicas)
        return CapCount(int(reply[1]))

    async def uncount_told(self, key: str, channel: str, cap: ChannelCap, step: str) -> None:
        """The user was not told of the step, which counts no more."""
        with StorageCalls("addresses"):
            await self._client.zrem(_told_key(key, channel, cap), _digest(step))

    async def _stored(self, key: str) -> bytes:
        tenant, user = split_key(key)
        with StorageCalls("addresses"):
            stored: Any = await self._client.hget(channels_key(tenant), user)
        return stored or b""


def _told_key(key: str, channel: str, cap: ChannelCap) -> str:
    return channels_told_key(_digest(f"{key}\n{cap.category}\n{channel}"))


def _digest(key: str) -> str:
    return blake2b(key.encode(), digest_size=16).hexdigest()


def read_addresses(stored: bytes, key: str) -> Addresses:
    """The addresses in a stored value of this owner; none where there is no value, or a damaged one."""
    try:
        return decoder.decode(unsealed(stored, key.encode()))
    except msgspec.DecodeError:
        return NO_ADDRESSES
