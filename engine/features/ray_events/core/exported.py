"""Events of Ray's Event Export: which of them are news, and what they say.

Ray posts JSON arrays of `RayEvent` (src/ray/protobuf/public/events_base_event.proto), in camel case, with ids as base64 of their bytes.
Most say that everything goes well. News are the unexpected death of an actor, of a node, and of a worker that ran out of memory.

Ray tells the same death in several events with different ids of their own (2.60: an actor twice, half a second apart). So the identity of
a death is that of its subject, and not `eventId`.

Another version of Ray may have other members. Then the event is counted as unreadable, and the others of its batch are taken.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from engine.errors import Invalid

ResourceKind = Literal["actor", "node", "worker"]

DETAIL_CHARS: Final = 1000
_NAME_CHARS: Final = 200
_JOB_BYTES: Final = 4
"""The last bytes of an actor's id are those of its job."""

_INTERNAL: Final = "SUPERVISOR_ACTOR_RAY_NAMESPACE"
"""Namespace of the actors that run submitted jobs: their ends are told as those of the jobs."""

_LOST_NODE: Final = frozenset({"UNSPECIFIED", "UNEXPECTED_TERMINATION", "AUTOSCALER_DRAIN_PREEMPTED"})
_OTHER_CAUSES: Final = ("creation_task_failure_context", "runtime_env_failed_context", "actor_unschedulable_context", "oom_context")


_NONE: Final = Raw()


class Death(Struct, frozen=True):
    """The death of an actor, a node or a worker.

    Attributes:
        kind: of the subject.
        id: of the subject, hexadecimal.
        job: id in Ray of the job that it belongs to, hexadecimal; "" for none.
        name: as people know it; "" where Ray does not say.
        reason: one word.
        detail: a text for people.
        at_ms: when.
    """

    kind: ResourceKind
    id: str
    job: str
    name: str
    reason: str
    detail: str
    at_ms: int


class Batch(Struct, frozen=True):
    """What a posted array says: news, and how many of its events could not be read."""

    deaths: list[Death]
    unreadable: int
    count: int


class _Event(Struct, rename="camel"):
    event_type: str
    actor_lifecycle_event: Raw = _NONE
    node_lifecycle_event: Raw = _NONE
    worker_lifecycle_event: Raw = _NONE


class _Died(Struct, rename="camel"):
    reason: str = "UNSPECIFIED"
    error_message: str = ""
    name: str = ""
    class_name: str = ""
    ray_namespace: str = ""


class _Cause(Struct, rename="camel"):
    actor_died_error_context: _Died | None = None
    creation_task_failure_context: dict[str, Any] | None = None
    runtime_env_failed_context: dict[str, Any] | None = None
    actor_unschedulable_context: dict[str, Any] | None = None
    oom_context: dict[str, Any] | None = None


class _ActorState(Struct, rename="camel"):
    state: str
    timestamp: str
    repr_name: str = ""
    death_cause: _Cause | None = None


class _Actor(Struct, rename="camel"):
    actor_id: str
    state_transitions: list[_ActorState]


class _NodeDeath(Struct, rename="camel"):
    reason: str = "UNSPECIFIED"
    reason_message: str = ""


class _NodeState(Struct, rename="camel"):
    state: str
    timestamp: str
    death_info: _NodeDeath | None = None


class _Node(Struct, rename="camel"):
    node_id: str
    state_transitions: list[_NodeState]


class _WorkerDeath(Struct, rename="camel"):
    exit_type: str = ""
    exit_detail: str = ""


class _WorkerState(Struct, rename="camel"):
    state: str
    timestamp: str
    death_info: _WorkerDeath | None = None


class _Worker(Struct, rename="camel"):
    worker_id: str
    state_transitions: list[_WorkerState]
    job_id: str = ""


_EVENTS: Final = msgspec.json.Decoder(list[_Event])
_ACTOR: Final = msgspec.json.Decoder(_Actor)
_NODE: Final = msgspec.json.Decoder(_Node)
_WORKER: Final = msgspec.json.Decoder(_Worker)


