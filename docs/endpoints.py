"""Writes docs/ENDPOINTS.md, the index of all endpoints: `python -m docs.endpoints`. A test compares the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from engine.config import Config
from tests.support.described import described

_HEAD: Final = """\
# Endpoints

Find an endpoint, and the scope that its token needs. `engine token NAME --scope SCOPE` makes a
token. [PROTOCOL.md](../PROTOCOL.md) has the rules of each; a running engine serves parameters,
bodies and answers as OpenAPI 3.1 at `/openapi.json`.

- A token that names no scope has `connect`, for its own user. Where an endpoint takes `?user=`, the
  scopes `publish` and `admin` reach other users of the tenant.
- Where an endpoint takes `?tenant=`, the scope `operator` does in place of `admin`, for any tenant.
  It does in place of `metrics` too.

`python -m docs.endpoints` makes this page.
"""
_SCOPE: Final = re.compile(r"Needs the scope `(\w+)`\.")


def reference() -> str:
    """The page."""
    document = described(Config(), ())
    tags = [tag["name"] for tag in document["tags"]]
    return "\n".join([_HEAD, *(line for tag in tags for line in _section(tag, document["paths"]))])


def _section(tag: str, paths: dict[str, Any]) -> Iterator[str]:
    yield f"## {tag.capitalize()}\n"
    yield "| endpoint | scope | |"
    yield "|---|---|---|"
    for path, methods in sorted(paths.items()):
        for method, operation in methods.items():
            if method != "parameters" and operation["tags"] == [tag]:
                yield f"| `{method.upper()} {path}` | {_scope(operation)} | {operation['summary']} |"
    yield ""


def _scope(operation: dict[str, Any]) -> str:
    """The scope in code; `none` in words where no token is asked for."""
    found = _SCOPE.search(operation.get("description", ""))
    return f"`{found[1]}`" if found else "none"


if __name__ == "__main__":
    Path(__file__).with_name("ENDPOINTS.md").write_text(reference())
