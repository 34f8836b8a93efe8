"""Which tests stay together on one worker of `pytest -n`; all others are spread over the workers one by one.

Of the `loadgroup` scheduling of pytest-xdist 3.8, which marks are meant for, pytest 9.2 loses the group: it is part of no node id any more.
"""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadScopeScheduling

TOGETHER: Final = {
    # A whole engine starts once for all who share it, and two that are broken at once would take the time in which the other has to answer.
    "engine": (
        "tests/actors/test_controller.py",
        "tests/actors/test_edge.py",
        "tests/actors/test_overload.py",
        "tests/chaos/",
        "tests/cli/test_app.py",
        "tests/cli/test_ray_cluster.py",
        "tests/client/test_client.py",
        "tests/fuzz/test_engine.py",
        "tests/store/test_legacy_ids.py",
    ),
    "browser": ("tests/browser/",),  # one Chromium
    "worlds": ("tests/sim/test_sim.py",),  # its last test adds up what the others found
}
"""Group -> beginnings of node ids."""


class GroupScheduling(LoadScopeScheduling):
    """The largest groups first, each on one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return next((group for group, prefixes in TOGETHER.items() if nodeid.startswith(prefixes)), nodeid)
