"""The rules of ARCHITECTURE.md that a program can check: what the core may import, and which way imports go."""

from __future__ import annotations

import ast
import functools
import gc
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.metrics import of_features
from engine.actors import feature_actors
from engine.api.exposition import catalogue

ROOT = Path(__file__).parent.parent / "engine"
MODULES = sorted(path for path in ROOT.rglob("*.py"))
CORE = [
    path
    for path in MODULES
    if path.is_relative_to(ROOT / "core") or (path.is_relative_to(ROOT / "features") and "core" in path.with_suffix("").parts)
]

CORE_MAY_IMPORT = {
    "__future__", "abc", "base64", "bisect", "collections", "collections.abc", "contextlib", "dataclasses", "datetime", "enum", "functools",
    "google_crc32c", "hashlib", "heapq", "hmac", "itertools", "jinja2", "jinja2.sandbox", "json", "math", "msgspec", "operator", "re",
    "struct", "tomllib", "types", "typing", "uuid", "zlib",
    "engine", "engine.errors", "engine.config",
}  # fmt: skip
"""What computes from its arguments alone. `uuid` only for parsing: making one reads a clock and a random source."""

IMPURE_CALLS = {"uuid1", "uuid4", "uuid6", "uuid7", "now", "utcnow", "today", "urandom", "getenv"}

PACKAGES = (
    "check",
    "errors",
    "config",
    "core.model",
    "core.policy",
    "core.inbox",
    "core.wire",
    "core.mailbox",
    "core.journal",
    "core.commit",
    "core.shard",
    "core.scheduler",
    "core.edge",
    "core.controller",
    "store",
    "http",
    "auth",
    "publish",
    "gateway",
    "api",
    "transports",
    "features.traces",
    "features.audit",
    "features.token_revocation",
    "features.policy",
    "features.windows",
    "features.rules",
    "features.actions",
    "features.reach",
    "features.signals",
    "features.digest",
    "features.history",
    "features.dead_letters",
    "features.event_groups",
    "features.inbox",
    "features.snooze",
    "features.questions",
    "features.growing",
    "features.subscriptions",
    "features.user_data",
    "features.inspection",
    "features.ray_events",
    "features.autoscaling",
    "features.verification",
    "features.sources",
    "features.snapshots",
    "features.redis_cluster",
    "features.mcp",
    "routes",
    "actors",
    "client",
    "ray",
    "cli",
    "features.commands",
    "__main__",
)
"""Lowest first, and so the way of a message from the bottom up. A module imports from its own package and from lower ones.

The commands of a feature run in a process of their own, beside the engine, and use what `engine.cli` has for commands."""

PARTS = {"edge_part", "shard_part", "scheduler_part", "controller_part"}
OF_EACH_FEATURE = {"core", "store", "endpoints", "description", "figures", "settings", "commands", "keys", "stored", *PARTS}
"""Modules that any feature may have."""

LISTS_OF_FEATURES = {
    "routes.py": "of an edge",
    "actors/shard_features.py": "of a shard",
    "actors/scheduler_features.py": "of a scheduler",
    "actors/controller_features.py": "of the controller",
    "actors/feature_actors.py": "with actors of their own",
    "cli/feature_checks.py": "with checks of `engine doctor`",
    "cli/feature_settings.py": "with settings",
    "cli/feature_data.py": "with data that `engine verify` checks",
    "__main__.py": "with commands",
}
"""The modules of the kernel that name features, each in one sequence `FEATURES`."""

METRICS_OF_THE_KERNEL = {
    "engine_refused_questions": "questions about users, which edges ask shards",
    "engine_snapshot_age_seconds": "snapshots that the controller takes by schedule",
    "engine_snapshot_failures": "likewise",
}
"""Metrics whose names have the word of a feature, with what the kernel counts in them."""

MIRRORED = {"link", "shard", "scheduler", "edge", "controller"}
"""Modules of `engine.actors` that bear the name of what they are the shell of."""

TESTS = Path(__file__).parent

ACROSS_MODULES = {
    "features/user_data/test_everything_kept.py": "every kind of key in Redis, with what an export and an erasure make of it",
    "actors/test_slot_mover_stores.py": "slots that move while another store is away",
    "actors/test_overload.py": "a whole engine under more than it can do",
    "actors/test_stopping.py": "the end of a whole engine, after all tests that share it",
    "http/test_description_conformance.py": "every endpoint of an edge, by requests made from the description",
    "features/test_left_out.py": "an edge without a feature",
    "transports/test_rfc_6455.py": "RFC 6455 over both handshakes, the frames of the engine's own reader and of the library",
    "ray/test_runtime_environments.py": "tasks of another job on the Ray of an engine (`engine.cli.ray_parts`)",
    "ray/test_examples.py": "the examples of docs/RAY.md, as a user runs them",
    "test_public_interface.py": "what applications import: names, signatures and docstrings",
    "test_documents.py": "the documents: names in them exist",
    "features/traces/test_whole_traces.py": "the spans of messages through a whole engine, at a real receiver",
    "store/test_refused_writes.py": "every script against a Redis that refuses writes",
}
"""Tests of mirrored folders that belong to no single module, with what they are about."""

