"""Actions of another user than root."""

import os
from collections.abc import Callable
from typing import TypeVar

NOBODY = 65534

T = TypeVar("T")


def as_nobody(action: Callable[[], T]) -> T:
    """Do ``action`` as root, whose answer is dropped, then as the user nobody.

    Nobody may import nothing where Python lives in root's home, and Python remembers a codec that it did not find.
    So the first time imports what the second needs.
    """
    action()
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        return action()
    finally:
        os.setresuid(0, 0, 0)
