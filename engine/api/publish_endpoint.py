"""`POST /v1/notifications`: the endpoint that is called per message, with a fast path around ASGI.

    HttpProtocol --plain, and its body in the same read--> PublishEndpoint, one write
                 --any other request---------------------> AsgiExchange, CrossOrigin, Starlette, routes --> PublishEndpoint

A request is plain when nothing between server and endpoint would have a say in it: it names no origin to check and has no body to wait
for. Both paths call the same `PublishEndpoint` and word a refusal in the same place (`engine.http.error_responses`), so only the cost
differs: with a single item 75 us of an edge's CPU instead of 125.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from engine.api.rule_book import RuleBook
from engine.auth import tokens
from engine.auth.tokens import Authenticator, Principal, RawHeaders
from engine.config import Config
from engine.errors import Unavailable
from engine.gateway.gateway import Gateway
from engine.http.problems import Problem
from engine.publish.drafts import Draft, parse_drafts
from engine.publish.media_types import Content
from engine.publish.results import results_body

PATH: Final = "/v1/notifications"

_PATH: Final = PATH.encode()
_SPECIAL: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"origin", b"sec-fetch-site"))


def plain(method: bytes, url: bytes, http_version: str, headers: RawHeaders) -> bool:
    """Is this request plain? `url` is the request line's target."""
    if url != _PATH or method != b"POST" or http_version != "1.1":
        return False
    return _SPECIAL.isdisjoint(name for name, _ in headers)


def headers(answer: bytes) -> list[tuple[bytes, bytes]]:
    """Those of a 202."""
    return [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]


def response(status_line: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, close: bool) -> bytes:
    """An answer as it goes over the wire; `headers` say its length."""
    lines = [status_line]
    lines += [b"%b: %b\r\n" % header for header in headers]
    if close:
        lines.append(b"connection: close\r\n")
    return b"".join((*lines, b"\r\n", body))


class PublishEndpoint:
    """What the endpoint does, on both paths.

    Args:
        gateway: the edge's.
        authenticator: checks tokens.
        config: the engine's settings.
        rule_book: the rules, for the categories they define.
    """

    def __init__(self, gateway: Gateway, authenticator: Authenticator, config: Config, rule_book: RuleBook) -> None:
        self._gateway = gateway
        self._authenticator = authenticator
        self._config = config
        self._rule_book = rule_book

    def admit(self, headers: RawHeaders, query_string: bytes) -> Principal:
        """Who publishes, before anything of the body is looked at.

        Raises:
            Problem: 401 or 403.
            Overloaded: whatever the body holds would be refused.
        """
        principal = self._authenticator.authenticate(headers, query_string, now_s=self._gateway.wall_ms() / 1000)
        tokens.require(principal, "publish")
        self._gateway.tenant_quotas.check_request(principal)
        self._gateway.request_queue.check_unread(principal.tenant)
        self._gateway.check_room(principal.tenant)
        return principal

    async def publish(self, body: bytes, headers: RawHeaders, principal: Principal) -> bytes:
        """Wait for the request's turn, and publish it; the body of the 202.

        Raises:
            Problem, Overloaded, Unavailable: nothing, or not everything, was accepted (see `engine.gateway.shard_client`).
        """
        content = Content.of(headers)
        await self._gateway.request_queue.enter(body, content, principal.tenant)
        results = await self._gateway.shard_client.post(self.parse(body, content, principal))
        return results_body(results, self._gateway.storage.durability)

    def parse(self, body: bytes, content: Content, principal: Principal) -> list[Draft]:
        """The drafts of a publish request.

        Raises:
            Problem: it is not valid.
            Unavailable: it is not valid without the rules, which this edge could not read.
        """
        gateway, categories = self._gateway, self._rule_book.categories()
        try:
            return parse_drafts(body, content, principal, self._config, gateway.wall_ms(), gateway.shard_client.new_id, categories)
        except Problem as problem:
            if problem.status == 422 and self._rule_book.unread:
                raise Unavailable("the rules file, which defines categories, cannot be used") from problem
            raise
