"""A disk that is small enough to fill: a tmpfs. Mounting one needs root."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path


class CannotMount(Exception):
    """No right to mount here."""


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """`folder` is a file system of this size while the block runs.

    Raises:
        CannotMount: it needs root, and a container has to be allowed to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=700", "none", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        raise CannotMount(mounted.stderr.strip())
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Not a byte is left on the folder's disk while the block runs."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
    try:
        yield
    finally:
        ballast.unlink()