def read_batch(body: bytes) -> Batch:
    """The news of a posted array.

    Raises:
        Invalid: it is no array of events.
    """
    try:
        events = _EVENTS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(
            f"{error}; needed is what Ray's Event Export posts, with RAY_DASHBOARD_AGGREGATOR_AGENT_PRESERVE_PROTO_FIELD_NAME unset", "$"
        ) from None
    deaths: dict[tuple[str, str], Death] = {}
    unreadable = 0
    for event in events:
        try:
            for death in _deaths(event):
                deaths.setdefault((death.kind, death.id), death)
        except (msgspec.MsgspecError, ValueError):
            unreadable += 1
    return Batch(list(deaths.values()), unreadable, len(events))


def _deaths(event: _Event) -> Iterator[Death]:
    """Raises ValueError or msgspec.MsgspecError: it cannot be read."""
    if event.event_type == "ACTOR_LIFECYCLE_EVENT" and event.actor_lifecycle_event is not _NONE:
        yield from _of_actor(_ACTOR.decode(event.actor_lifecycle_event))
    elif event.event_type == "NODE_LIFECYCLE_EVENT" and event.node_lifecycle_event is not _NONE:
        yield from _of_node(_NODE.decode(event.node_lifecycle_event))
    elif event.event_type == "WORKER_LIFECYCLE_EVENT" and event.worker_lifecycle_event is not _NONE:
        yield from _of_worker(_WORKER.decode(event.worker_lifecycle_event))


def _of_actor(actor: _Actor) -> Iterator[Death]:
    for change in actor.state_transitions:
        if change.state != "DEAD" or change.death_cause is None:
            continue
        cause, id = change.death_cause, b64decode(actor.actor_id, validate=True)
        died = cause.actor_died_error_context
        if died is not None:
            if died.ray_namespace == _INTERNAL or not _is_unexpected(died):
                continue
            name, reason, detail = died.name or change.repr_name or died.class_name, died.reason, died.error_message
        else:
            name, reason, detail = change.repr_name, "UNSPECIFIED", ""
            for member in _OTHER_CAUSES:
                context = getattr(cause, member)
                if context is not None:
                    reason = member.removesuffix("_context").upper()
                    detail = str(context.get("errorMessage") or context.get("formattedExceptionString") or "")
        job = id[-_JOB_BYTES:].hex()
        yield Death("actor", id.hex(), job, name[:_NAME_CHARS], reason, detail[:DETAIL_CHARS], _ms(change.timestamp))


def _is_unexpected(died: _Died) -> bool:
    """Not the end of its scope or its owner, `ray.kill`, or an exit that its code wants, which only the text of the message tells."""
    return died.reason == "NODE_DIED" or (
        died.reason in ("WORKER_DIED", "UNSPECIFIED") and "exit type: INTENDED_" not in died.error_message
    )


def _of_node(node: _Node) -> Iterator[Death]:
    for change in node.state_transitions:
        if change.state == "DEAD":
            info = change.death_info or _NodeDeath()
            if info.reason in _LOST_NODE:
                id = b64decode(node.node_id, validate=True).hex()
                yield Death("node", id, "", "", info.reason, info.reason_message[:DETAIL_CHARS], _ms(change.timestamp))


def _of_worker(worker: _Worker) -> Iterator[Death]:
    for change in worker.state_transitions:
        info = change.death_info
        if change.state == "DEAD" and info is not None and info.exit_type == "NODE_OUT_OF_MEMORY":
            id, job = (b64decode(text, validate=True).hex() for text in (worker.worker_id, worker.job_id))
            yield Death("worker", id, job, "", info.exit_type, info.exit_detail[:DETAIL_CHARS], _ms(change.timestamp))


def _ms(timestamp: str) -> int:
    """RFC 3339 with nanoseconds, which Python cuts to microseconds."""
    return int(datetime.fromisoformat(timestamp).timestamp() * 1000)
