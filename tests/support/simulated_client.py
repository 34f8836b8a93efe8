"""The simulator's server as redis-py shows it to scripts: every command at once, on a clock that a test sets."""

from __future__ import annotations

from typing import Any

from redis.exceptions import ResponseError

from tests.sim.redis import MiniRedis


class SimulatedClient:
    """One server, and the client that the engine's stores get."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.server = MiniRedis(lambda: self.now_ms)

    async def execute_command(self, *command: Any) -> Any:
        reply = self._reply(command)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def pipeline(self, *, transaction: bool) -> _Pipeline:
        assert not transaction
        return _Pipeline(self)

    def _reply(self, command: tuple[Any, ...]) -> Any:
        try:
            return self.server.execute(*command)
        except ResponseError as error:
            return error


class _Pipeline:
    """Commands of one round trip."""

    def __init__(self, client: SimulatedClient) -> None:
        self._client = client
        self._commands: list[tuple[Any, ...]] = []

    def execute_command(self, *command: Any) -> None:
        self._commands.append(tuple(word for part in command for word in (part.split() if part == "SCRIPT LOAD" else [part])))

    async def execute(self, *, raise_on_error: bool) -> list[Any]:
        assert not raise_on_error
        return [self._client._reply(command) for command in self._commands]
