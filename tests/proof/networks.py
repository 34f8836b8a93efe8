"""Bad networks: Toxiproxy between clients and the edge, then between the engine and Redis, under traffic and the checker of histories."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.support.chaos.toxiproxy import Toxiproxy, toxiproxy
from tests.support.chaos.traffic import Traffic
from tests.support.free_port import free_port
from tests.support.redis_server import redis_to_break
from tests.support.running_engine import running_engine

PLACES: Final = ("edge", "redis")
STRUCK_S: Final = 5.0
"""How long each fault lasts: longer than a link's lease."""


class Toxic(NamedTuple):
    """A fault of the network. `kind` and `attributes` are Toxiproxy's; "" ends and refuses connections."""

    what: str
    kind: str = ""
    attributes: dict[str, int] = {}  # noqa: RUF012 - never changed


TOXICS: Final = (
    Toxic("300 ms each way, give or take 200", "latency", {"latency": 300, "jitter": 200}),
    Toxic("20 kB/s a connection", "bandwidth", {"rate": 20}),
    Toxic("7 bytes at a time", "slicer", {"average_size": 7, "size_variation": 3, "delay": 20}),
    Toxic("each connection reset after 500 ms", "reset_peer", {"timeout": 500}),
    Toxic("each connection silent, closed after 2 s", "timeout", {"timeout": 2000}),
    Toxic("each connection closed after 20 kB", "limit_data", {"bytes": 20_000}),
    Toxic("no connection"),
)


def program() -> Path | None:
    """Toxiproxy, which `make proof` builds where Go is installed. Its module calls the program `server`."""
    found = shutil.which("server", path=str(Path(__file__).parents[2] / ".venv" / "go"))
    return Path(found) if found else None


async def endure(folder: Path, toxiproxy_server: Path, tell: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Strike a loaded engine with every toxic at every place, and close the books of `Traffic`."""
    with redis_to_break() as server:
        server.stop()
        redis_port = free_port()
        server.options += ["--port", str(redis_port)]
        server.start()
        async with toxiproxy(toxiproxy_server) as proxies:
            url = f"redis://127.0.0.1:{await proxies.proxy('redis', redis_port)}/0"
            with running_engine("--shards", "2", "--redis", url, env={"ENGINE_LOG_LEVEL": "ERROR"}, folder=folder) as engine:
                edge_port = await proxies.proxy("edge", int(engine.url.rpartition(":")[2]))
                async with Traffic(f"http://127.0.0.1:{edge_port}", engine.token, "toxic", online=12, away=2, rate=100) as traffic:
                    for place in PLACES:
                        for toxic in TOXICS:
                            tell(f"{place}: {toxic.what}: {await _strike(proxies, place, toxic, traffic)}")
                    return await traffic.finish()


async def _strike(proxies: Toxiproxy, place: str, toxic: Toxic, traffic: Traffic) -> str:
    traffic.recorder.disturbed()
    began_s, repeated = time.monotonic(), traffic.retries
    async with proxies.toxic(place, toxic.kind, **toxic.attributes) if toxic.kind else proxies.down(place):
        await asyncio.sleep(STRUCK_S)
    back_s = await traffic.flowing(time.monotonic())
    silence_s = traffic.silence_s(began_s, time.monotonic())
    return f"back after {back_s:.1f} s, longest silence {silence_s:.1f} s, {traffic.retries - repeated} requests repeated"
