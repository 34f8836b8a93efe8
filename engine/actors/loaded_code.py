"""Whether the files that this process has loaded its code from are still the same.

A process that loads the modules of an actor ahead of its start (`engine.actors.spare_process`) may get the actor after an upgrade. What was
installed anew has another inode or was written later, also behind a link that leads elsewhere now. The time of the inode's change says
nothing: an installer that links files hard changes it in every other environment, when it makes or removes one.
"""

from __future__ import annotations

import os
import sys

FileState = tuple[int, int, int, int]

_seen: dict[str, FileState] = {}


def remember() -> None:
    """From now on `changed` is about the modules that are loaded now.

    What was remembered before counts on: call it before and after loading others, so that an upgrade in between is noticed. One thread
    calls it, while another one may be in `changed`: what is added is complete, and added in one step.
    """
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    _seen.update({file: _look(file) for file in files if file and file not in _seen})


def changed() -> bool:
    """Whether one of them is another file now. Some 3 ms; nothing where nothing was remembered."""
    return any(_look(file) != seen for file, seen in _seen.copy().items())


def _look(file: str) -> FileState:
    try:
        found = os.stat(file)
    except OSError:  # of an archive, or removed
        return 0, 0, 0, 0
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
