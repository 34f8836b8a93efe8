"""Links of the OpenAPI description: which operation takes as a path parameter what another one answers.

A new operation with one of these parameters is linked without a further word.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from engine.http.description.operation import Part


class Origin(NamedTuple):
    """An answer that has the values of parameters."""

    operation: str
    status: str
    values: dict[str, str]  # JSON Pointers into the body, by parameter


_RESULT: Final = "/results/0"
ORIGINS: Final = {
    "sid": Origin("publish", "202", {"sid": f"{_RESULT}/scheduled_id"}),
    "message": Origin("publish", "202", {"message": f"{_RESULT}/id", "user": f"{_RESULT}/user"}),
    "question": Origin("publish", "202", {"question": f"{_RESULT}/id", "user": f"{_RESULT}/user"}),
    "letter": Origin("listDeadLetters", "200", {"letter": "/dead_letters/0/letter", "tenant": "/tenant"}),
}
"""Where the values of a path parameter come from, by its name."""


def add_links(paths: Part) -> None:
    """Write into each answer that has them the links to the operations that take its values."""
    operations = {
        operation["operationId"]: (operation, [*item.get("parameters", ()), *operation.get("parameters", ())])
        for operation, item in _operations(paths)
    }
    for name, (_, parameters) in operations.items():
        places = {parameter["name"]: parameter["in"] for parameter in parameters}
        for origin in (ORIGINS[one] for one, place in places.items() if place == "path" and one in ORIGINS):
            if origin.operation not in operations:
                continue
            response = operations[origin.operation][0]["responses"][origin.status]
            values = {f"{places[one]}.{one}": f"$response.body#{pointer}" for one, pointer in origin.values.items() if one in places}
            response.setdefault("links", {})[name] = {"operationId": name, "parameters": values}


def _operations(paths: Part) -> Iterator[tuple[Part, Part]]:
    for item in paths.values():
        for operation in item.values():
            if isinstance(operation, dict):
                yield operation, item
