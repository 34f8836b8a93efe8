"""Operating: status, scaling."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from engine.config import Config
from engine.http.description.json_schema import Schema, answer_of, object_of, ref
from engine.http.description.operation import Part, json_of, operation, parameter

by_admin = partial(operation, "operating", "admin")
by_operator = partial(operation, "operating", "operator")


def paths(_config: Config) -> Part:
    """See `Description`."""
    return {
        "GET /v1/status": by_admin(
            "status",
            "For the scope `operator` every actor and the totals; for `admin` the figures of its tenant.",
            {200: ("Now.", {"application/json": {"schema": {"oneOf": [ref("Status"), ref("TenantStatus")]}}})},
        ),
        "/v1/edges/{edge}/drain": [parameter("edge", "path", "Its name, such as `edge-0`.", required=True)],
        "POST /v1/edges/{edge}/drain": by_operator(
            "drainEdge",
            "Let an edge leave its clients to the other edges, and start anew.",
            {202: ("It has begun.", json_of("Drain"))},
            (404, 409),
        ),
        "POST /v1/scale": by_operator(
            "scale",
            "Run with other numbers of actors, while the engine serves. Repeating it changes nothing.",
            {202: ("Stored, and begun.", json_of("Scaling"))},
            (409,),
            body=json_of("Numbers"),
        ),
        "POST /v1/rebalance": by_operator(
            "rebalance", "Move slots from busy shards to idle ones.", {202: ("Stored, and begun.", json_of("Scaling"))}
        ),
        "POST /v1/upgrade": by_operator(
            "upgrade",
            "Replace every process by one that runs the code of its node then, one after another.",
            {202: ("Stored, and begun.", json_of("Scaling"))},
        ),
    }


def schemas(_config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """See `Description`."""
    return {
        "Drain": answer_of(
            "An edge that leaves its clients to the others.",
            edge={"type": "string"},
            connections={"type": "integer", "minimum": 0, "title": "when it began"},
        ),
        "Numbers": {
            "type": "object",
            "description": "How many actors there are to be; a number that is left out stays as it is.",
            "properties": {
                "shards": {"type": "integer", "minimum": 1, "maximum": 32},
                "schedulers": {"type": "integer", "minimum": 1, "maximum": 16},
                "edges": {"type": "integer", "minimum": 1, "maximum": 64},
                "force": {"type": "boolean", "default": False, "description": "Also more than the nodes carry, which is `409` otherwise."},
            },
            "anyOf": [{"required": [name]} for name in ("shards", "schedulers", "edges")],
            "additionalProperties": False,
        },
        "Scaling": _scaling(),
        "Status": _status(),
        "TenantStatus": _tenant_status(),
    }


def _status() -> Schema:
    row = {"type": "object", "properties": {"index": {"type": "integer"}, "alive": {"type": "boolean"}}}
    return object_of(
        "A row per actor, and totals.",
        required=("version", "shards", "edges", "schedulers", "totals"),
        version={"type": "string"},
        ready={"type": "boolean"},
        shards={"type": "array", "items": row},
        edges={"type": "array", "items": row},
        schedulers={"type": "array", "items": row},
        controller={"type": "object"},
        redis={"type": "object"},
        scaling=_scaling(),
        totals={"type": "object"},
    )


def _scaling() -> Schema:
    counts = {"type": "object", "properties": {role: {"type": "integer", "minimum": 0} for role in ("shards", "schedulers", "edges")}}
    names = {"type": "array", "items": {"type": "string"}}
    return object_of(
        "How many actors are wanted, how many there are, and what is under way.",
        settled={"type": "boolean", "title": "everything is as wanted"},
        wanted=counts,
        by={"type": "string", "title": "who wanted it"},
        wanted_at_ms={"type": "integer"},
        have=counts,
        sharing={"enum": ["", "even", "load"], "title": "what moving slots is to reach"},
        slots_version={"type": "integer"},
        slots_left={"type": "integer", "title": "to be moved"},
        slots_moved={"type": "integer", "title": "since the controller started"},
        moves={"type": "array", "items": {"type": "object"}},
        joining=names,
        waiting={
            "type": "array",
            "items": {"type": "object"},
            "title": "actors without a process, while no node has a place free for them",
        },
        leaving=names,
        upgrading={**names, "title": "actors whose processes an upgrade has still to replace"},
        stopped={"type": "string", "title": "why the last upgrade ended before every process was replaced"},
        formats={"type": "integer", "title": "that are written: the newest that every process reads"},
        draining={**names, "title": "actors on nodes that are to go"},
        autoscale={"enum": ["off", "dry run", "on"]},
        decisions={"type": "array", "items": {"type": "object"}, "title": "of the autoscaler, the last first"},
    )


def _tenant_status() -> Schema:
    return answer_of(
        "Figures of one tenant.",
        tenant={"type": "string"},
        connections={"type": "integer", "minimum": 0, "title": "open at the edges that answer"},
        users={"type": "integer", "minimum": 0, "title": "in storage"},
        stored_bytes={"type": "integer", "minimum": 0, "title": "of their mailboxes and pending messages, as of the last checkpoint"},
        topics={"type": "integer", "minimum": 0, "title": "different ones that users are subscribed to"},
        signal_names={"type": "integer", "minimum": 0, "title": "names of counter signals"},
        quotas={"type": "object", "additionalProperties": {"type": "integer"}, "description": "Those in force, by their settings."},
    )
