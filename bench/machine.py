"""What figures were taken on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import subprocess
from pathlib import Path

from engine.store.server_program import installed_servers


def machine() -> dict[str, object]:
    """CPU, cores, memory, kernel, Python, and how busy it was."""
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