NOT_MIRRORED = {
    "bench",
    "browser",
    "chaos",
    "clients",
    "cluster",
    "conformance",
    "deploy",
    "fuzz",
    "hosts",
    "outside",
    "proof",
    "sim",
    "support",
}
"""Folders of tests that are not those of one package."""

TOP_LEVEL_MAX = 13
NOT_COUNTED = {"__init__.py", "__main__.py", "py.typed", "routes.py", "actors", "ray", "check"}
"""What Python or the project prescribes; `engine.ray` is a name of the interface, as `engine.client` is; `engine.check` stands alone."""


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file. Without garbage collection: Python 3.11 before .8 fails when another thread parses in one (gh-106905)."""
    gc.disable()
    try:
        return ast.parse(path.read_text("utf-8"))
    finally:
        gc.enable()


@functools.cache
def imports(path: Path) -> list[tuple[int, str]]:
    """Every module that a file imports, with its line, also inside functions."""
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.lineno, node.module))
            if (ROOT.parent / node.module.replace(".", "/")).is_dir():
                found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names if alias.name != "__version__"]
    return found


def files_that_import(pattern: str) -> list[Path]:
    """Files of tests whose imports have the pattern in their text: to parse all of them takes three seconds."""
    statement = re.compile(r"^\s*(?:from|import)\s[^\n(]*(?:\([^)]*\))?", re.MULTILINE)
    texts = {path: "\n".join(statement.findall(path.read_text("utf-8"))) for path in sorted(TESTS.rglob("*.py"))}
    return [path for path, text in texts.items() if re.search(pattern, text)]


def floor_of(module: str) -> int | None:
    """The place in PACKAGES of `engine.<name>...`; None for what is not the engine's, and for what only says that a package exists."""
    parts = module.split(".")
    if parts[0] != "engine" or parts[1:] in ([], ["core"], ["features"]):
        return None
    if parts[1] == "features" and parts[3:4] == ["commands"]:
        return PACKAGES.index("features.commands")
    package = ".".join(parts[1:3]) if parts[1] in ("core", "features") else parts[1]
    assert package in PACKAGES, f"engine.{package} has no place: give it one in tests/test_architecture.py"
    return PACKAGES.index(package)


def is_core_of_a_feature(name: str) -> bool:
    return name.split(".")[1:2] == ["features"] and "core" in name.split(".")


def test_the_core_imports_only_what_computes_from_its_arguments() -> None:
    wrong = [
        f"{path}:{line} imports {name}"
        for path in CORE
        for line, name in imports(path)
        if name not in CORE_MAY_IMPORT and not name.startswith("engine.core") and not is_core_of_a_feature(name)
    ]
    assert not wrong, "\n".join(wrong)


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def test_the_core_reads_no_clock_and_no_random_source() -> None:
    wrong = [
        f"{path}:{node.lineno} calls {called(node)}()"
        for path in CORE
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and called(node) in IMPURE_CALLS
    ]
    assert not wrong, "\n".join(wrong)


def test_packages_import_from_lower_ones_only() -> None:
    wrong = []
    for path in MODULES:
        own = floor_of(module_name(path))
        for line, name in imports(path) if own is not None else ():
            other = floor_of(name)
            if own is not None and other is not None and other > own:
                wrong.append(f"{path}:{line} {module_name(path)} imports {name}, which stands above it")
    assert not wrong, "\n".join(wrong)


