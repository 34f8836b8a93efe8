"""A Ray cluster to which Ray's autoscaler (v2) adds a node, and which it drains: its provider of fake nodes starts it on this machine.

first    the head; room for a shard, a scheduler and an edge
other    the same room; it ends when it has been idle for some seconds
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.support.process_tree import role_of, tree
from tests.support.shared_cluster import SharedCluster

ROOM: Final = {"engine_shard": 1, "engine_scheduler": 1, "engine_edge": 1}

_IDLE_MINUTES: Final = 0.05
_HEAD_TYPE: Final = "ray.head.default"
_HEAD_ID: Final = "f" * 51 + "00000"
"""What the provider of fake nodes calls the head."""


class AutoscaledCluster(SharedCluster):
    """Made by `autoscaled_cluster`."""

    def start(self) -> None:
        """Start Redis and the head; returns when they run."""
        self.redis.start()
        self.environment |= {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_enable_autoscaler_v2": "1"}
        self.environment |= {"RAY_CLOUD_INSTANCE_ID": _HEAD_ID, "RAY_NODE_TYPE_NAME": _HEAD_TYPE}
        config = self.folder / "autoscaler.json"
        config.write_text(json.dumps(self._config()))
        port = self.address.rpartition(":")[2]
        options = ("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={self.folder}/ray")
        self._start(os.environ.get("PYTHONPATH", ""), ROOM, *options, f"--autoscaling-config={config}")

    def _config(self) -> dict[str, Any]:
        """What `ray up` would have made. The nodes share this machine's address.

        The provider is named by its class: Ray's wheel lacks the file of defaults that its short name stands for.
        """
        lists = (
            "cluster_synced_files", "initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands",
            "head_start_ray_commands", "worker_start_ray_commands", "rsync_exclude", "rsync_filter",
        )  # fmt: skip
        return {
            "cluster_name": "autoscaled",
            "max_workers": 1,
            "upscaling_speed": 1.0,
            "idle_timeout_minutes": _IDLE_MINUTES,
            "provider": {
                "type": "external",
                "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
                "gcs_address": self.address,
                "use_node_id_as_ip": True,
                "disable_node_updaters": True,
                "disable_launch_config_check": True,
            },
            "head_node_type": _HEAD_TYPE,
            "available_node_types": {
                _HEAD_TYPE: {"resources": {"CPU": 2, **ROOM}, "node_config": {}, "max_workers": 0},
                "worker": {"resources": {"CPU": 1, **ROOM}, "node_config": {}, "min_workers": 0, "max_workers": 1},
            },
            "file_mounts_sync_continuously": False,
            **{name: {} for name in ("auth", "file_mounts", "head_node", "worker_nodes")},
            **{name: [] for name in lists},
        }

    def nodes(self) -> int:
        return sum(role_of(pid) == "raylet" for node in self._nodes for pid in tree(node.pid))


@contextmanager
def autoscaled_cluster(folder: Path) -> Iterator[AutoscaledCluster]:
    """The cluster, which runs in the block.

    Args:
        folder: an empty one with a short path: Ray makes sockets in it.
    """
    cluster = AutoscaledCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
