"""The settings as operators meet them: which are published, in which section, what they mean, and where their values come from.

Sources, highest first: command line, environment (`ENGINE_<NAME>`), `engine.toml` in the working directory, default. A setting has one
name everywhere; in the file its key stands in its section:

    [edge]
    host = "0.0.0.0"

    [redis]
    redis_url = "redis://10.0.0.5:6379/0"

A number is in the unit that ends the setting's name. A list is a text with commas, or in the file an array.

Internal limits are not part of the interface and may change in any release. They can be set under one marked name only: in the section
`[internal]`, or as `ENGINE_INTERNAL_<NAME>`.

A name that does not exist is refused in the file: a misspelt setting would otherwise be a default in force. The environment belongs to
others too: a variable is refused when its name is nearly a setting's. Others that begin with `ENGINE_` are left alone and reported, but for
those with which Kubernetes describes a Service named `engine...` to every pod of its namespace.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import msgspec
from msgspec import Struct, inspect

from engine.cli.feature_settings import FEATURES
from engine.config import FIELDS, NUMBER_MAX, SECRETS, Config, Section, check, require
from engine.errors import ConfigError

TOML_PATH: Final = "engine.toml"
DEFAULT: Final = "default"
"""The source of a value that no source gives."""
INTERNAL: Final = "internal"
"""The section of internal limits."""

_PREFIX: Final = "ENGINE_"
_INTERNAL_PREFIX: Final = "ENGINE_INTERNAL_"
_OF_CLIENTS: Final = ("ENGINE_TOKEN", "ENGINE_URL")  # client commands and the examples read these themselves
_OF_SERVICES: Final = re.compile(r"_SERVICE_(HOST|PORT)(_|$)|_PORT_\d+_(TCP|UDP|SCTP)(_|$)")  # names of variables
_ADDRESS_OF_SERVICE: Final = re.compile(r"(tcp|udp|sctp)://")  # the value of the one that ends with _PORT
_MISSPELT_RATIO_MIN: Final = 0.86  # of difflib: two letters wrong of a name of 14, but not another word more
_TABLES: Final = "source"  # [[source]]
_OPTIONS: Final = {"redis_url": "--redis"}  # other options bear the setting's name
_OF_OWN_RAY: Final = {"ray_publish": ("default",), "ray_listen": ("default",)}
"""Defaults where the engine starts a Ray of its own: its jobs and the engine belong to the same person."""
_FILES: Final = ("rules_path", "link_tls_cert", "link_tls_key", "link_tls_ca")
_UNIT: Final = re.compile(r"_(ms|per_s|s|bytes|chars)(?=_|$)")
_IN_UNIT: Final = {
    "s": ", in seconds, such as 3600 for 1h",
    "ms": ", in milliseconds, such as 1500 for 1.5s",
    "bytes": ", in bytes, such as 1048576 for 1 MiB",
}
_SHOWN_CHARS_MAX: Final = 40  # of a wrong value in an error message


SECTIONS: Final[Mapping[str, Section]] = {
    "engine": Section(
        "what runs, and where",
        {
            "shards": "shard actors, one thread each; users are spread over them; 0: as stored, else one per 4 cores, 8 a Redis at most",
            "schedulers": "scheduler actors: delays and retries",
            "edges": "edge actors: client connections; all edges of a machine share the port",
            "address": "Ray cluster to join: `auto`, or HOST:PORT; empty starts a local Ray",
            "place": "in a cluster: on nodes that offer engine_shard, engine_scheduler, engine_edge; `anywhere`: on every node, for trying",
            "namespace": "Ray namespace of the actors; engines in one cluster need different ones, and ports and databases of Redis",
            "data_dir": "directory of the secret, the state file and the engine's own Redis",
            "rules_path": "file with the rules for POST /v1/events, read again when it changes",
            "start_timeout_s": "on one machine: time until every part must be ready; in a cluster the start waits for its machines",
            "log_level": "of the actors' logs",
        },
    ),
    "edge": Section(
        "where clients connect, and how connections are kept",
        {
            "host": "address the edges listen on; 0.0.0.0 for all interfaces",
            "port": "port of the edges; 0 picks a free one",
            "allowed_origins": "other origins whose pages may connect from a browser, such as https://app.example; `*` for all",
            "heartbeat_ms": "time between heartbeats; below the idle timeout of proxies in between",
            "drain_spread_ms": "time over which the clients of a drained edge are spread; when the engine stops, their reconnects",
            "offline_after_ms": "time after an abnormal close in which a user who neither reconnects nor probes is not yet offline",
        },
    ),
    "redis": Section(
        "durable storage",
        {
            "redis_url": "Redis 6.2+: redis://, rediss://, unix://, redis+sentinel://HOST,.../NAME, redis+cluster://HOST,.../4; empty: own",
            "redis_fsync": "of the engine's own Redis; `everysec` may lose the last second in a power cut",
            "redis_memory_bytes_max": "memory of the engine's own Redis; at nine tenths of it 429; 0: a third of the machine's",
            "redis_durability": "of your Redis: `required` refuses one that fsyncs too late, `reported` says so on /readyz and in 202s",
            "redis_replicas_min": "replicas that must have a write before it is answered",
            "snapshot_interval_s": "between snapshots of the engine's own Redis in DATA_DIR/snapshots; 0 for none",
            "snapshots_kept": "snapshots that are kept; with each new one the oldest beyond them are deleted",
        },
    ),
    "auth": Section(
        "what tokens are verified with; without a key the engine makes a secret",
        {
            "jwt_secret": "shared secret, HS256",
            "jwt_public_key": "PEM text, or the path of a PEM file; RS256 or ES256",
            "jwt_jwks_url": "URL of the identity provider's keys",
            "jwt_issuer": "`iss` that tokens must have, when set",
            "jwt_audience": "`aud` that tokens must have, when set",
            "ray_publish": "tenants for which every job of Ray may publish without a token; none, or on the engine's own Ray `default`",
            "ray_listen": "tenants whose users' messages every job of Ray may read and acknowledge; likewise",
        },
    ),
    "delivery": Section(
        "how long, and how often, a message is tried",
        {
            "ttl_s_default": "lifetime of a message published without `ttl`",
            "retry_tries": "sends of one message on one connection; then it waits for the next connection",
            "digest_ms": "time a user's digest gathers before it is sent",
            "digest_model": "groups missed texts for /v1/digest: serve://APP, an application of Ray Serve; empty: the engine's own model",
        },
    ),
    "limits": Section(
        "what is kept, and how much is taken",
        {
            "connections_max": "connections of one edge; beyond it 503",
            "connections_per_s": "WebSockets and event streams that may begin at one edge in a second; beyond it, and a burst, 429",
            "connections_idle_per_s": "the same while an edge has nothing else to do; not above `connections_per_s`: that rate always",
            "connections_per_user_max": "connections of one user; the oldest is closed for a new one",
            "connections_per_address_max": "connections of one client address per edge, loopback aside; raise it for a proxy",
            "offline_max": "messages kept per user; older ones are trimmed and announced as a gap",
            "offline_bytes_max": "and their bytes in storage, approximately",
            "inbox_max": "messages that a user's inbox keeps, also when they are acknowledged; 0: no inbox",
            "inbox_ttl_s": "how long it keeps them; a category may say otherwise",
            "user_forget_s": "after this long without activity a user without profile and subscriptions is forgotten",
            "data_bytes_max": "`data` of one message, as JSON",
            "shard_memory_bytes_max": "messages and mailboxes in one shard's memory; beyond it 429",
        },
    ),
    "links": Section(
        "connections between the engine's own nodes; they prove a key of the engine in any case",
        {
            "link_transport": "`auto`: sockets where they can be had; `ray`: Ray calls only, where nodes open no port to each other",
            "link_ports": "FIRST-LAST: TCP ports of links, one per actor, on the address of its Ray node; nothing listens on one machine",
            "link_tls_cert": "PEM file, on every node: certificate for mutual TLS 1.3, with the next two or none; read anew if changed",
            "link_tls_key": "PEM file, on every node: its private key, without a password",
            "link_tls_ca": "PEM file, on every node: the CA; whoever has a certificate of it is accepted",
        },
    ),
    "tenants": Section(
        "quotas of each tenant, for an engine that several share; beyond one 429; 0 for none",
        {
            "tenant_requests_per_s": "requests of one tenant to one edge in a second, and two seconds' worth at once",
            "tenant_users_max": "users of one tenant who have ever been sent something; beyond it new ones are refused",
            "tenant_stored_bytes_max": "mailboxes and pending messages of one tenant in storage, approximately",
            "tenant_topics_max": "different topics that users of one tenant are subscribed to",
            "tenant_signal_names_max": "names of counter signals of one tenant",
            "tenant_rules_max": "rules that a tenant's admin may store for its own tenant (docs/RULES.md)",
            "tenant_channels": "channels that steps of a tenant's own categories may name",
            "tenant_hosts": "hosts that webhooks of a tenant's own rules may be sent to, if webhook_hosts allows them too; empty: none",
            "tenant_cap_max": "messages of one of its own categories to a user within a day, at most; 0: any number",
        },
    ),
    **dict(FEATURES),
}
"""All published settings, in the order in which they are listed."""

SECTION_OF: Final[Mapping[str, str]] = dict.fromkeys(FIELDS, INTERNAL) | {
    name: title for title, section in SECTIONS.items() for name in section.settings
}
"""The section of every field of `Config`."""


class Loaded(Struct, frozen=True):
    """A checked configuration, and for every value that a source gave, which: a variable, `engine.toml`'s path, an option."""

    config: Config
    sources: Mapping[str, str]
    left_alone: tuple[str, ...] = ()
    """Variables that begin as the engine's do and are none, by name."""


