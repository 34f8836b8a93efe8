"""`POST /v1/ray-events/{secret}`: takes what Ray's Event Export posts. The feature on an edge.

    Ray  --array of events-->  news are stored  --200-->  Ray
                                     |
                               the watcher tells them

Ray waits 3 s for the answer, and repeats a batch that was not answered with 2xx for ever, without another one meanwhile. It sends no
`Authorization`. So the secret is in the path; the edge answers as soon as storage has the news; a single event that cannot be read is
counted and passed over; and only a client of this machine or of a private network may post, not through a proxy.

The edge dies before the answer: Ray posts the batch again. The watcher makes one event of each death, however often it is stored.
"""

from __future__ import annotations

import hmac
import logging
from ipaddress import ip_address
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.config import Config
from engine.errors import Invalid
from engine.features.ray_events import description
from engine.features.ray_events.core.exported import Batch, read_batch
from engine.features.ray_events.figures import METRICS
from engine.features.ray_events.store import RayEventsStore
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.http.problems import RETRY_AFTER_S, forbidden, not_found, unavailable
from engine.publish import media_types
from engine.transports.asgi import TRANSPORT

log = logging.getLogger(__name__)

PATH: Final = "/v1/ray-events/{secret}"
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip")


class ExportedEvents:
    """Takes exported events, on one edge.

    Args:
        store: where the watcher finds them.
    """

    def __init__(self, config: Config, store: RayEventsStore) -> None:
        self._config = config
        self._store = store
        self._received = 0
        self._deaths = 0
        self._unreadable = 0

    def stats(self) -> dict[str, Any]:
        """Counters by name."""
        return {"received": self._received, "deaths": self._deaths, "unreadable": self._unreadable}

    def check(self, request: Request) -> None:
        """Raises Problem: 404, the secret is not that of the setting; 403, the client is not in a private network."""
        secret, given = self._config.ray_events_secret, request.path_params["secret"]
        if not secret or not hmac.compare_digest(secret.encode(), given.encode(errors="replace")):
            raise not_found("there is no such thing; the setting ray_events_secret has the last part of this path")
        if any(name in request.headers for name in _FORWARDED) or not _is_near(_client_host(request)):
            raise forbidden("events of Ray are taken from this machine and from private networks, and not through a proxy")

    async def take(self, body: bytes) -> Batch:
        """Store the news of a posted array. Raises Problem: 422 or 503."""
        try:
            batch = read_batch(body)
        except Invalid as error:
            raise media_types.unacceptable(error) from None
        if batch.deaths and not await self._store.append(batch.deaths):
            raise unavailable("too many events wait for the watcher", RETRY_AFTER_S)
        if batch.unreadable and not self._unreadable:
            log.error("%d events of Ray cannot be read: its version is not known", batch.unreadable)
        self._received += batch.count
        self._deaths += len(batch.deaths)
        self._unreadable += batch.unreadable
        return batch


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    return feature_of(ports.config, RayEventsStore(ports.redis, ports.config))


def feature_of(config: Config, store: RayEventsStore) -> EdgeFeature:
    """The feature, of its parts."""
    exported = ExportedEvents(config, store)
    stats = exported.stats if config.ray_events_secret else None
    return EdgeFeature("ray_events", lambda access: table(access, exported), stats=stats, metrics=METRICS)


def table(access: Access, exported: ExportedEvents) -> EndpointTable:
    """The endpoint."""

    async def post(request: Request) -> Response:
        """`POST /v1/ray-events/{secret}`."""
        exported.check(request)
        body = await access.bodies.read(request.scope, request.receive, access.config.ray_events_bytes_max)
        batch = await exported.take(body)
        return json_answer({"events": batch.count, "news": len(batch.deaths), "unreadable": batch.unreadable})

    return EndpointTable([route(PATH, POST=post)], description)


def _client_host(request: Request) -> str:
    transport = request.scope["extensions"].get(TRANSPORT, {}).get("transport")
    peer = None if transport is None else transport.get_extra_info("peername")
    return str(peer[0]) if peer else ""


def _is_near(host: str) -> bool:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (address if mapped is None else mapped).is_private
