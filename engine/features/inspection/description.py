"""The listings for operators beside the status (`engine.features.inspection.endpoints`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from engine.config import Config
from engine.features.inspection.core import POINTS_MAX, LoadPoint
from engine.features.user_data.description import CONNECTION, OLDEST
from engine.http.description.json_schema import COUNT, TIME_MS, Schema, answer_of, rows
from engine.http.description.operation import Part, json_of, operation

_TEXT: Final[Schema] = {"type": "string"}


def paths(config: Config) -> Part:
    """See `Description`."""

    def listing(name: str, summary: str, schema: str) -> Part:
        return operation("operating", "operator", name, summary, {200: ("As of now.", json_of(schema))})

    return {
        "GET /v1/load": listing("load", "The load of the last hour, a point every few seconds, the oldest first.", "LoadHistory"),
        "GET /v1/tenants": listing("listTenants", "What the largest tenants have in storage, and the quotas.", "TenantList"),
        "GET /v1/quarantine": listing("quarantine", "Stored records that could not be read, the newest first.", "QuarantineList"),
        "GET /v1/slow-clients": listing("slowClients", "Connections whose clients do not acknowledge, the worst first.", "SlowClientList"),
    }


def schemas(config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """See `Description`."""
    return {
        "LoadHistory": answer_of(
            "The load of the last hour, the oldest point first.",
            every_ms=COUNT,
            points={"type": "array", "items": _load_point(), "maxItems": POINTS_MAX},
        ),
        "TenantList": answer_of(
            "What the largest tenants have in storage, and the quotas in force.",
            tenants=rows(tenant=_TEXT, users=COUNT, stored_bytes=COUNT, topics=COUNT, signal_names=COUNT),
            quotas={"type": "object", "additionalProperties": {"type": "integer"}},
        ),
        "QuarantineList": answer_of(
            "Stored records that could not be read.",
            total=COUNT,
            records=rows(part=_TEXT, origin=_TEXT, at=TIME_MS, bytes=COUNT, beginning=_TEXT, key=_TEXT),
        ),
        "SlowClientList": answer_of(
            "Connections whose oldest unacknowledged message is older than `slow_ms`, and those with messages that used up their tries.",
            slow_ms=COUNT,
            clients=rows(optional=("oldest",), tenant=_TEXT, user=_TEXT, behind=COUNT, **CONNECTION, oldest=OLDEST),
        ),
    }


def _load_point() -> Schema:
    numbers: dict[str, Schema] = {
        field.name: {"type": "number" if field.name.endswith(("_ms", "_pct")) else "integer", "minimum": 0}
        for field in msgspec.structs.fields(LoadPoint)
    }
    text = "The load of `over_ms` up to `at`; counts of that time, other figures as of its end. A figure that is 0 or unknown is left out."
    return answer_of(text, optional=tuple(numbers.keys() - {"at", "over_ms"}), **numbers)