def load(options: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None, toml_path: str | Path = TOML_PATH) -> Config:
    """The configuration from all sources; see `load_with_sources`."""
    return load_with_sources(options, env, toml_path).config


def load_with_sources(
    options: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None, toml_path: str | Path = TOML_PATH
) -> Loaded:
    """The configuration from all sources, and the source of each value.

    Args:
        options: what the command line gave; `None` values count as not given.
        env: the environment, `os.environ` when left out. Empty variables count as not set.
        toml_path: read when it exists.

    Raises:
        ConfigError: a source names an unknown setting (a variable: nearly a setting), or a value is malformed or out of range. One line.
    """
    given: dict[str, tuple[Any, str]] = {}
    given |= _from_file(Path(toml_path))
    environment, left_alone = _from_environment(os.environ if env is None else env)
    given |= environment
    given |= _from_options(options or {})
    values = {name: _converted(name, value, source) for name, (value, source) in given.items()}
    if not values.get("address"):
        values = _OF_OWN_RAY | values
    return Loaded(_complete(values), {name: source for name, (_, source) in given.items()}, left_alone)


def checked(config: Config) -> Config:
    """A configuration that a program made, as `load` would have it: its types checked, its paths absolute.

    Raises:
        ConfigError: a value is not allowed. One line.
    """
    return _complete({name: _converted(name, getattr(config, name), "") for name in FIELDS})


