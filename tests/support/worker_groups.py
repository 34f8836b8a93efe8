"""Which tests stay together on one worker of `pytest -n`; all others are spread over the workers one by one.

Of the `loadgroup` scheduling of pytest-xdist 3.8, which marks are meant for, pytest 9.2 loses the group: it is part of no node id any more.
"""

from __future__ import annotations

from typing import Any, Final

from xdist.scheduler import LoadScopeScheduling

TOGETHER: Final = {
    # Engines whose parts are killed under load. Most of the time they are waited for, so the processor is free for the other groups.
    "chaos": ("tests/chaos/",),
    # A whole engine starts once for all who share it.
    "engine": (
        "tests/features/actions/test_ray_targets.py",
        "tests/features/actions/test_serve_targets.py",
        "tests/actors/test_controller.py",
        "tests/features/digest/test_digester.py",
        "tests/actors/test_edge.py",
        "tests/actors/test_overload.py",
        "tests/actors/test_reconciler.py::test_nothing_is_lost",
        "tests/actors/test_stopping.py",
        "tests/api/test_subscriptions.py",
        "tests/browser/test_admin_page.py",
        "tests/browser/test_demo_page.py",
        "tests/browser/test_tutorial.py",
        "tests/cli/test_app.py",
        "tests/client/test_client.py",
        "tests/client/test_receiver.py::test_an_engine",
        "tests/conformance/test_kernel.py::test_an_engine",
        "tests/conformance/test_servers.py",
        "tests/conformance/test_ray_links.py",
        "tests/deploy/test_grafana.py::test_a_running_engine",
        "tests/features/audit/test_endpoints.py::test_the_command_follows_the_acts_of_a_running_engine",
        "tests/features/audit/test_endpoints.py::test_the_command_prints_the_acts_of_a_running_engine",
        "tests/features/user_data/test_user_export.py::test_an_export_has_what_an_erasure_deletes",
        "tests/features/snooze/test_endpoints.py::test_a_snoozed_message_comes_back",
        "tests/ray/",
        "tests/fuzz/test_boundaries.py",
        "tests/fuzz/test_engine.py",
        "tests/store/test_keys.py",
        "tests/features/traces/test_whole_traces.py",
        "tests/transports/test_websocket_transport.py",
    ),
    "hosts": (
        "tests/hosts/",
        "tests/deploy/test_ray_up.py",
        "tests/deploy/test_read_only_root.py",
        "tests/deploy/test_wheel.py",
        "tests/deploy/test_compose_cluster.py",
        "tests/deploy/test_redis_cluster_yaml.py",
        "tests/deploy/test_redis_tls.py",
    ),  # engines of their own
    "cluster": ("tests/cluster/",),  # engines on one Ray cluster
    "browser": ("tests/browser/",),  # one Chromium
    "kotlin": ("tests/clients/test_kotlin_client.py",),  # compiled once
    "worlds": ("tests/sim/test_sim.py",),  # its last test adds up what the others found
    "rules": ("tests/test_architecture.py",),  # the syntax tree of every module, made once
}
"""Group -> beginnings of node ids; the first one that fits. Longest first: they are started in this order."""

WITHOUT_ENGINES: Final = frozenset({"browser", "kotlin", "worlds", "rules"})
"""Groups that run beside any others. The processes of the others' engines compute while the tests wait."""

ENGINES_AT_ONCE: Final = 2
"""Groups with engines that are under way at the same time. With three, a run is a minute shorter, and now and then a test waits in vain."""

ENGINES: Final = {"engine": "engine", "victim": "chaos"}
"""The group of the tests that use a fixture: in another group they would start one more engine."""


def group_of(nodeid: str) -> str | None:
    """The group of a test; None: it is run wherever there is room."""
    return next((group for group, prefixes in TOGETHER.items() if nodeid.startswith(prefixes)), None)


class GroupScheduling(LoadScopeScheduling):
    """Each group on one worker, no two on the same one, and at most `ENGINES_AT_ONCE` of those with engines."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid) or nodeid

    def _assign_work_unit(self, node: Any) -> None:
        """A worker that has a group under way is given a single test; the others get the groups first."""
        under_way = {other: self.assigned_work[other].keys() & TOGETHER.keys() for other in self.nodes}
        engines = sum(bool(groups - WITHOUT_ENGINES) for groups in under_way.values())
        allowed = () if under_way[node] else (TOGETHER.keys() if engines < ENGINES_AT_ONCE else WITHOUT_ENGINES)
        scope = next((group for group in TOGETHER if group in allowed and group in self.workqueue), None)
        scope = scope or next((scope for scope in self.workqueue if scope not in TOGETHER), None)
        if scope is not None:
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Also forgets a unit that is done: the scheduler counts what is left over all units of a worker, after every test."""
        scope = self._split_scope(self.registered_collections[node][item_index])
        super().mark_test_complete(node, item_index, duration)
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]
