"""Endpoints as tables: each feature, and the kernel itself, brings the routes of its paths with their description."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute

from engine.http.description.document import Description
from engine.http.routed_path import ENCODED_SLASH

Endpoint = Callable[[Request], Awaitable[Response]]

_encode: Final = msgspec.json.Encoder().encode


class EndpointTable(Struct, frozen=True):
    """Some endpoints of an edge.

    Attributes:
        routes: for Starlette.
        description: of them, a module.
        mail_links: the paths among them that links in mails lead to: pages of any site may open them and post to them. Their token is
            all that counts; no cookie is looked at.
    """

    routes: Sequence[Route | WebSocketRoute]
    description: Description
    mail_links: Sequence[str] = ()


class _SegmentConvertor(PathConvertor):
    """One segment of the path, also with line breaks: what a name may hold is for its endpoint to say, with more than a 404."""

    regex = r"[^/]*"

    def convert(self, value: str) -> str:
        """With the slashes that were encoded."""
        return value.replace(ENCODED_SLASH, "/")


class _RestConvertor(_SegmentConvertor):
    """The rest of the path."""

    regex = r"(?s:.*)"


register_url_convertor("segment", _SegmentConvertor())
register_url_convertor("rest", _RestConvertor())


def route(path: str, **endpoints: Endpoint) -> Route:
    """One route for all methods of a path, so that `Allow` of a 405 has all of them."""

    async def dispatch(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, dispatch, methods=list(endpoints))


def without_head(found: Route) -> Route:
    """The route without HEAD: one that attaches, acknowledges or waits like its GET would surprise everyone who sends one to look."""
    if found.methods:
        found.methods.discard("HEAD")
    return found


def json_answer(value: Any, status: int = 200) -> Response:
    """An answer that no cache keeps."""
    return Response(_encode(value), status, {"Cache-Control": "no-store"}, "application/json")
