"""An event for the rules, made of what Ray tells, and whom it concerns."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from engine.core.model.names import is_user

JOB_FAILED: Final = "ray.job.failed"
JOB_FINISHED: Final = "ray.job.finished"
JOB_STOPPED: Final = "ray.job.stopped"
JOB_LOST: Final = "ray.job.lost"
ACTOR_DIED: Final = "ray.actor.died"
WORKER_OUT_OF_MEMORY: Final = "ray.worker.out_of_memory"
NODE_LOST: Final = "ray.node.lost"
SERVE_UNHEALTHY: Final = "ray.serve.unhealthy"

SUBJECT: Final = "ray"
"""`user` of every event: Ray is none of those who are notified."""

NAME_CHARS_MAX: Final = 128
"""Of users and ids: the default limit of the engine."""

NOTIFIED_MAX: Final = 32
"""Users that the metadata of one job may name."""


class RayEvent(Struct, frozen=True):
    """One event. Its `id` follows from its subject, so that whoever makes it again makes the same one.

    Attributes:
        id: at most 128 characters.
        type: such as `ray.job.failed`.
        context: the job that it is about; "" for none.
        at_ms: when it happened, as Ray says.
        notify: users to notify.
        data: texts and numbers for templates.
    """

    id: str
    type: str
    context: str
    at_ms: int
    notify: tuple[str, ...]
    data: Mapping[str, Any]

    def body(self) -> bytes:
        """As `POST /v1/events` takes it."""
        context = {"context": self.context} if self.context else {}
        data = {**self.data, "notify": self.notify}
        return msgspec.json.encode({"type": self.type, "user": SUBJECT, "id": self.id, **context, "ts": self.at_ms, "data": data})


def valid(text: Any) -> str:
    """A text of Ray, "" for none. Names of files may have halves of characters, which Ray's JSON may have, and no other JSON."""
    return str(text or "").encode(errors="replace").decode()


def id_of(*parts: str) -> str:
    """An id for what these texts name together; their digest where they are too long."""
    text = ":".join(parts)
    return text if len(text) <= NAME_CHARS_MAX and text.isprintable() else f"{parts[0]}:{hashlib.sha256(text.encode()).hexdigest()}"


def notified(metadata: Mapping[str, str], otherwise: Sequence[str]) -> tuple[str, ...]:
    """Users that a job's metadata name as `notify`, separated by commas; `otherwise` where they name none."""
    named = (name.strip() for name in metadata.get("notify", "").split(","))
    users = tuple(dict.fromkeys(name for name in named if is_user(name, NAME_CHARS_MAX)))
    return users[:NOTIFIED_MAX] or tuple(otherwise)
