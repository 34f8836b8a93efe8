"""Actions of another user than root."""

import os
from collections.abc import Callable
from typing import TypeVar

NOBODY = 65534

T = TypeVar("T")


def as_nobody(action: Callable[[], T]) -> T:
    """Do this as root, whose answer is dropped, then as the user nobody. The first time imports what the second needs: nobody may import
    nothing of a Python in root's home, and Python remembers a codec that it did not find."""
    action()
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        return action()
    finally:
        os.setresuid(0, 0, 0)