def test_the_checker_of_histories_shares_no_code_with_the_engine() -> None:
    def is_of_checker(module: str) -> bool:
        return module.split(".")[:2] == ["engine", "check"]

    wrong = [
        f"{path}:{line} imports {name}"
        for path in MODULES
        for line, name in imports(path)
        if name.split(".")[0] == "engine" and is_of_checker(module_name(path)) != is_of_checker(name)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_kernel_names_features_only_in_its_lists() -> None:
    """By import, and by name in texts."""
    kernel = {path.relative_to(ROOT).as_posix(): path for path in MODULES if not path.is_relative_to(ROOT / "features")}
    naming = {name for name, path in kernel.items() if "engine.features" in path.read_text("utf-8")}
    assert naming == LISTS_OF_FEATURES.keys()


def test_scripts_of_the_kernel_serve_the_kernel_or_several_features() -> None:
    scripts = ROOT / "store" / "scripts"
    named = {path.relative_to(ROOT): set(re.findall(r'Script\("([a-z_/]+)"', path.read_text())) for path in MODULES}
    for script in scripts.rglob("*.lua"):
        name = str(script.relative_to(scripts).with_suffix(""))
        users = {"/".join(path.parts[:2]) for path, names in named.items() if name in names}
        of_one_feature = len(users) == 1 and users.pop().startswith("features/")
        assert not of_one_feature, f"{name}.lua belongs into the folder of its feature"


def texts_in(path: Path) -> Iterator[tuple[int, str]]:
    """Every text in a file that is no docstring, with its line."""
    docstrings = {id(node.value) for node in ast.walk(parsed(path)) if isinstance(node, ast.Expr)}
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def test_the_figures_of_a_feature_are_named_in_its_folder_only() -> None:
    """Its metrics, and the roles of its actors, by which the status lists their rows."""
    roles = {actor.module.split(".")[2]: actor.role for actor in feature_actors.FEATURES}
    names = {feature: {figure.family.name for figure in metrics.figures} for feature, metrics in of_features().items()}
    for feature, role in roles.items():
        names[feature] |= {role, f"{role}s"}
    wrong = [
        f"{path}:{line} names `{text}`, which is of {feature}"
        for path in MODULES
        for line, text in texts_in(path)
        for feature, of_feature in names.items()
        if text in of_feature and not path.is_relative_to(ROOT / "features" / feature) and path != Path(feature_actors.__file__)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_metric_named_by_a_word_of_a_feature_is_declared_there() -> None:
    folders = {path.name for path in (ROOT / "features").iterdir() if (path / "__init__.py").exists()}
    words = {word for folder in folders for word in (folder, folder.removesuffix("s"))}
    families = (family for listed in (catalogue.OF_ACTORS, catalogue.ENGINE_WIDE) for found in listed.values() for family in found)
    named = {family.name for family in families if re.search(rf"_({'|'.join(words)})(_|$)", family.name)}
    assert named == METRICS_OF_THE_KERNEL.keys()


def test_no_module_name_is_used_twice() -> None:
    places: dict[str, list[str]] = {}
    for path in MODULES:
        mirrored = path.parent.name == "actors" and path.stem in MIRRORED
        if path.stem not in {"__init__", "__main__"} and not mirrored and path.stem not in OF_EACH_FEATURE:
            places.setdefault(path.stem, []).append(module_name(path))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_no_public_name_of_a_type_is_used_twice() -> None:
    """Classes and aliases. The client is a library of its own: its names are those of its users."""
    places: dict[str, list[str]] = {}
    for path in (path for path in MODULES if not path.is_relative_to(ROOT / "client")):
        for name in types_of(parsed(path)):
            places.setdefault(name, []).append(module_name(path))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def types_of(module: ast.Module) -> set[str]:
    """Public names in CapitalizedWords that a module defines."""
    found = set()
    for node in module.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
        found |= {node.name} if isinstance(node, ast.ClassDef) else set()
    return {name for name in found if re.fullmatch(r"[A-Z][a-z0-9]+[A-Za-z0-9]*", name)}


def test_the_top_level_can_be_taken_in_at_a_glance() -> None:
    entries = {path.name for path in ROOT.iterdir() if path.name != "__pycache__"} - NOT_COUNTED
    assert len(entries) <= TOP_LEVEL_MAX, sorted(entries)


def test_tests_mirror_the_tree() -> None:
    """`engine/a/b.py` is tested by `tests/a/test_b.py`; its random histories may have a file of their own, `test_b_stateful.py`."""
    known = {path.relative_to(ROOT).with_suffix("").as_posix() for path in MODULES}
    found = {path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")}
    mirrored = {name for name in found if name.split("/")[0] not in NOT_MIRRORED} - {"test_architecture.py"}
    stray = [name for name in sorted(mirrored - ACROSS_MODULES.keys()) if module_tested_by(name) not in known]
    assert not stray, f"of no module: {stray}"
    assert ACROSS_MODULES.keys() <= mirrored, "take what is gone off the list"


def module_tested_by(test: str) -> str:
    """`core/shard/test_shard_stateful.py` -> `core/shard/shard`."""
    folder, _, name = test.removesuffix(".py").removesuffix("_stateful").rpartition("test_")
    return folder + name


def test_no_test_module_imports_another() -> None:
    """What tests share lives in tests/support; a conftest holds fixtures, which nobody imports."""
    wrong = [
        f"{path}:{line} imports {name}"
        for path in files_that_import(r"\b(conftest|test_)")
        for line, name in imports(path)
        if name.startswith("tests.") and any(part == "conftest" or part.startswith("test_") for part in name.split("."))
    ]
    assert not wrong, "\n".join(wrong)


def test_tests_of_the_engine_need_no_benchmark() -> None:
    """What both use lives in tests/support, and bench imports it from there."""
    wrong = [
        f"{path}:{line} imports {name}"
        for path in files_that_import(r"\bbench\b")
        if not path.is_relative_to(TESTS / "bench")
        for line, name in imports(path)
        if name.partition(".")[0] == "bench"
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", sorted(TESTS.rglob("conftest.py")), ids=lambda path: path.relative_to(TESTS).as_posix())
def test_what_a_folder_of_tests_shares_ends_with_the_folder(path: Path) -> None:
    """Without an `__init__.py` pytest takes no folder for a package, and ends its fixtures of that scope with the whole session."""
    scopes = {
        ast.literal_eval(keyword.value)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "scope"
    }
    folders = [folder for folder in path.parents if folder.is_relative_to(TESTS)]
    assert "package" not in scopes or all((folder / "__init__.py").exists() for folder in folders)


def test_every_module_states_its_theory_of_operation() -> None:
    silent = [path for path in MODULES if not ast.get_docstring(parsed(path))]
    assert not silent, f"without a docstring: {silent}"
