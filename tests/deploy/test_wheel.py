"""The built wheel in an environment of its own, in an empty directory: no file of the repository is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.support.built_wheel import ROOT, build_wheel
from tests.support.running_engine import running_engine


def installed(folder: Path) -> Path:
    """The programs of an environment with the wheel, and with the dependencies of this one.

    A path in a .pth file makes the dependencies importable. The editable engine beside them stays out, since Python reads the .pth files
    of its own site directories only.
    """
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=100)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = ["-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--python", environment / "bin" / "python"]
    subprocess.run([sys.executable, *install, build_wheel(folder)], check=True, timeout=100)
    return environment / "bin"


def test_an_installed_wheel_serves_and_delivers_in_an_empty_directory(tmp_path: Path) -> None:
    programs = installed(tmp_path)
    elsewhere = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with running_engine("--shards", "1", program=[os.fspath(programs / "engine")]) as engine:

        def run(*words: str) -> str:
            command = [programs / "engine", *words, "--data-dir", engine.data_dir]
            done = subprocess.run(
                command, cwd=engine.data_dir.parent, env=elsewhere, capture_output=True, text=True, check=False, timeout=60
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        run("publish", "alice", "order.paid", "--data", '{"order": 17}')
        assert json.loads(run("listen", "alice", "--count", "1", "--json"))["data"] == {"order": 17}
        processes = [line for process in engine.descendants() for line in process.cmdline()]
        assert any(line.startswith(os.fspath(programs)) for line in processes)  # actors run in the new environment
        where = [programs / "python", "-c", "import engine; print(engine.__file__)"]
        assert not subprocess.run(where, cwd=tmp_path, env=elsewhere, capture_output=True, text=True, check=True).stdout.startswith(
            os.fspath(ROOT)
        )
