"""Toxiproxy (https://github.com/Shopify/toxiproxy) between two parties: latency, little bandwidth, resets, bytes in pieces."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import httpx

from engine.store.embedded_redis import dying_with_parent
from tests.support.free_port import free_port
from tests.support.waiting import until_done

HOST: Final = "127.0.0.1"


class Toxiproxy:
    """A running server; its proxies are named."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def proxy(self, name: str, upstream_port: int) -> int:
        """Listen for another party; the port."""
        port = free_port()
        body = {"name": name, "listen": f"{HOST}:{port}", "upstream": f"{HOST}:{upstream_port}"}
        (await self._http.post("/proxies", json=body)).raise_for_status()
        return port

    @contextlib.asynccontextmanager
    async def toxic(self, proxy: str, kind: str, **attributes: int) -> AsyncIterator[None]:
        """All bytes of all connections, in both directions, suffer this meanwhile."""
        streams = ("upstream", "downstream")
        for stream in streams:
            body = {"name": stream, "type": kind, "stream": stream, "attributes": attributes}
            (await self._http.post(f"/proxies/{proxy}/toxics", json=body)).raise_for_status()
        try:
            yield
        finally:
            for stream in streams:
                (await self._http.delete(f"/proxies/{proxy}/toxics/{stream}")).raise_for_status()

    @contextlib.asynccontextmanager
    async def down(self, proxy: str) -> AsyncIterator[None]:
        """Every connection ends, and none is accepted."""
        await self._enable(proxy, False)
        try:
            yield
        finally:
            await self._enable(proxy, True)

    async def _enable(self, proxy: str, enabled: bool) -> None:
        (await self._http.post(f"/proxies/{proxy}", json={"enabled": enabled})).raise_for_status()


@contextlib.asynccontextmanager
async def toxiproxy(program: Path) -> AsyncIterator[Toxiproxy]:
    """Run the server."""
    port = free_port()
    with _process(program, port):
        async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}", timeout=30, trust_env=False) as http:

            async def answers() -> Any:
                return (await http.get("/version")).raise_for_status()

            await until_done(answers, httpx.HTTPError)
            yield Toxiproxy(http)


@contextlib.contextmanager
def _process(program: Path, port: int) -> Iterator[None]:
    command = dying_with_parent([program, "-host", HOST, "-port", str(port)])
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={"LOG_LEVEL": "error"})
    try:
        yield
    finally:
        process.kill()
        process.wait(60)
