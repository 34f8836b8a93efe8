"""`POST /v1/notifications`: the endpoint that is called per message, with a fast path around ASGI.

    HttpProtocol --plain, and its body in the same read--> PublishEndpoint, one write
                   (with a kept head, it is not even parsed)
                 --any other request---------------------> AsgiExchange, CrossOrigin, Starlette, routes --> PublishEndpoint

A request is plain when nothing between server and endpoint would have a say in it: it names no origin to check and has no body to wait
for. Both paths call the same `PublishEndpoint` and word a refusal in the same place (`engine.http.error_responses`), so only the cost
differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from engine.auth import tokens
from engine.auth.tokens import Authenticator, BearerToken, Principal, RawHeaders
from engine.config import Config
from engine.core.model.defined_categories import DefinedCategories
from engine.errors import Overloaded, Unavailable
from engine.gateway.gateway import Gateway
from engine.http.problems import Problem
from engine.publish.drafts import Draft, parse_drafts
from engine.publish.media_types import Content
from engine.publish.request_trace import RequestTrace
from engine.publish.results import ItemResult, results_body, unarmed
from engine.publish.type_retention import keep_by_type

PATH: Final = "/v1/notifications"

_PATH: Final = PATH.encode()
_SPECIAL: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"origin", b"sec-fetch-site"))


def plain(method: bytes, url: bytes, http_version: str, headers: RawHeaders) -> bool:
    """Is this request plain? `url` is the request line's target."""
    if url != _PATH or method != b"POST" or http_version != "1.1":
        return False
    return _SPECIAL.isdisjoint(name for name, _ in headers)


class PublishHead(NamedTuple):
    """What the head of a publish request says."""

    token: BearerToken
    content: Content

    @classmethod
    def of(cls, headers: RawHeaders, query_string: bytes) -> PublishHead:
        """That of a request with these headers; their names are in lower case."""
        return cls(BearerToken.of(tokens.find_token(headers, query_string)), Content.of(headers))


def headers(answer: bytes) -> list[tuple[bytes, bytes]]:
    """Those of a 202."""
    return [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]


def response(status_line: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, close: bool) -> bytes:
    """An answer as it goes over the wire; `headers` say its length."""
    lines = [status_line, *map(b"%b: %b\r\n".__mod__, headers)]
    if close:
        lines.append(b"connection: close\r\n")
    return b"".join((*lines, b"\r\n", body))


class PublishEndpoint:
    """What the endpoint does, on both paths."""

    def __init__(self, gateway: Gateway, authenticator: Authenticator, config: Config) -> None:
        self._gateway = gateway
        self._authenticator = authenticator
        self._config = config

    def admit(self, head: PublishHead) -> Principal:
        """Who publishes, before anything of the body is looked at.

        Raises:
            Problem: 401, 403, or 429 by a quota.
            Overloaded: storage is nearly full.
        """
        principal = self._publisher(head)
        self.check(principal)
        return principal

    def check(self, principal: Principal) -> None:
        """Count a request of this publisher. Raises as `admit` does for one whose token is good."""
        self._gateway.tenant_quotas.check_request(principal)
        self._gateway.check_room(principal.tenant)

    def _publisher(self, head: PublishHead) -> Principal:
        principal = self._authenticator.bearer(head.token, self._gateway.wall_ms() / 1000)
        tokens.require(principal, "publish")
        return principal

    def check_unread(self, head: PublishHead) -> None:
        """For a request whose body is not here yet: raise as `admit` does by the token, or Overloaded: any body would be refused."""
        self._gateway.request_queue.check_unread(self._publisher(head).tenant)

    def takes_unread(self, head: PublishHead) -> bool:
        """Would `check_unread` let it pass now? Refuses and counts nothing."""
        try:
            return self._gateway.request_queue.takes_unread(self._publisher(head).tenant)
        except Problem:
            return False

    async def publish(self, body: bytes, content: Content, principal: Principal) -> bytes:
        """Wait for the request's turn, and publish it; the body of the 202.

        Raises:
            Problem, Overloaded, Unavailable: nothing, or not everything, was accepted (see `engine.gateway.shard_client`).
        """
        gateway, trace = self._gateway, None
        if content.traceparent or gateway.begin_trace is not None:
            trace = gateway.trace_of(content.traceparent, principal.tenant)
        try:
            turn = gateway.request_queue.enter(body, content, principal.tenant)
            if turn is not None:
                await turn
            defined = gateway.category_book.in_use(principal.tenant)
            drafts = drafts_of(gateway, self._config, body, content, principal, defined, trace)
            if defined.linked or defined.steps:
                results = await post_drafts(gateway, drafts, defined)
            else:
                results = await gateway.shard_client.post(drafts)
        except Exception as error:
            if trace is not None:
                trace.failed(error)
            raise
        if trace is not None:
            trace.answered(results)
        return results_body(results, gateway.storage.durability)


async def post_drafts(gateway: Gateway, drafts: list[Draft], defined: DefinedCategories) -> list[ItemResult]:
    """Publish drafts whose categories are the `defined` ones, and arm the steps of these. Raises as `ShardClient.post` does."""
    if defined.linked:
        await gateway.category_book.link(drafts, defined.linked)
    try:
        results = await gateway.shard_client.post(drafts)
    except Problem as problem:
        if defined.steps and "results" in problem.members:  # nobody needs to repeat what was accepted beside what was not
            await _arm(gateway, drafts, msgspec.convert(problem.members["results"], list[ItemResult]), defined)
        raise
    if defined.steps:
        await _arm(gateway, drafts, results, defined)
    return results


async def _arm(gateway: Gateway, drafts: Sequence[Draft], results: Sequence[ItemResult], defined: DefinedCategories) -> None:
    """Arm the steps of the drafts that were accepted. Raises Problem, with the results: a publisher may have no other ids."""
    try:
        await gateway.arm_steps(drafts, results, defined.steps)
    except (Overloaded, Unavailable) as error:
        raise unarmed(results, drafts, defined.steps, error) from error


def drafts_of(
    gateway: Gateway,
    config: Config,
    body: bytes,
    content: Content,
    principal: Principal,
    defined: DefinedCategories,
    trace: RequestTrace | None = None,
) -> list[Draft]:
    """The drafts of a publish request, whose items may name the `defined` categories.

    Raises:
        Problem: it is not valid.
        Unavailable: it is not valid without the rules, which this edge could not read.
    """
    default = defined.default_terms(principal.tenant) if defined.default_categories else None
    try:
        new_id = gateway.shard_client.new_id
        drafts = parse_drafts(body, content, principal, config, gateway.wall_ms(), new_id, defined.categories, trace, default)
    except Problem as problem:
        if problem.status == 422 and gateway.category_book.unread():
            raise Unavailable("the rules file, which defines categories, cannot be used") from problem
        raise
    if defined.kept:
        keep_by_type(drafts, defined.kept)
    return drafts
