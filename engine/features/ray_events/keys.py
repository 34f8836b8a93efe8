"""The keys of this feature in Redis."""

from __future__ import annotations

from typing import Final

RAY_STATE_KEY: Final = "ray:state"
"""Hash: `horizon`, ms: the jobs that ended before it are settled."""

RAY_TOLD_KEY: Final = "ray:told"
"""Sorted set: keys of the jobs whose end was told, scored by when they ended, ms. Those from the horizon on only."""

RAY_RUNNING_KEY: Final = "ray:running"
"""Hash: key of a job that has not ended yet -> whom its end is to be told, as JSON."""

RAY_DEATHS_KEY: Final = "ray:deaths"
"""Stream: deaths that Ray exported, and that are not told yet."""

RAY_UNHEALTHY_KEY: Final = "ray:unhealthy"
"""Hash: unhealthy application of Ray Serve -> since when, ms, and `told`."""

INDEXES: Final = rb"ray:(state|told|running|deaths|unhealthy)"
"""Keys without bodies and numbers of messages (`engine.store.stored_kinds`)."""
