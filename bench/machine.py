"""What figures were taken on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

from engine.store.server_program import installed_servers

_LOOPS: Final = 200_000
_ROUND_TRIPS: Final = 20_000


def calibration() -> dict[str, float]:
    """What the same work costs on this machine just now, so that figures of two days can be compared: CPU in ms of a loop of Python, and in
    us of a byte to another socket and back."""
    began = time.process_time()
    table: dict[int, int] = {}
    for number in range(_LOOPS):
        table[number & 1023] = table.get(number & 1023, 0) + number
    python_ms = (time.process_time() - began) * 1e3
    here, there = socket.socketpair()
    with here, there:
        began = time.process_time()
        for _ in range(_ROUND_TRIPS):
            here.send(b"x")
            there.send(there.recv(1))
            here.recv(1)
        sockets_us = (time.process_time() - began) * 1e6 / _ROUND_TRIPS
    return {"python_ms": round(python_ms, 1), "socket_round_trip_us": round(sockets_us, 2)}


def machine() -> dict[str, object]:
    """CPU, cores, memory, kernel, Python, how busy it was, and `calibration`."""
    model = "unknown"
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
        "calibration": calibration(),
    }


def versions(*packages: str) -> dict[str, str]:
    """Of these packages, where installed, of the Redis or Valkey server an engine starts, and the checkout's commit."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    server = installed_servers()[0]
    found[server.path.name] = ".".join(map(str, server.version))
    if commit := _git("rev-parse", "--short=12", "HEAD"):
        found["commit"] = commit + ("+changes" if _git("status", "--porcelain", "engine") else "")
    return found


def raise_file_limit() -> int:
    """Allow this process, and the systems it starts, as many open files as may be; returns how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _git(*arguments: str) -> str:
    """What git says of the checkout this file is in; nothing outside one."""
    folder = Path(__file__).parent.parent
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
