"""The rules in force on an edge: the last version of the rules file that could be used.

The file is read again when it changes, without a restart. Parsing a large file takes a few hundred milliseconds, so a changed file is
parsed in a thread of its own while requests go on with the rules of before; the new ones replace them as a whole. A file that cannot be
used is refused with its line and reason, logged once per change, and the rules of before stay in force.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from engine.config import Config
from engine.core.rules.rules import Rules
from engine.core.rules.toml_loader import parse_rules
from engine.errors import RulesError

log = logging.getLogger(__name__)

_NO_RULES: Final = Rules((), False)


class RuleBook:
    """Reads the rules at once, and again whenever their file has changed.

    Args:
        config: with `rules_path` ("" for no rules) and `rules_check_ms`.
        clock: milliseconds that never step.
    """

    def __init__(self, config: Config, clock: Callable[[], int]) -> None:
        self._path = Path(config.rules_path) if config.rules_path else None
        self._check_ms = config.rules_check_ms
        self._clock = clock
        self._next_ms = clock() + self._check_ms
        self._version: tuple[int, int] | None = None  # time of change and size of the file that was read last
        self._rules = _NO_RULES
        self._reader: threading.Thread | None = None
        self.refused = ""  # why the file as it is now is not in force; "" when it is
        if self._path is not None and self._changed(self._path):
            self._read(self._path)

    def rules(self) -> Rules:
        """The rules in force. Costs one `stat` of the file every `rules_check_ms`, and never waits for a file to be parsed."""
        if self._path is not None and self._clock() >= self._next_ms and (self._reader is None or not self._reader.is_alive()):
            self._next_ms = self._clock() + self._check_ms
            if self._changed(self._path):
                self._reader = threading.Thread(target=self._read, args=(self._path,), name="rules", daemon=True)
                self._reader.start()
        return self._rules

    def _changed(self, path: Path) -> bool:
        try:
            stat = path.stat()
        except OSError as error:
            self._version = None
            self._refuse(f"{path}: {error}")
            return False
        version = (stat.st_mtime_ns, stat.st_size)
        changed = version != self._version
        self._version = version
        return changed

    def _read(self, path: Path) -> None:
        """Parse the file, and put its rules in force. Runs in a thread: each attribute is replaced in one assignment."""
        try:
            rules = parse_rules(path.read_text("utf-8"), str(path))
        except (OSError, ValueError, RulesError) as error:
            self._refuse(str(error) if isinstance(error, RulesError) else f"{path}: {error}")
            return
        self._rules, self.refused = rules, ""
        log.info("%d rules read from %s", len(rules.rules), path)

    def _refuse(self, reason: str) -> None:
        if reason != self.refused:
            log.error("the rules are not taken, those of before stay in force: %s", reason)
        self.refused = reason
