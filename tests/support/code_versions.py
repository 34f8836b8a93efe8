"""Two versions of the engine's code, one of which is installed: what an operator changes with `pip install`.

The older one is this one as it was before the formats of inboxes: it names lower formats as those that it reads, and its decoders do not
know the records that came with them, nor the choice `inbox`. So it fails on each of them, as a release of that time would.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

import engine
from engine.core.model.formats import FORMATS, REFUSALS, UPGRADES

THIS: Final = "this"
OLDER: Final = "older"

_CAME: Final = ("ReadBacklog", "BacklogIs", "ReadInbox", "InboxIs", "MarkInbox", "InboxMarked", "Counts", "Marked", "Inboxed", "Refuse")
"""Records of the formats that the older version does not read."""

_UNIONS: Final = ("core/wire/records.py", "core/journal/journal_records.py")


class CodeVersions:
    """Begins with the older version installed. Processes import the version that is installed when they start.

    Args:
        folder: empty; both versions are there afterwards.
    """

    def __init__(self, folder: Path) -> None:
        assert FORMATS == REFUSALS, "the older version is that before inboxes: take out what came since"
        self._installed = folder / "site" / "engine"
        self._installed.parent.mkdir()
        self._places = {THIS: Path(engine.__file__).resolve().parent, OLDER: folder / OLDER}
        shutil.copytree(self._places[THIS], self._places[OLDER], ignore=shutil.ignore_patterns("__pycache__"))
        formats = self._places[OLDER] / "core/model/formats.py"
        _change(formats, r"^FORMATS: Final = REFUSALS$", "FORMATS: Final = UPGRADES", 1)
        category = self._places[OLDER] / "core/model/category.py"
        _change(
            category,
            r"^ANY_CHOICE: Final = 1 << ON \| 1 << DIGEST \| 1 << OFF \| 1 << INBOX$",
            "ANY_CHOICE: Final = 1 << ON | 1 << DIGEST | 1 << OFF",
        )
        _change(category, r"^Choice = Annotated\[int, Meta\(ge=ON, le=INBOX\)\]$", "Choice = Annotated[int, Meta(ge=ON, le=OFF)]")
        for union in _UNIONS:
            _change(self._places[OLDER] / union, rf"^    \| ({'|'.join(_CAME)})\n", "")
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
        return FORMATS if version == THIS else UPGRADES


def _change(file: Path, pattern: str, text: str, count: int = 0) -> None:
    changed, found = re.subn(pattern, text, file.read_text("utf-8"), count=count, flags=re.MULTILINE)
    assert found, f"{file.name} has nothing like {pattern}"
    file.write_text(changed, "utf-8")
