"""The OpenAPI 3.1 description of the HTTP interface, written by hand for client developers: what `GET /openapi.json` answers.

Each `..._paths` beside this module has some paths, and the schemas of their bodies; features bring theirs. A test compares all with the
routes: every endpoint is described, and every described one exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine import __version__
from engine.config import Config
from engine.http.description import (
    explain_paths,
    inbox_paths,
    inspect_paths,
    operate_paths,
    preference_paths,
    publish_paths,
    receive_paths,
    rules_paths,
    subscription_paths,
    timer_paths,
)
from engine.http.description.operation import PROBLEMS, Part, problem_response


class Described(Protocol):
    """Some paths, and the schemas of their bodies; see `engine.http.endpoint_table`."""

    @property
    def paths(self) -> Part: ...

    @property
    def schemas(self) -> Part: ...


def document(config: Config, categories: Sequence[str], tables: Sequence[Described]) -> Part:
    """The whole document.

    Args:
        config: the engine's settings.
        categories: the names of those that are defined; empty where they are not to be told.
        tables: of the features.
    """
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
        "paths": _joined(
            publish_paths.paths(config),
            timer_paths.paths(config),
            subscription_paths.paths(config),
            preference_paths.paths(config),
            receive_paths.paths(config),
            inbox_paths.paths(config),
            explain_paths.paths(config),
            operate_paths.paths(),
            inspect_paths.paths(config),
            rules_paths.paths(config),
            *(table.paths for table in tables),
        ),
        "components": {
            "schemas": _joined(
                publish_paths.schemas(config, categories),
                timer_paths.schemas(config),
                subscription_paths.schemas(config),
                preference_paths.schemas(config, categories),
                receive_paths.schemas(config),
                inbox_paths.schemas(config),
                explain_paths.schemas(),
                operate_paths.schemas(config),
                inspect_paths.schemas(config),
                rules_paths.schemas(config),
                *(table.schemas for table in tables),
            ),
            "responses": {name: problem_response(status, text) for status, (name, text) in PROBLEMS.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "notify_token"},
                "query": {"type": "apiKey", "in": "query", "name": "token"},
            },
        },
    }


def _joined(*parts: Part) -> Part:
    joined = {name: value for part in parts for name, value in part.items()}
    assert len(joined) == sum(map(len, parts)), "something is described twice"
    return joined
