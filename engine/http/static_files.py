"""Serves the demo page, the admin page and the browser client from memory; the files are read once."""

from __future__ import annotations

import hashlib
import mimetypes
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_PACKAGE: Final = "engine.http"
_FOLDER: Final = "static"
_PAGES: Final = {"/index.html": "/", "/admin.html": "/admin"}

_TYPES: Final = {".js": "text/javascript", ".mjs": "text/javascript", ".html": "text/html", ".css": "text/css", ".svg": "image/svg+xml"}
"""Browsers require these types; the host's table of types may have others."""

_HEADERS: Final = {
    # Revalidated by ETag each time: after an upgrade of the engine a browser must not use the old client.
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; img-src 'self'"
)
_POLICIES: Final = {"/": f"{_POLICY} http: https:", "/admin": _POLICY, "/client/push_worker.js": "default-src 'none'"}
"""The Content-Security-Policy of each page, and of the service worker, which loads nothing. The demo page shows messages, and a message may
name an image of any host."""

_SCRIPT_HEADERS: Final = {"Access-Control-Allow-Origin": "*", "Cross-Origin-Resource-Policy": "cross-origin"}
"""The client is a public module, which pages of other origins may import."""


def routes() -> list[Route]:
    """One route per file under `engine/http/static`; `index.html` is `/`, and `admin.html` is `/admin`."""
    folder = resources.files(_PACKAGE).joinpath(_FOLDER)
    return [_route(path, file) for path, file in sorted(_files(folder, ""))]


def _files(folder: Traversable, prefix: str) -> list[tuple[str, Traversable]]:
    found: list[tuple[str, Traversable]] = []
    for entry in folder.iterdir():
        path = f"{prefix}/{entry.name}"
        if entry.name.startswith((".", "_")):
            continue
        found += _files(entry, path) if entry.is_dir() else [(path, entry)]
    return found


def _route(path: str, file: Traversable) -> Route:
    path = _PAGES.get(path, path)
    body = file.read_bytes()
    suffix = file.name[file.name.rfind(".") :] if "." in file.name else ""
    media_type = _TYPES.get(suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**_HEADERS, "ETag": etag}
    if media_type == "text/html" or path in _POLICIES:
        headers["Content-Security-Policy"] = _POLICIES.get(path, _POLICY)
    if media_type == "text/javascript":
        headers |= _SCRIPT_HEADERS

    async def serve(request: Request) -> Response:
        seen = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
        if etag in seen:
            return Response(status_code=304, headers=headers)
        return Response(body, 200, headers, media_type)

    return Route(path, serve, methods=["GET"])