def _complete(values: dict[str, Any]) -> Config:
    for name in _FILES:
        if values.get(name):
            values[name] = os.path.abspath(values[name])  # the actors' processes have another working directory
    config = Config(**values)
    check(config)
    for section in SECTIONS.values():
        require(*section.rules(config))
    return config


def variable(name: str) -> str:
    """The environment variable of a field of `Config`."""
    return f"{_INTERNAL_PREFIX if SECTION_OF[name] == INTERNAL else _PREFIX}{name.upper()}"


def option_of(name: str) -> str:
    """The command line option of a setting, for commands that have one."""
    return _OPTIONS.get(name, f"--{name.replace('_', '-')}")


def unit(name: str) -> str:
    """The unit of a field's value, `""` for a plain number or a text."""
    found = _UNIT.search(name)
    return found[1].replace("_", " ") if found else ""


def allowed(name: str) -> str:
    """What a field of `Config` takes, as an operator reads it."""
    kind = FIELDS[name].type
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    return _described(inspect.type_info(kind))


# -- sources -----------------------------------------------------------------------------------------------------------
def _from_file(path: Path) -> dict[str, tuple[Any, str]]:
    try:
        if not path.is_file():
            return {}
        sections = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # unreadable; no TOML, no UTF-8, a number without end; nested without end
        raise ConfigError(f"{path}: {error}") from error
    given: dict[str, tuple[Any, str]] = {}
    if (tables := sections.pop(_TABLES, None)) is not None:
        given["sources"] = _from_tables(path, tables), str(path)
    for title, section in sections.items():
        if title not in (*SECTIONS, INTERNAL):
            raise ConfigError(f"{path}: {_unknown(title, section)}")
        if not isinstance(section, dict):
            raise ConfigError(f"{path}: {title} is a section: [{title}] on a line of its own, and its settings below it")
        for name, value in section.items():
            if name not in FIELDS:
                raise ConfigError(f"{path}: [{title}] {_unknown_setting(name, title)}")
            if SECTION_OF[name] != title:
                raise ConfigError(f"{path}: [{title}] {_misplaced(name)}")
            given[name] = value, str(path)
    return given


