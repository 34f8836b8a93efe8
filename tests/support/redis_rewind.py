"""A Redis that forgets: everything as it was at an earlier moment, as a replica that lagged has it when it is promoted."""

from __future__ import annotations

from typing import Final

from redis.asyncio import Redis

_DUMP_ALL: Final = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  found[#found + 1] = key
  found[#found + 1] = redis.call('DUMP', key)
  found[#found + 1] = redis.call('PTTL', key)
end
return found
"""


class Moment:
    """All keys of a Redis at the moment of `taken`."""

    def __init__(self, client: Redis, values: dict[bytes, tuple[bytes, int]]) -> None:
        self._client = client
        self.values = values

    @classmethod
    async def taken(cls, client: Redis) -> Moment:
        """Of all keys at one stroke: an engine may be writing."""
        words = iter(await client.eval(_DUMP_ALL, 0))  # type: ignore[arg-type]
        return cls(client, {key: (value, max(ttl_ms, 0)) for key, value, ttl_ms in zip(words, words, words, strict=True)})

    async def come_back(self) -> None:
        """Everything written since is lost, at one stroke."""
        pipeline = self._client.pipeline(transaction=True)
        pipeline.flushall()
        for key, (value, ttl_ms) in self.values.items():
            pipeline.restore(key, ttl_ms, value)
        await pipeline.execute()
