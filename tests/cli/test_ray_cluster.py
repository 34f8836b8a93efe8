"""What the command takes of Ray that is not public: present in this Ray, and done without where a Ray lacks it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private import node, utils, worker

from engine.cli import ray_cluster
from engine.cli.node_packages import NodePackages
from engine.cli.ray_cluster import ClusterError, RayCluster
from engine.config import Config

SECRET = "redis://:a-password@host/0"


def test_this_ray_has_the_private_parts() -> None:
    assert callable(utils.get_entrypoint_name)
    assert hasattr(worker, "_global_node")
    assert callable(node.Node.dead_processes)


def test_the_command_that_starts_ray_sets_its_environment_before_it_imports_ray() -> None:
    """Ray reads `RAY_AUTH_MODE` when it is imported. With another mode its own control service refuses it."""
    code = "import sys, engine.__main__, engine.cli.up; print([name for name in sys.modules if name == 'ray'])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_another_version_of_ray_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        utils.check_version_info({"ray_version": "1.0", "python_version": "3.0.0"}, "node 10.0.0.5")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "60")
    monkeypatch.setattr(ray_cluster, "_auth_token_exists", lambda: False)
    with pytest.raises(ClusterError) as raised:
        RayCluster(Config(address="10.0.0.5:6379")).start()
    assert "Ray: 1.0 Python: 3.0.0" in str(raised.value)
    assert str(raised.value).endswith("install the engine into the Python that the cluster's Ray runs with, and start it there")
    assert "\n" not in str(raised.value)


def test_a_cluster_that_refuses_the_package_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> Any:
        if "runtime_env" in options:
            raise RuntimeError("no room\nfor the package")
        return SimpleNamespace(address_info={})

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "60")
    monkeypatch.setattr(ray_cluster, "_auth_token_exists", lambda: False)
    monkeypatch.setattr(ray_cluster, "look_everywhere", lambda _names: {"node": NodePackages("another", {})})
    with pytest.raises(ClusterError, match=r"^address: cannot join .*no room for the package"):
        RayCluster(Config(address="auto")).start()


def test_the_command_line_that_ray_shows_has_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils, "get_entrypoint_name", lambda: f"engine up --redis {SECRET}")
    with ray_cluster._without_secrets_in_entrypoint(Config(redis_url=SECRET)):
        assert utils.get_entrypoint_name() == "engine up --redis ***"
    assert SECRET in utils.get_entrypoint_name()


def test_where_ray_cannot_be_kept_from_showing_it_a_secret_on_the_command_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(utils, "get_entrypoint_name")
    monkeypatch.setattr(sys, "argv", ["engine", "up", "--redis", SECRET])
    with pytest.raises(ClusterError, match="command line"), ray_cluster._without_secrets_in_entrypoint(Config(redis_url=SECRET)):
        pass
    monkeypatch.setattr(sys, "argv", ["engine", "up"])
    with ray_cluster._without_secrets_in_entrypoint(Config(redis_url=SECRET)):
        assert not hasattr(utils, "get_entrypoint_name")


def test_a_token_that_was_not_written_whole_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full, or the start was killed."""
    monkeypatch.setattr(Path, "home", lambda: Path("/proc"))  # where nothing can be made
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")  # of one that is only deleted, what the engine sets would stay
    monkeypatch.setattr(os, "access", lambda *_: False)
    token = tmp_path / "ray-auth-token"
    token.touch(0o600)
    ray_cluster._keep_auth_token(tmp_path)
    kept = token.read_text()
    assert len(kept) == 64
    assert token.stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "")
    ray_cluster._keep_auth_token(tmp_path)
    assert token.read_text() == kept


def test_the_end_of_ray_leaves_a_redis_started_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor starts one again that has died. Killed here, it would not write its file to disk."""
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray_cluster, "_LEFTOVER_TIMEOUT_S", 0.05)
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    cluster = RayCluster(Config(), lambda: redis.pid)
    cluster._before, cluster.address = ray_cluster._descendants(), "127.0.0.1:1"
    with subprocess.Popen(sleep) as of_ray, subprocess.Popen(sleep) as redis:
        cluster.stop()
        assert of_ray.wait(5) == -signal.SIGKILL
        assert redis.poll() is None
        redis.kill()


def test_without_the_processes_of_ray_none_of_them_is_said_to_have_died(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = RayCluster.__new__(RayCluster)
    cluster._local = True
    monkeypatch.delattr(worker, "_global_node")
    assert cluster.failure() is None