def _from_tables(path: Path, tables: Any) -> str:
    """The value of `sources`. A `connection_file`, which holds the connection of a source, is read here."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{path}: {_TABLES} is a list of tables: [[{_TABLES}]] on a line of its own, and its members below it")
    for table in tables:
        if (file := table.pop("connection_file", None)) is None:
            continue
        if "connection" in table or not isinstance(file, str):
            raise ConfigError(f"{path}: [[{_TABLES}]] connection_file: allowed is the path of a file, without a `connection` beside it")
        try:
            table["connection"] = path.parent.joinpath(file).read_text("utf-8").strip()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: [[{_TABLES}]] connection_file: {error}") from error
    try:
        return json.dumps(tables)
    except TypeError as error:  # a date or a time of TOML
        raise ConfigError(f"{path}: [[{_TABLES}]]: {error}; allowed are texts and numbers") from error


def _from_environment(env: Mapping[str, str]) -> tuple[dict[str, tuple[Any, str]], tuple[str, ...]]:
    """What the engine's variables give, and the names of those that are somebody else's."""
    given: dict[str, tuple[Any, str]] = {}
    left_alone: list[str] = []
    for key, text in env.items():
        if not key.startswith(_PREFIX) or not text or key in _OF_CLIENTS or _is_of_service(key, text):
            continue
        name = key.removeprefix(_INTERNAL_PREFIX if key.startswith(_INTERNAL_PREFIX) else _PREFIX).lower()
        if name not in FIELDS:
            near = _nearest(key, [variable(published) for published in FIELDS], _MISSPELT_RATIO_MIN)
            if near:
                raise ConfigError(f"unknown setting {key!r} in the environment; did you mean {near}?")
            left_alone.append(key)
            continue
        if key != variable(name):
            kind = "an internal limit, not part of the interface" if SECTION_OF[name] == INTERNAL else "a published setting"
            raise ConfigError(f"{key} in the environment: {name} is {kind}; its variable is {variable(name)}")
        given[name] = text, key
    return given, tuple(sorted(left_alone))


def _is_of_service(key: str, text: str) -> bool:
    """Whether Kubernetes describes a Service by this variable."""
    return bool(_OF_SERVICES.search(key)) or (key.endswith("_PORT") and bool(_ADDRESS_OF_SERVICE.match(text)))


def _from_options(options: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    for name in options:
        if name not in FIELDS:
            raise ConfigError(_unknown_setting(name, ""))
    return {name: (value, option_of(name)) for name, value in options.items() if value is not None}


def _converted(name: str, value: Any, source: str) -> Any:
    kind = FIELDS[name].type
    if isinstance(value, str) and isinstance(inspect.type_info(kind), inspect.VarTupleType):
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        what = "the value" if name in SECRETS else _shortened(value)
        where = f" ({source})" if source else ""
        raise ConfigError(
            f"setting {name}{where}: {what} is not allowed; allowed is {allowed(name)}{_IN_UNIT.get(unit(name), '')}"
        ) from error


# -- what errors say ---------------------------------------------------------------------------------------------------
_LIST_ALL: Final = "`engine config` lists all settings"


def _misplaced(name: str) -> str:
    """Of a setting that stands outside its section."""
    section = SECTION_OF[name]
    if section == INTERNAL:
        return f"{name} is an internal limit, not part of the interface; it is taken in the section [{INTERNAL}] only"
    return f"{name} is a setting of the section [{section}]"


def _unknown(title: str, value: Any) -> str:
    """Of a name at the top of the file, where only sections are: a section, `[title]` or `[[title]]`, or a setting."""
    if not isinstance(value, dict) and not (isinstance(value, list) and value and isinstance(value[0], dict)):
        return _misplaced(title) if title in FIELDS else _unknown_setting(title, "")
    near = _nearest(title, [*SECTIONS, INTERNAL])
    hint = _misplaced(title) if title in FIELDS else f"did you mean [{near}]?" if near else ""
    return "; ".join(filter(None, (f"there is no section {title!r}", hint, f"sections are {', '.join((*SECTIONS, INTERNAL))}")))


def _unknown_setting(name: str, title: str) -> str:
    """Of a name that no setting has; internal limits are proposed where they are allowed."""
    near = _nearest(name, [known for known in FIELDS if (SECTION_OF[known] == INTERNAL) == (title == INTERNAL)])
    return f"unknown setting {name!r}; {f'did you mean {near} in [{SECTION_OF[near]}]?' if near else _LIST_ALL}"


def _nearest(name: str, names: Iterable[str], ratio_min: float = 0.6) -> str:
    """The name most like this one; "" when none is."""
    return next(iter(difflib.get_close_matches(name, list(names), 1, ratio_min)), "")


def remark(left_alone: Iterable[str]) -> str:
    """What an operator reads of variables that are no settings; "" when there are none."""
    names = ", ".join(left_alone)
    return f"not settings of the engine, left alone: {names} (`engine config` lists all settings)" if names else ""


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."


def _described(kind: inspect.Type) -> str:
    match kind:
        case inspect.IntType(ge=low, le=high) if high == NUMBER_MAX:
            return f"an integer from {low} to 10^13"
        case inspect.IntType(ge=low, le=high):
            return "an integer" if low is None else f"an integer from {low} to {high}"
        case inspect.BoolType():
            return "true or false"
        case inspect.FloatType(ge=low, le=high):
            return "a finite number" if low is None else f"a number from {low} to {high}"
        case inspect.VarTupleType(item_type=item):
            return f"a list, or a text with commas; each {_described(item)}"
        case inspect.StrType(pattern=pattern) if pattern is not None:  # of tenants alone
            return "1 to 64 letters, digits, _ . and -"
        case _:
            return "a text"
