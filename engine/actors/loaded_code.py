"""Whether the files that this process has loaded its code from are still the same.

A process that loads the modules of an actor ahead of its start (`engine.actors.spare_process`) may get the actor after an upgrade. What was
installed anew has another inode or was written later, also behind a link that leads elsewhere now. The time of the inode's change says
nothing: an installer that links files hard changes it in every other environment, when it makes or removes one.
"""

from __future__ import annotations

import os
import sys
import time
from array import array
from typing import Final

_TRUSTED_S: Final = 1.0
"""A look that long ago will do."""


class _Seen:
    """What was remembered: two objects, since a fork that looks through one for each file copies all their pages, 3 MB in 3 ms."""

    def __init__(self) -> None:
        self.files: tuple[str, array[int]] = ("", array("q"))  # their names, one a line, and what `_look` found of each
        self.looked_s = float("-inf")


_seen = _Seen()


def remember() -> None:
    """From now on `changed` is about the modules that are loaded now.

    What was remembered before counts on: call it before and after loading others, so that an upgrade in between is noticed. One thread
    calls it, while another one may be in `changed`: what that finds is complete, and replaced in one step.
    """
    lines, states = _seen.files
    known = set(lines.splitlines())
    found = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    new = [file for file in found if file and file not in known]
    _seen.files = lines + "".join(f"{file}\n" for file in new), states + array("q", map(_look, new))


def changed() -> bool:
    """Whether one of them is another file now. Some 3 ms; nothing where nothing was remembered."""
    if time.monotonic() - _seen.looked_s < _TRUSTED_S:
        return False
    lines, states = _seen.files
    return array("q", map(_look, lines.splitlines())) != states


def forked() -> None:
    """This process was forked from one that has just looked."""
    _seen.looked_s = time.monotonic()


def _look(file: str) -> int:
    try:
        found = os.stat(file)
    except OSError:  # of an archive, or removed
        return 0
    return hash((found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns))
