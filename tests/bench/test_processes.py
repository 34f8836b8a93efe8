"""The accounting from /proc, against processes that do known work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.processes import BY_PROGRAM, CpuMeter, Processes, kernel_bytes, role_of, tree

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")

# Starts a child that burns CPU and then waits for its parent's end; says so, and burns CPU itself after a line on stdin.
PROGRAM = """
import os, sys, time
end, kept_open = os.pipe()
child = os.fork()
def burn(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
if child == 0:
    os.close(kept_open)
    burn(0.2)
    print("burnt", flush=True)
    os.read(end, 1)  # not stdin: a line there is for the parent
    os._exit(0)
print("started", flush=True)
sys.stdin.readline()
burn(0.1)
kept = b"x" * (64 << 20)
print("done", flush=True)
sys.stdin.read()
"""


@contextmanager
def program() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert {process.stdout.readline(), process.stdout.readline()} == {b"started\n", b"burnt\n"}
        yield process


def test_a_tree_has_the_process_and_its_descendants() -> None:
    with program() as process:
        found = tree(process.pid)
        assert found[0] == process.pid
        assert len(found) == 2
        assert os.getpid() not in found
    assert tree(process.pid) == []


def test_cpu_and_memory_are_counted_from_the_meters_making_and_by_role() -> None:
    with program() as process:
        assert process.stdin is not None
        assert process.stdout is not None
        processes = Processes({process.pid: "worker"})
        meter, held = CpuMeter(processes), processes.rss_bytes()
        process.stdin.write(b"go\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"done\n"
        spent = meter.spent_s()
        assert set(spent) == {"worker"}
        assert 0.05 <= spent["worker"] <= 5  # what was burnt before the meter is not in it, and a tick is 10 ms
        assert processes.rss_bytes()["worker"] - held["worker"] >= 60 << 20


def test_a_process_that_ended_costs_nothing_less_than_nothing() -> None:
    with program() as process:
        meter = CpuMeter(Processes({process.pid: "worker"}))
    assert meter.spent_s() == {}


def test_a_process_that_began_since_counts_from_its_beginning() -> None:
    meter = CpuMeter(Processes({os.getpid(): "me"}))
    before = time.process_time()
    with program():
        spent = meter.spent_s()["me"]
    assert spent - (time.process_time() - before) >= 0.1  # the child's 0.2 s


@pytest.mark.parametrize(
    ("title", "role"),
    [
        ("ray::Edge", "edge"),
        ("ray::Shard.exchange", "shard"),
        ("/usr/bin/redis-server", "redis"),
        ("/opt/valkey-server", "redis"),
        ("python", "others"),
    ],
)
def test_a_role_is_read_from_the_programs_name(title: str, role: str) -> None:
    with subprocess.Popen([title], executable=sys.executable, stdin=subprocess.PIPE) as process:
        deadline = time.monotonic() + 10
        while role_of(process.pid) != role:
            assert time.monotonic() < deadline
        assert Processes({process.pid: BY_PROGRAM}).roles() == {process.pid: role}
        assert process.stdin is not None
        process.stdin.close()


def test_the_kernels_share_is_read() -> None:
    assert kernel_bytes() > 1 << 20
