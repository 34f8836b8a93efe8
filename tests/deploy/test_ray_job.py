"""The example of a submitted job. That an engine runs as one is not tested: Ray's job server is no part of what the engine installs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from engine.cli.settings import load

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_job"


def test_its_configuration_is_accepted_and_complete_for_a_cluster() -> None:
    config = load(env={}, toml_path=EXAMPLE / "engine.toml")
    assert config.address == "auto"
    assert config.redis_url.startswith("redis://:")
    assert config.host == "0.0.0.0"
    assert config.port


def test_it_submits_a_command_without_secrets(tmp_path: Path) -> None:
    ray = tmp_path / "ray"
    ray.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    ray.chmod(0o755)
    done = subprocess.run(
        [EXAMPLE / "submit.sh", "http://head:8265"], env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "job", "submit", "--address", "http://head:8265", "--no-wait", "--", "sh", "-c", "cd /etc/engine && exec engine up",
    ]  # fmt: skip
