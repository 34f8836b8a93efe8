"""Two versions of the engine's code, one of which is installed: what an operator changes with `pip install`.

Both are made up. The newer one is this code with the next formats, to which the requests of inboxes belong. The older one is this code
without the records of these requests: it sends none, and its decoders fail on each of them, as a release of that time would.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

import engine
from engine.core.model.formats import FORMATS

OLDER: Final = "older"
NEWER: Final = "newer"

_CAME: Final = ("ReadInbox", "InboxIs", "MarkInbox", "InboxMarked", "Marked")
"""Records that the older version does not read."""

_WIRE: Final = "core/wire/records.py"


class CodeVersions:
    """Begins with the older version installed. Processes import the version that is installed when they start.

    Args:
        folder: empty; both versions are there afterwards.
    """

    def __init__(self, folder: Path) -> None:
        self._installed = folder / "site" / "engine"
        self._installed.parent.mkdir()
        self._places = {name: folder / name for name in (OLDER, NEWER)}
        for place in self._places.values():
            shutil.copytree(Path(engine.__file__).resolve().parent, place)  # with what Python has compiled, which fits by its times
            _change(place / _WIRE, r"^(NEWER: .* = \{)", rf"\1ReadInbox: {FORMATS + 1}, MarkInbox: {FORMATS + 1}, ")
        for union in (_WIRE, "core/journal/journal_records.py"):
            _change(self._places[OLDER] / union, rf"(^   )? \| ({'|'.join(_CAME)})\b\n?", "")
        _change(self._places[NEWER] / "core/model/formats.py", r"^FORMATS: Final = .*$", f"FORMATS: Final = {FORMATS + 1}")
        self.install(OLDER)

    @property
    def environment(self) -> dict[str, str]:
        """For the processes of an engine."""
        return {"PYTHONPATH": str(self._installed.parent)}

    def install(self, version: str) -> None:
        """Take the place of the other one, at once."""
        made = self._installed.with_suffix(".new")
        made.symlink_to(self._places[version])
        made.replace(self._installed)

    @staticmethod
    def formats(version: str) -> int:
        """What the code of this version reads."""
        return FORMATS + (version == NEWER)


def _change(file: Path, pattern: str, text: str) -> None:
    changed, found = re.subn(pattern, text, file.read_text("utf-8"), flags=re.MULTILINE)
    assert found, f"{file.name} has nothing like {pattern}"
    file.write_text(changed, "utf-8")
