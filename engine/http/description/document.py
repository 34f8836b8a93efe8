"""The OpenAPI 3.1 description of the HTTP interface, written by hand for client developers: what `GET /openapi.json` answers.

A module beside this one, or in the folder of a feature, describes some paths and the bodies that they name. The members of messages come
from their table (`engine.http.description.member_schemas`). A test compares all with the
routes: every endpoint is described, and every described one exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine import __version__
from engine.config import Config
from engine.http.description.links import add_links
from engine.http.description.operation import PROBLEMS, Part, problem_response


class Description(Protocol):
    """Some endpoints, OpenAPI 3.1."""

    def paths(self, config: Config, /) -> Part:
        """By method and path, `GET /v1/inbox`, an operation; by path the parameters of all its operations."""

    def schemas(self, config: Config, categories: Sequence[str], /) -> Part:
        """The schemas of their bodies, by name. `categories`: the names of those that are defined; empty where they are not to be told."""


def document(config: Config, categories: Sequence[str], parts: Sequence[Description]) -> Part:
    """The whole document. `categories`: as for `Description.schemas`."""
    paths = _items(_joined(*(part.paths(config) for part in parts)))
    add_links(paths)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Notification engine",
            "version": __version__,
            "description": "Acknowledged, at-least-once notifications over WebSocket, SSE and long polling, under one cursor.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": "publishing"}, {"name": "contact policy"}, {"name": "receiving"}, {"name": "operating"}],
        "security": [{"bearer": []}, {"cookie": []}, {"query": []}],
        "paths": paths,
        "components": {
            "schemas": _joined(*(part.schemas(config, categories) for part in parts)),
            "responses": {name: problem_response(status, text) for status, (name, text) in PROBLEMS.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "notify_token"},
                "query": {"type": "apiKey", "in": "query", "name": "token"},
            },
        },
    }


def _items(described: Part) -> Part:
    """What `Description.paths` returns as path items."""
    items: Part = {}
    for name, value in described.items():
        method, _, path = name.rpartition(" ")
        items.setdefault(path, {})[method.lower() or "parameters"] = value
    return items


def _joined(*parts: Part) -> Part:
    joined = {name: value for part in parts for name, value in part.items()}
    assert len(joined) == sum(map(len, parts)), "something is described twice"
    return joined
