"""Records that end a shard: recognised when they come again, and refused after the second time.

An exception in the middle of a record leaves the core half applied, so the process ends, and its successor is sent what was not answered,
the record included. Were it taken each time, one bad record would keep the shard from serving anybody.

    unknown      --it fails--> failed once    the shard leaves a quarantine entry and ends
    failed once  --it comes again, fails----> failed twice   (a second entry; it may fail once for a reason that passes)
    failed twice --it comes again-----------> refused: its publisher gets "unavailable", a timer is done, everything else is dropped

The number of quarantine entries of a record is its state, so an operator who deletes them has it taken again. A shard that dies before
its entry is written, or without storage, counts as not failed: the record is given one more try. Only what fails while it is taken from an
edge, a scheduler or the page wait is recognised; an exception while a group is built ends the shard without an entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import Struct

from engine.core.model.envelope import Envelope

FAILURES_MAX: Final = 2
"""So often a record may end a shard before it is refused."""

_CHANGES: Final = frozenset({"ref", "conn", "expires_ms"})
"""Fields that differ when the same record is sent again."""

_encode: Final = msgspec.msgpack.Encoder().encode


class RecordFailed(Exception):
    """A record raised an exception, its cause, and may be half applied: the core must not be used any more."""

    def __init__(self, record: Struct) -> None:
        super().__init__(f"{type(record).__name__} {fingerprint(record)}")
        self.record = record


def fingerprint(record: Struct) -> str:
    """32 hexadecimal digits over everything in a record that stays when it is sent again, by the edge or by the publisher."""
    return sha256(_encode(_lasting(record))).hexdigest()[:32]


def refused_after(failures: Mapping[str, int]) -> frozenset[str]:
    """The fingerprints of records to refuse, from the number of times each has failed."""
    return frozenset(mark for mark, count in failures.items() if count >= FAILURES_MAX)


def _lasting(value: Any) -> Any:
    if isinstance(value, Envelope) and value.digest:
        # The body has the time at which an edge took the request: a publisher's repeat has another one, under the same digest.
        return [value.id, value.digest, value.priority, value.retain, value.collapse, _lasting(value.merge), _lasting(value.policy_terms)]
    if isinstance(value, Struct):
        return [type(value).__name__, *(_lasting(getattr(value, name)) for name in value.__struct_fields__ if name not in _CHANGES)]
    return value
