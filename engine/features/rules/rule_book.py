"""The rules in force on an edge: a stored version, and as long as none is in force, the last state of the rules file that could be used.

    file    --read when it changes-----> RuleBook --RulesInForce, one for each event--> `engine.features.rules.events`
    storage --`engine.features.rules.rules_follower`-->

Which version is in force is for storage to say (`engine.features.rules.core.versions`); version 0 is the file. While another one is,
the file is read all the same, so that it is ready when operators roll back to it, and has no effect.

The file is read again when it changes, without a restart. Parsing a large file takes a few hundred milliseconds, so a changed file is
parsed in a thread of its own while requests go on with the rules of before; the new ones replace them as a whole. A file that cannot be
used is refused with its line and reason, logged once per change, and the rules of before stay in force.

`engine up` does not start with a file that cannot be used. An edge that starts later, when the file has become unusable, has no rules of
before: events get 503 until the file can be used, since an answer without a match would be taken for the rules' own. The same holds for
a stored version that this edge cannot use, because it runs another release or has other settings than the one that accepted it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from engine.config import CATCH_MAILS, Config, apprise_recipients
from engine.core.model.action import parse_target
from engine.core.model.allowed_targets import not_allowed
from engine.core.model.step import EXTRAS, ChannelStep
from engine.errors import Invalid, RulesError, Unavailable
from engine.features.rules.core.own_rules import joined, within
from engine.features.rules.core.rules import Rule, Rules
from engine.features.rules.core.staging import RulesInForce
from engine.features.rules.core.toml_loader import parse_rules
from engine.features.rules.core.versions import NOTHING_ASKED, AskedByRules
from engine.features.rules.shipped_rules import shipped_rules

log = logging.getLogger(__name__)

_NO_RULES: Final = Rules((), False)


class StoredRules(Struct, frozen=True):
    """The versions that storage says are in force, parsed. Without `active`, which is that of the file, when `version` is 0.

    `usable`: false on an edge that could not use what storage says since its start. `asked`: see `VersionState`.
    """

    version: int = 0
    active: Rules | None = None
    staged_version: int = 0
    staged: Rules | None = None
    share: float = 0.0
    usable: bool = True
    asked: AskedByRules = NOTHING_ASKED


_NOTHING_STORED: Final = StoredRules()


def parse_version(text: str, version: int, config: Config) -> Rules:
    """The rules of a version, checked for an engine with these settings.

    Args:
        version: its number, 0 for one that has none yet.

    Raises:
        RulesError: they cannot be used; the message has the line and the reason.
    """
    source = f"version {version}" if version else "rules"
    rules = parse_rules(text, source)
    check_by_config(rules, config, source)
    return rules


def read_rules(path: Path, config: Config | None = None) -> Rules:
    """The rules in a file.

    Args:
        config: of the engine that is to act by them; without one, the targets of actions are not checked against its settings.

    Raises:
        RulesError: it cannot be read or used; the message has the file, the line and the reason.
    """
    try:
        rules = parse_rules(path.read_text("utf-8"), str(path))
    except (OSError, ValueError) as error:
        raise RulesError(f"{path}: {error.strerror if isinstance(error, OSError) else error}") from error
    if config is not None:
        check_by_config(rules, config, str(path))
    return rules


def check_by_config(rules: Rules, config: Config, source: str) -> None:
    """Check that the engine can act by these rules: it may call their targets, and no limit of its settings is exceeded.

    Targets are checked again when they are called: settings change.

    Raises:
        RulesError: it cannot; the message has the rule, the field and what is allowed.
    """
    lists = {f"category.{name}.steps": steps for name, steps in rules.steps.items()}
    lists |= {f"rule[{index}].steps": rule.steps for index, rule in enumerate(rules.rules)}
    for path, steps in lists.items():
        for index, step in enumerate(steps):
            if reason := _lacks(step, config):
                raise RulesError(f"{source}: {path}[{index}]: {reason}", path=f"{path}[{index}]")
    for index, rule in enumerate(rules.rules):
        try:
            _check_rule(rule, config)
        except Invalid as error:
            raise RulesError(f"{source}: rule {rule.name!r}: {error.path}: {error.detail}", path=f"rule[{index}].{error.path}") from error


def _lacks(step: ChannelStep, config: Config) -> str:
    """Why an engine with these settings cannot take a step, "" when it can."""
    if step.channel == "email" and not config.smtp_url:
        return "the setting smtp_url is empty, so no mail can be sent"
    if step.to and step.to not in apprise_recipients(config.apprise_recipients):
        return f"the setting apprise_recipients has no {step.to}"
    extra, module = EXTRAS[step.channel]
    if find_spec(module) is None and not (step.channel == "email" and config.smtp_url == CATCH_MAILS):
        return f"{module} is not installed: install the extra `{extra}` where the edges run"
    if step.channel == "apprise" and not step.to and not config.apprise_urls:
        return "the setting apprise_urls is empty, so no user has an address there"
    return ""


def _check_rule(rule: Rule, config: Config) -> None:
    if rule.do and (reason := not_allowed(parse_target(rule.do), config)):
        raise Invalid(reason, "do")
    if rule.fire.inactive_ms + max(rule.delay.fixed_ms, *rule.delay.levels.values(), 0) > config.delay_s_max * 1000:
        raise Invalid(f"at most {config.delay_s_max} seconds", "inactive" if rule.fire.inactive_ms else "delay")
    if rule.ttl_ms > config.ttl_s_max * 1000:
        raise Invalid(f"at most {config.ttl_s_max} seconds", "ttl")
    if rule.window_ms > config.collapse_window_s_max * 1000:
        raise Invalid(f"at most {config.collapse_window_s_max} seconds", "window")
    if rule.window_ms >= (rule.ttl_ms or config.ttl_s_default * 1000):
        raise Invalid(f"must be shorter than ttl, {config.ttl_s_default} seconds where the rule gives none", "window")
    if any(len(content.summary) > config.collapse_text_chars_max for content in rule.content.every):
        raise Invalid(f"at most {config.collapse_text_chars_max} characters", "summary")


class RuleBook:
    """Reads the rules file at once, and again whenever it has changed; what is stored is put in force by `put_in_force`.

    Args:
        config: with `rules_path` ("" for no rules) and `rules_check_ms`.
        clock: milliseconds that never step.
    """

    def __init__(self, config: Config, clock: Callable[[], int]) -> None:
        self._config = config
        self._path = Path(config.rules_path) if config.rules_path else None
        self._check_ms = config.rules_check_ms
        self._clock = clock
        self._next_ms = clock() + self._check_ms
        self._version: tuple[int, int] | None = None  # time of change and size of the file that was read last
        self._file_rules: Rules | None = None if self._path else _NO_RULES
        self._file_asked = NOTHING_ASKED  # what the conditions refer to of the file, as it is and as it was since this process started
        self._reader: threading.Thread | None = None
        self._shipped = shipped_rules(config)
        self.stored = _NOTHING_STORED
        self._in_force: RulesInForce | None = None
        self.own: dict[str, RuleBook] = {}  # of tenants, by name; see `engine.features.rules.tenant_rules`
        self._joined: dict[str, tuple[Rules, RulesInForce, RulesInForce, Rules]] = {}  # made once per change
        self.file_refused = ""  # why the file as it is now cannot be used; "" when it can
        self.version_refused = ""  # why a version that storage says is in force is not, here
        if self._path is not None and self._changed(self._path):
            self._read(self._path)

    def in_force(self, tenant: str = "") -> RulesInForce:
        """The rules for an event of a tenant that begins now.

        Costs one `stat` of the file every `rules_check_ms`, and never waits for parsing.

        Raises:
            Unavailable: none could be used since this process started.
        """
        if self._path is not None:
            self._look(self._path)
        stored, active = self.stored, self._active()
        if active is None:
            raise Unavailable(f"the rules cannot be used: {self.reason() or 'they were not read yet'}")
        made, asked = self._in_force, stored.asked | self._file_asked
        if (
            made is None
            or made.active is not active
            or made.staged is not stored.staged
            or (made.share, made.asked_before) != (stored.share, asked)
        ):
            made = RulesInForce(
                active, stored.version, stored.staged, stored.staged_version, stored.share, self._shipped, asked_before=asked
            )
            self._in_force = made
        if tenant in self.own:
            own = self._with_own(active, self.own[tenant].in_force(), tenant)[0]
            return msgspec.structs.replace(made, own=own)
        return made

    def _with_own(self, operator: Rules, own: RulesInForce, tenant: str) -> tuple[RulesInForce, Rules]:
        """A tenant's rules in force, with the categories there are for it; and the operator's, likewise."""
        found = self._joined.get(tenant)
        if found is None or found[0] is not operator or found[1] is not own:
            defined = joined(operator, own.active, tenant)
            staged = None if own.staged is None else within(own.staged, joined(operator, own.staged, tenant))
            inside = msgspec.structs.replace(own, active=within(own.active, defined), staged=staged)
            found = self._joined[tenant] = operator, own, inside, defined
        return found[2], found[3]

    def rules(self) -> Rules:
        """The version in force for everyone. Raises Unavailable, as `in_force`."""
        return self.in_force().active

    def in_use(self, tenant: str = "") -> Rules:
        """The version in force for everyone, with the categories that a tenant adds.

        While there is none, rules that define nothing but the predefined categories.
        """
        if self._path is not None:
            self._look(self._path)
        active = self._active()
        defined = _NO_RULES if active is None else active
        if tenant in self.own and not self.own[tenant].unread:
            return self._with_own(defined, self.own[tenant].in_force(), tenant)[1]
        return defined

    @property
    def unread(self) -> bool:
        """No rules could be used since this process started: which categories they define is not known."""
        return self._active() is None

    def _active(self) -> Rules | None:
        stored = self.stored
        return stored.active if stored.version or not stored.usable else self._file_rules

    def reason(self) -> str:
        """Why rules that should be in force are not; "" when they are, or when there are none. Looks at the file as `in_force` does."""
        if self._path is not None:
            self._look(self._path)
        return self.version_refused or ("" if self.stored.version else self.file_refused)

    def put_in_force(self, stored: StoredRules) -> None:
        """Follow storage: events that begin from now on are handled by these versions."""
        self.stored = stored

    # -- The file. ---------------------------------------------------------------------------------------------------------
    def _look(self, path: Path) -> None:
        if self._clock() >= self._next_ms and (self._reader is None or not self._reader.is_alive()):
            self._next_ms = self._clock() + self._check_ms
            if self._changed(path):
                self._reader = threading.Thread(target=self._read, args=(path,), name="rules", daemon=True)
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
            rules = read_rules(path, self._config)
        except RulesError as error:
            if isinstance(error.__cause__, OSError):  # what helps, as another mode, leaves time and size as they are
                self._version = None
            self._refuse(str(error))
            return
        self._file_asked |= AskedByRules(rules.events_asked, rules.activity_asked)
        self._file_rules, self.file_refused = rules, ""
        if version := self.stored.version:
            log.warning("%s was read and has no effect: version %d, which was stored through the API, is in force", path, version)
        else:
            log.info("%d rules read from %s", len(rules.rules), path)

    def _refuse(self, reason: str) -> None:
        if reason != self.file_refused:
            log.error("the rules file is not used, the rules of before stay in force: %s", reason)
        self.file_refused = reason
