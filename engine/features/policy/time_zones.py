"""IANA time zones by name. Their data comes with the system, or with the `tzdata` package where the system has none.

Not in the core, because it reads the machine's files; the core is passed `tzinfo` objects.
"""

from __future__ import annotations

from datetime import UTC, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from engine.errors import Invalid

NAME_CHARS_MAX = 64

_OF_THE_MACHINE: Final = ("localtime", "posixrules", "posix/", "right/")
"""How names of files begin that systems keep beside the database: each machine may have others, or none."""


@lru_cache(maxsize=1024)  # there are about 600
def zone(name: str) -> tzinfo:
    """The zone of a name such as `Europe/Berlin`.

    Raises:
        Invalid: there is none.
    """
    try:
        if len(name) <= NAME_CHARS_MAX and not name.startswith(_OF_THE_MACHINE):
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # no such file; a path out of the database; a folder such as `Europe`
        pass
    raise Invalid("an IANA time zone such as Europe/Berlin is needed", "$.zone")


def zone_here(name: str) -> tzinfo:
    """The zone of a name that some edge accepted; UTC where this machine's data does not have it."""
    try:
        return zone(name)
    except Invalid:
        return UTC
