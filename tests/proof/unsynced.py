"""Takes from the files of a server what a power cut would take: `python -m tests.proof.unsynced FOLDER SEED DATA`.

A program that imports little, because the server waits for it to start.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path


def cut(folder: Path, seed: int, data: Path) -> None:
    """Take from the files of the server what was not synced, if a cut is due."""
    if not (folder / "armed").exists():
        return
    synced: dict[int, int] = {}
    for line in (folder / "synced").read_text().splitlines():
        inode, size = map(int, line.split())
        synced[inode] = max(size, synced.get(inode, 0))
    lost = 0
    dice = random.Random(f"{seed}:{(folder / 'synced').stat().st_size}")
    for path in data.glob("appendonlydir/*.aof"):
        found = path.stat()
        safe = min(synced.get(found.st_ino, 0), found.st_size)
        left = dice.randint(safe, found.st_size)
        os.truncate(path, left)
        lost += found.st_size - left
    with (folder / "lost_bytes").open("a") as file:
        file.write(f"{lost}\n")
    (folder / "before_sync").unlink(missing_ok=True)
    (folder / "armed").unlink()


if __name__ == "__main__":
    cut(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
