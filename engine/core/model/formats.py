"""Which formats processes may write while two versions of the code run side by side: during an upgrade, and when one stops half way.

A release may bring records of new kinds, in journals and on links, which the version before cannot decode. Each such release has a number
here. (Members that are appended to a record need none: the version before ignores them. `tests/core/wire/test_records.py` holds both.)

    FORMATS            what this code reads; every process names its own in `stats()`
    SlotMap.formats    what may be written: no more than every process of the engine reads. Kept in the slot maps, since everybody follows
                       them, they are changed by compare-and-set, and a process has read the newest before it reads anything else

    written            who changes it
    as the code        new data, and a start of the whole engine: nobody else runs
    the smaller one    during an upgrade: nobody. New code reads both, and writes what the old one reads; a request
                       that needs a newer record (`engine.core.wire.records.NEWER`) is answered 503 with `Retry-After`
    raised             the controller, when every process is ready and reads more, in one slot map after the other; never lowered

A process that finds a higher number than it reads ends: code that is older than the data has nothing to do there. So an upgrade can be
undone by another one as long as a single process runs the old code, and not afterwards.

Crash points. A controller dies between two maps: its successor raises the other one; who needs both goes by the smaller number. A process
dies and starts with older code than the controller has seen: before the map is raised it is served as old code, since the controller
raises only while all are ready; otherwise it ends itself on reading the map, within a second. Its journal has nothing that it cannot read:
the number was in the map before its predecessor wrote by it, and it reads the map after it has fenced that one. A fail-over that loses the
raised map loses what was written by it too; whoever still runs puts the map back, or the controller raises it again.
"""

from __future__ import annotations

from typing import Final

FIRST: Final = 1
"""The formats of the first release."""

STEPS: Final = 2
"""Timers that are steps of messages (`engine.core.model.step`): an earlier shard would take each without a look at its message. Digests by
mail (`engine.core.policy.profile.MailDigest`): an earlier edge would give up each that is due."""

TRANSIENT: Final = 3
"""Frames that a feature shows without a message (`engine.core.wire.records.Show`): an earlier shard would end the link of its edge."""

FORMATS: Final = TRANSIENT
"""What this code reads, and writes once every process does."""
