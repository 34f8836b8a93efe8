"""What the documents name exists: modules, files, settings, endpoints, commands. Also what docstrings and comments say of other modules."""

from __future__ import annotations

import importlib
import re
import runpy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from engine.config import SECRETS, Config
from tests.support.described import described

ROOT: Final = Path(__file__).parents[1]
DOCUMENTS: Final = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "bench/*.md", "examples/**/*.md", "deploy/**/*.md")
    for path in ROOT.glob(pattern)
    if "node_modules" not in path.parts
)
FOLDERS: Final = ("engine", "ray_notifications", "bench", "tests", "deploy", "examples")
SOURCES: Final = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

_CODE: Final = re.compile(r"`([^`\n]+)`")
_FILE: Final = re.compile(r"(?<![\w/.:-])((?:[\w-]+/)*[\w-]+\.(?:py|lua|yaml|yml|toml|sh|mjs|js|ts|html|svg|jsonl))(?![\w/])")
_MODULE: Final = re.compile(r"(?<![\w./-])((?:engine|ray_notifications|bench|tests)(?:\.[A-Za-z_]\w*)+)")
_VARIABLE: Final = re.compile(r"\bENGINE_(?:INTERNAL_)?([A-Z][A-Z0-9_]*[A-Z0-9])\b")
_SNAKE: Final = re.compile(r"(?<![\w*])[a-z][a-z0-9]*(?:_[a-z0-9]+)+(?![\w*])")
_ENDPOINT: Final = re.compile(r"(?<![\w}])/v1/[\w/{}-]*")

_LINK: Final = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]+))?\)")

_FILES_OF_USERS: Final = frozenset({"engine.toml", "engine.env", "engine.json", "deliveries.jsonl"})
_FOREIGN: Final = frozenset(
    {
        *("memory_usage_threshold", "preload_python_modules", "kill_worker_timeout_milliseconds", "working_dir"),  # Ray
        *("process_madvise", "ptrace_scope", "timerfd_settime", "epoll_wait"),  # Linux
    }
)
_SOURCE_SUFFIXES: Final = frozenset({".py", ".lua", ".yaml", ".toml", ".js", ".mjs", ".ts"})


def of_project() -> list[Path]:
    folders = [ROOT / name for name in (*FOLDERS, "docs", "clients")]
    found = [*ROOT.glob("*"), *(path for folder in folders for path in folder.rglob("*"))]
    return [path for path in found if "node_modules" not in path.parts]


def named(paths: Sequence[Path], pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """What the pattern finds in code within text, and where."""
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for code in _CODE.findall(line):
                for name in pattern.findall(code):
                    yield name, f"{path.relative_to(ROOT)}:{number}: {name}"


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part) and part not in getattr(found, "__annotations__", ()):
                return False
            found = getattr(found, part, None)
        return True
    return False


def test_files_that_documents_name_exist() -> None:
    parts = [path.relative_to(ROOT).parts for path in of_project()]
    ends = {"/".join(one[start:]) for one in parts for start in range(len(one))} | _FILES_OF_USERS
    assert not [place for name, place in named(DOCUMENTS, _FILE) if name not in ends]


def test_markdown_is_wrapped_at_100_columns() -> None:
    """But tables, headings, pictures and code."""
    long = []
    for document in DOCUMENTS:
        text = re.sub(r"^( *)```.*?^\1```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
        lines = [line.strip() for line in text.splitlines() if not line.startswith("    ")]
        long += [f"{document.relative_to(ROOT)}: {line}" for line in lines if len(line) > 100 and not line.startswith(("|", "#", "!["))]
    assert not long


def anchors(document: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_between_documents_lead_to_files_and_headings() -> None:
    broken = []
    for document in DOCUMENTS:
        for name, heading in _LINK.findall(document.read_text()):
            target = document.parent / name if name else document
            if not target.exists() or (heading and heading not in anchors(target)):
                broken.append(f"{document.relative_to(ROOT)}: {name}#{heading}")
    assert not broken


def test_modules_that_documents_docstrings_and_comments_name_exist() -> None:
    places = dict(named([*DOCUMENTS, *SOURCES], _MODULE))
    assert not [place for name, place in places.items() if name not in _FILES_OF_USERS and not resolves(name)]


def test_variables_that_documents_name_are_settings() -> None:
    settings = {name.upper() for name in Config.__struct_fields__}
    assert not [place for name, place in named(DOCUMENTS, _VARIABLE) if name not in settings]


def test_the_page_on_security_names_every_secret() -> None:
    text = (ROOT / "docs" / "SECURITY.md").read_text()
    assert not [name for name in SECRETS if f"`{name}`" not in text]


def test_names_that_documents_use_are_in_the_source() -> None:
    """Settings, members, functions, tests: none that was removed is left. Metrics have a test of their own."""
    paths = [path for path in of_project() if path.suffix in _SOURCE_SUFFIXES]
    known = set(re.findall(r"[a-z0-9_]+", "\n".join(path.read_text() for path in paths))) | {path.stem for path in paths} | _FOREIGN
    assert not [place for name, place in named(DOCUMENTS, _SNAKE) if name not in known and not name.startswith(("engine_", "ray_engine_"))]


def test_endpoints_that_documents_name_are_served() -> None:
    paths = [*described(Config(), [])["paths"], "/v1/ws"]
    prefixes = {path.partition("{")[0] for path in paths}
    served = [re.compile(re.sub(r"\{[^}]*\}", "[^/]+", path)) for path in paths]
    named_here = [(path, place) for path, place in named(DOCUMENTS, _ENDPOINT) if path not in prefixes]
    assert not [place for path, place in named_here if not any(one.fullmatch(path.rstrip("/")) for one in served)]


def test_the_index_of_endpoints_is_what_its_script_writes() -> None:
    page = (ROOT / "docs" / "ENDPOINTS.md").read_text()
    assert page == runpy.run_path(str(ROOT / "docs" / "endpoints.py"))["reference"](), "python -m docs.endpoints"
    methods = {path: methods.keys() - {"parameters"} for path, methods in described(Config(), [])["paths"].items()}
    listed = re.findall(r"^\| `([A-Z]+) (\S+)` \| (?:`\w+`|none) \|", page, re.MULTILINE)
    assert sorted(listed) == sorted((method.upper(), path) for path, found in methods.items() for method in found)


def test_the_architecture_picture_is_what_its_script_draws() -> None:
    draw = runpy.run_path(str(ROOT / "docs" / "architecture.py"))["draw"]
    assert (ROOT / "docs" / "architecture.svg").read_text() == draw(), "python docs/architecture.py"


def test_the_architecture_picture_lies_on_a_ground_in_both_schemes() -> None:
    picture = (ROOT / "docs" / "architecture.svg").read_text()
    size = re.search(r'viewBox="0 0 (\d+) (\d+)"', picture)
    assert size is not None
    first = re.search(r"</defs>\s*(<[^>]*>)", picture)
    assert first is not None
    assert f'<rect class="paper" width="{size[1]}" height="{size[2]}"' in first[1]
    light, dark = picture.split("prefers-color-scheme: dark")
    assert ".paper { fill: #ffffff }" in light
    assert ".paper { fill: #0d1117 }" in dark


def test_glossary_words_are_sorted_and_explained_briefly() -> None:
    rows = [line.strip("| ").split(" | ") for line in (ROOT / "docs" / "GLOSSARY.md").read_text().splitlines() if line.startswith("| ")][1:]
    words = [word.casefold() for word, _ in rows]
    assert words == sorted(words)
    assert not [word for word, meaning in rows if meaning.count(". ") > 1 or not meaning.endswith(".")]
