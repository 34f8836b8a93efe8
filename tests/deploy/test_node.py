"""`deploy/node`: the environment of Ray and of the engine on the nodes of a cluster."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.cli.ray_cluster import HEAD_SETTINGS, LOCAL_SETTINGS, NODE_SETTINGS

NODE = Path(__file__).parents[2] / "deploy" / "node"
ROLE = "RAY_AUTH_MODE", "RAY_worker_niceness", "RAY_enable_worker_prestart", "RAY_kill_worker_timeout_milliseconds"


def run(home: Path, *words: str, **options: object) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [NODE, *words], env={"HOME": str(home), "PATH": path}, capture_output=True, text=True, check=False, timeout=100, **options
    )


def environment(home: Path, *words: str) -> dict[str, str]:
    """What a command that the script runs finds in its environment."""
    done = run(home, *words)
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with settings, and with a `ray` that prints its environment and its words."""
    (tmp_path / "engine.env").write_text(
        "ENGINE_REDIS_URL='redis://:a$b@host:6379/0'\nRAY_REDIS_ADDRESS=host:6379\nRAY_REDIS_USERNAME=ray\nRAY_REDIS_PASSWORD='c d'\n"
    )
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    program = tmp_path / "venv" / "bin" / "ray"
    program.write_text('#!/bin/sh\nenv\nfor word in "$@"; do echo "word=$word"; done\necho "words=$*"\n')
    program.chmod(0o755)
    return tmp_path


def test_a_node_has_the_settings_that_make_a_lost_actor_come_back_soon(tmp_path: Path) -> None:
    found = environment(tmp_path, "env")
    assert {name: found[name] for name in HEAD_SETTINGS} == HEAD_SETTINGS
    assert {name: found[name] for name in NODE_SETTINGS} == NODE_SETTINGS
    assert {name: found[name] for name in ROLE} == {name: LOCAL_SETTINGS[name] for name in ROLE}


def test_the_engine_gets_its_settings_as_they_are_written(home: Path) -> None:
    assert environment(home, "env")["ENGINE_REDIS_URL"] == "redis://:a$b@host:6379/0"


def test_a_head_reaches_its_redis_and_its_workers_inherit_no_secret(home: Path) -> None:
    found = environment(home, "ray", "start", "--head", "--port=1")
    assert found["words"].endswith(" --head --port=1 --redis-username=ray --redis-password=c d")
    assert found["RAY_REDIS_ADDRESS"] == "host:6379"
    assert not {"ENGINE_REDIS_URL", "RAY_REDIS_PASSWORD"} & found.keys()


def test_a_worker_knows_nothing_of_redis(home: Path) -> None:
    found = environment(home, "ray", "start", "--address=head:1")
    assert found["words"].endswith(" --address=head:1")
    assert not [name for name in found if "REDIS" in name]


def test_no_port_of_a_node_that_its_start_waits_for_is_picked_by_ray_and_one_that_is_given_wins(home: Path) -> None:
    words = environment(home, "ray", "start", "--address=head:1", "--runtime-env-agent-port=1")["words"].split()
    ports = [word.partition("=") for word in words if "-port=" in word]
    picked = ("--dashboard-agent-grpc-port", "--metrics-export-port", "--runtime-env-agent-port")
    assert all(int(number) > 0 for _, _, number in ports)
    assert {option for option, _, _ in ports} >= set(picked)
    assert words[-1] == "--runtime-env-agent-port=1"


def test_a_start_whose_node_ended_unnoticed_is_killed(home: Path) -> None:
    (home / "raylet").symlink_to("/bin/true")
    (home / "venv" / "bin" / "ray").write_text("#!/bin/sh\n~/raylet &\nexec sleep 90\n")
    done = run(home, "ray", "start", "--address=head:1", "--block")
    assert done.returncode == -signal.SIGKILL
    assert "error: Ray's node ended while it started" in done.stderr


def test_without_a_token_ray_does_not_start(tmp_path: Path) -> None:
    done = run(tmp_path, "ray", "start", "--head", "--port=0", "--include-dashboard=false")
    assert done.returncode != 0
    assert "no authentication token was found" in done.stderr


def test_as_many_file_descriptors_as_are_allowed_are_taken_and_too_few_are_named(tmp_path: Path) -> None:
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (500, 1000))

    done = run(tmp_path, "sh", "-c", "ulimit -Sn", preexec_fn=lower)
    assert done.returncode == 0
    if done.stdout.strip() != "262144":  # as root, who may raise it
        assert done.stdout.strip() == "1000"
        assert "no more than 1000 file descriptors are allowed" in done.stderr
