"""A Redis that forgets: everything as it was at an earlier moment, as a replica that lagged has it when it is promoted."""

from __future__ import annotations

from redis.asyncio import Redis


class Moment:
    """All keys of a Redis at the moment of `taken`."""

    def __init__(self, client: Redis, values: dict[bytes, tuple[bytes, int]]) -> None:
        self._client = client
        self.values = values

    @classmethod
    async def taken(cls, client: Redis) -> Moment:
        values = {}
        for key in await client.keys("*"):
            values[key] = (await client.dump(key), max(await client.pttl(key), 0))
        return cls(client, values)

    async def come_back(self) -> None:
        """Everything written since is lost, at one stroke."""
        pipeline = self._client.pipeline(transaction=True)
        pipeline.flushall()
        for key, (value, ttl_ms) in self.values.items():
            pipeline.restore(key, ttl_ms, value)
        await pipeline.execute()
