"""The rules in force on an edge: the last version of the rules file that could be used.

The file is read again when it changes, without a restart. Parsing a large file takes a few hundred milliseconds, so a changed file is
parsed in a thread of its own while requests go on with the rules of before; the new ones replace them as a whole. A file that cannot be
used is refused with its line and reason, logged once per change, and the rules of before stay in force.

`engine up` does not start with a file that cannot be used. An edge that starts later, when the file has become unusable, has no rules of
before: events get 503 until the file can be used, since an answer without a match would be taken for the rules' own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from engine.config import Config
from engine.core.model.category import Category
from engine.core.policy.contact_policy import CATEGORIES
from engine.core.rules.rules import Rules
from engine.core.rules.toml_loader import parse_rules
from engine.errors import RulesError, Unavailable

log = logging.getLogger(__name__)

_NO_RULES: Final = Rules((), False)


def read_rules(path: Path) -> Rules:
    """The rules in a file.

    Raises:
        RulesError: it cannot be read or used; the message has the file, the line and the reason.
    """
    try:
        return parse_rules(path.read_text("utf-8"), str(path))
    except (OSError, ValueError) as error:
        raise RulesError(f"{path}: {error.strerror if isinstance(error, OSError) else error}") from error


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
        self._rules: Rules | None = None if self._path else _NO_RULES
        self._reader: threading.Thread | None = None
        self.refused = ""  # why the file as it is now is not in force; "" when it is
        if self._path is not None and self._changed(self._path):
            self._read(self._path)

    def rules(self) -> Rules:
        """The rules in force. Costs one `stat` of the file every `rules_check_ms`, and never waits for a file to be parsed.

        Raises:
            Unavailable: the file could not be used since this process started.
        """
        self._look()
        if self._rules is None:
            raise Unavailable("the rules file cannot be used; the engine's status has the reason")
        return self._rules

    def categories(self) -> Mapping[str, Category]:
        """The categories in force, by name; those that need no rules while there are none."""
        self._look()
        return CATEGORIES if self._rules is None else self._rules.categories

    @property
    def unread(self) -> bool:
        """The file could not be used since this process started: which categories it defines is not known."""
        return self._rules is None

    def reason(self) -> str:
        """Why the file as it is now is not in force; "" when it is, or when there is none. Looks at the file as `rules` does."""
        self._look()
        return self.refused

    def _look(self) -> None:
        if self._path is not None and self._clock() >= self._next_ms and (self._reader is None or not self._reader.is_alive()):
            self._next_ms = self._clock() + self._check_ms
            if self._changed(self._path):
                self._reader = threading.Thread(target=self._read, args=(self._path,), name="rules", daemon=True)
                self._reader.start()

    def _changed(self, path: Path) -> bool:
        try:
            stat = path.stat()
        except OSError as error:
            self._version = None
            self._refuse(f"{path}: {error.strerror}")
            return False
        version = (stat.st_mtime_ns, stat.st_size)
        changed = version != self._version
        self._version = version
        return changed

    def _read(self, path: Path) -> None:
        """Parse the file, and put its rules in force. Runs in a thread: each attribute is replaced in one assignment."""
        try:
            rules = read_rules(path)
        except RulesError as error:
            self._refuse(str(error))
            return
        self._rules, self.refused = rules, ""
        log.info("%d rules read from %s", len(rules.rules), path)

    def _refuse(self, reason: str) -> None:
        if reason != self.refused:
            log.error("the rules file is not used, the rules of before stay in force: %s", reason)
        self.refused = reason
