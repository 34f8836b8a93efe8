"""`GET /v1/digest`, and the digest of a client that comes back: what a user has missed, in a few lines (`engine.features.digest.core`).

    backlog of the shard + bodies of the offline stream -> stage 1, in a thread -> stage 2: the model, `digest_model_ms` at most -> lines

With `since` it is also about acknowledged messages of the inbox that are unread: a device has them, the user has not looked at them.

Read-only: nothing is acknowledged, and every line names its messages, which are delivered as ever. Stage 1 is done for one user at a time
at an edge, as it takes CPU that deliveries need; `digests_waiting_max` wait, with their backlog in memory: a client that comes back
acknowledges what it is sent meanwhile.

On return: a client that asks for it by `digest=1` gets the digest as a frame or event beside the backlog, when at least
`digest_messages_min` messages are pending, the oldest of them for `digest_after_ms`. It is left out when too many wait or storage does not
answer: the backlog says it all.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, ParamSpec, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.api.access import Access
from engine.api.edge_feature import EdgeFeature, EdgePorts
from engine.config import Config
from engine.core.journal.journal_records import StoredMessage
from engine.core.model.constants import TS_MS_MAX
from engine.core.model.routing import mailbox_key
from engine.core.model.step import DIGEST_CHANNEL
from engine.core.policy.profile import NO_PROFILE
from engine.core.wire.records import BacklogIs, BacklogRow
from engine.errors import Overloaded, StorageUnavailable, Unavailable
from engine.features.digest import description
from engine.features.digest.by_mail import CHANNEL, PATH, MailDigests
from engine.features.digest.core.backlog_reads import row_of
from engine.features.digest.core.clusters import Cluster, Sorted, clusters_of, shortened, sort_out
from engine.features.digest.core.missed import Missed, read_missed
from engine.features.digest.core.wording import line_of
from engine.features.digest.digester import DigestModel
from engine.features.policy.link_page import FORM_BYTES_MAX
from engine.features.policy.unsubscribing import LinkKey, stored_key
from engine.features.reach.caught_mails import CaughtMails
from engine.features.reach.email_channel import EmailChannel
from engine.features.reach.store import AddressStore
from engine.gateway.connection import Connection
from engine.gateway.gateway import Gateway
from engine.http.endpoint_table import EndpointTable, json_answer, route
from engine.http.problems import bad_request
from engine.store.pending_bodies import PendingBodies, ReadBodies

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_BUSY_MS: Final = 1000
_THREAD_MIN: Final = 50
"""Messages from which reading them is left to a thread: handing it over costs as much as 10."""


class TextModel(Protocol):
    """Groups texts, see `engine.features.digest.digester`."""

    async def group(self, windows: Sequence[Sequence[str]]) -> list[list[int]] | None: ...


class Digests:
    """The digests of one edge.

    Args:
        gateway: asked for the backlog; its `returned` is called when a client comes back.
        bodies: those that are in no shard's memory.
        model: for what no rule settles.
    """

    def __init__(self, config: Config, gateway: Gateway, bodies: PendingBodies, model: TextModel) -> None:
        self._config = config
        self._gateway = gateway
        self._bodies = bodies
        self._model = model
        self._turn = asyncio.Lock()
        self._waiting = 0
        gateway.returned = self.on_return

    async def answer(self, key: str, query: Mapping[str, str]) -> dict[str, Any]:
        """The answer to `GET /v1/digest?since=&limit=`.

        Raises:
            Problem: 400, a parameter is not valid; 503, storage does not answer.
            Overloaded, Unavailable: too many digests wait; the user's shard does not answer.
        """
        since = _number(query, "since", 0, 0, TS_MS_MAX)
        limit = _number(query, "limit", self._config.digest_lines, 1, self._config.digest_lines_max)
        return await self._one(key, since, limit, returned=False) or {}

    async def for_mail(self, key: str, since_ms: int, until_ms: int) -> dict[str, Any]:
        """The digest by mail of what came between these times. Raises StorageUnavailable, Overloaded, Unavailable."""
        return await self._one(key, since_ms, self._config.digest_lines, returned=False, until=until_ms, channel=DIGEST_CHANNEL) or {}

    def on_return(self, connection: Connection) -> None:
        """A client came back that wants a digest, and something is pending."""
        if self._waiting < self._config.digests_waiting_max:
            connection.gateway.begin(self._tell(connection))

    async def _tell(self, connection: Connection) -> None:
        try:
            digest = await self._one(connection.key, 0, self._config.digest_lines, returned=True)
        except (Overloaded, StorageUnavailable, Unavailable) as error:
            log.debug("no digest for a client that came back: %s", error)
            return
        if digest is not None and not connection.ended:
            connection.write_frame("digest", msgspec.json.encode({"type": "digest", **digest}))

    async def _one(
        self, key: str, since: int, limit: int, *, returned: bool, until: float = math.inf, channel: str = ""
    ) -> dict[str, Any] | None:
        """A digest; None for a client that came back and missed little."""
        if self._waiting >= self._config.digests_waiting_max:
            raise Overloaded("too many digests are being made", _BUSY_MS)
        self._waiting += 1
        try:
            limits = self._config.digest_messages_max, self._config.digest_bytes_max
            backlog = await self._gateway.shard_client.read_backlog(key, *limits, unread=since > 0)
            stored, more = await self._bodies.read(key, backlog.cold, limits[1]) if backlog.cold else ReadBodies([])
            backlog.older |= more
            async with self._turn:
                now_ms = self._gateway.wall_ms()
                size = len(backlog.rows) + len(stored)
                messages, oldest_ms = await _aside(size, _read, backlog, stored, since, until)
                if returned and not self._is_due(len(messages), oldest_ms, now_ms):
                    return None
                found = await _aside(size, sort_out, messages, backlog.profile, backlog.active_ms, now_ms, channel)
            groups = (
                await self._model.group([[missed.text or missed.type for missed in window] for window in found.rest]) if found.rest else []
            )
            return await _aside(size, _digest, found, groups, backlog, since, limit, now_ms)
        finally:
            self._waiting -= 1

    def _is_due(self, count: int, oldest_ms: float, now_ms: int) -> bool:
        return count >= self._config.digest_messages_min and now_ms - oldest_ms >= self._config.digest_after_ms


async def _aside(size: int, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """The result of this work on so many messages; of many, in a thread."""
    return work(*arguments, **named) if size < _THREAD_MIN else await asyncio.to_thread(work, *arguments, **named)


def _read(backlog: BacklogIs, stored: Sequence[StoredMessage], since: int, until: float) -> tuple[list[Missed], float]:
    """What came between these times, and when the first of it came."""
    kept = frozenset(backlog.acked)  # whenever they expire
    rows: dict[int, BacklogRow] = {}
    for one in stored:
        rows[one.seq] = row_of(one.seq, one.envelope, 0 if one.seq in kept else one.expires_ms, one.accepted_ms)
    rows |= {row.seq: row for row in backlog.rows}
    # A body may have been written to the stream between the two reads: then it is in both.
    every = (
        (row.accepted_ms, read_missed(row.body, seq=row.seq, expires_ms=row.expires_ms, collapse=row.collapse, terms=row.terms))
        for row in rows.values()
    )
    # A delayed one happened before it came, and so did one of a source that was behind.
    came = [(came_ms, missed) for accepted_ms, missed in every if since <= (came_ms := accepted_ms or missed.at_ms) < until]
    return [missed for _, missed in came], min((came_ms for came_ms, _ in came), default=math.inf)


def _digest(found: Sorted, groups: list[list[int]] | None, backlog: BacklogIs, since: int, limit: int, now_ms: int) -> dict[str, Any]:
    try:
        clusters = clusters_of(found, groups)
    except ValueError as error:
        log.warning("the model of the digest answered what was not asked: %s", error)
        groups = None
        clusters = clusters_of(found, None)
    language = "zh" if (backlog.profile or NO_PROFILE).locale.lower().partition("-")[0] == "zh" else "en"
    lines = shortened(clusters, limit)
    return {
        "since": since,
        "until": now_ms,
        "messages": sum(len(cluster.messages) for cluster in lines),
        "lines": [_line(cluster, language, backlog.epoch) for cluster in lines],
        "skipped": dict(Counter(reason for _, reason in found.skipped)),
        "older": backlog.older,
        "model": groups is not None and bool(found.rest),
    }


def _line(cluster: Cluster, language: str, epoch: str) -> dict[str, Any]:
    return {
        "text": line_of(cluster, language),
        "intent": cluster.intent.verb,
        "priority": "high" if cluster.high else "normal",
        "count": cluster.count,
        "from": cluster.messages[0].at_ms,
        "to": cluster.messages[-1].at_ms,
        "messages": [{"id": missed.id, "seq": missed.seq, "event_id": f"{epoch}-{missed.seq}"} for missed in cluster.messages],
    }


def _number(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and least <= int(text) <= most):
        raise bad_request(f"`{name}`: a whole number from {least} to {most}")
    return int(text)


def on_edge(ports: EdgePorts) -> EdgeFeature:
    """The feature on an edge."""
    model, addresses = DigestModel(ports.config), AddressStore(ports.redis, ports.config)
    ports.gateway.metrics.degraded["digest"] = lambda: model.reason
    return feature_of(ports, PendingBodies(*ports.stores), model, addresses, stored_key(ports))


def feature_of(ports: EdgePorts, bodies: PendingBodies, model: TextModel, addresses: AddressStore, link_key: LinkKey) -> EdgeFeature:
    """The feature, with this storage and model: clients that come back, and mailboxes, get their digests."""
    gateway = ports.gateway
    digests = Digests(ports.config, gateway, bodies, model)
    email = EmailChannel(ports.config, CaughtMails(ports.redis))
    by_mail = MailDigests(ports.config, gateway.shard_client, gateway.wall_ms, addresses, link_key, digests.for_mail, email)
    gateway.channel_callers[CHANNEL] = by_mail.call
    gateway.times_changed = by_mail.arm
    return EdgeFeature("digest", lambda access: table(access, digests, by_mail), drain=email.close)


def table(access: Access, digests: Digests, by_mail: MailDigests) -> EndpointTable:
    """The endpoints."""

    async def digest(request: Request) -> Response:
        principal = access.authenticate(request, "connect")
        return json_answer(await digests.answer(mailbox_key(principal.tenant, principal.user), request.query_params))

    async def show_link(request: Request) -> Response:
        """`GET /v1/digest/unsubscribe?token=`; the link is all that it needs."""
        return await by_mail.show(request.query_params.get("token", ""), request.headers.get("accept-language", ""))

    async def end(request: Request) -> Response:
        """`POST /v1/digest/unsubscribe?token=`; likewise."""
        await access.bodies.read(request.scope, request.receive, FORM_BYTES_MAX)
        return await by_mail.end(request.query_params.get("token", ""), request.headers.get("accept-language", ""))

    return EndpointTable([route("/v1/digest", GET=digest), route(PATH, GET=show_link, POST=end)], description, (PATH,))
