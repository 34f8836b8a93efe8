"""The npm package of the browser client: complete, alone, and declared as it is.

What needs Node.js runs where it is installed; the first tests find most of it without.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest

from tests.support.background_loop import in_background
from tests.support.edge_world import edge_world
from tests.support.missing_programs import PREFIX

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "clients" / "js"
SOURCES = ROOT / "engine" / "http" / "static" / "client"
MANIFEST = json.loads((PACKAGE / "package.json").read_text())
MODULES = sorted(SOURCES.rglob("*.js"))


def exported(text: str) -> set[str]:
    """Names that a module or a declaration file exports, but for types."""
    lists = re.findall(r"^export \{([^}]*)\}", text, re.MULTILINE)
    declared = re.findall(r"^export (?:declare )?(?:async )?(?:class|const|function) (\w+)", text, re.MULTILINE)
    return {name.split()[-1] for one in lists for name in one.split(",") if name.strip()} | set(declared)


def npm(folder: Path, *arguments: str) -> str:
    if shutil.which("npm") is None:
        pytest.skip(PREFIX + "no npm: the package of the browser client was not packed")
    done = subprocess.run(["npm", *arguments, "--loglevel=error", "--offline"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_package_has_the_version_of_the_engine() -> None:
    assert MANIFEST["version"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.parametrize("path", sorted(path for path, entry in MANIFEST["exports"].items() if "default" in entry))
def test_everything_that_is_exported_exists_and_is_declared(path: str) -> None:
    entry = MANIFEST["exports"][path]
    module = PACKAGE / entry["default"] if path == "./react" else SOURCES / entry["default"].removeprefix("./lib/")
    declarations = PACKAGE / entry["types"]
    assert declarations.name in MANIFEST["files"]
    assert exported(module.read_text()) == exported(declarations.read_text())


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(SOURCES).as_posix())
def test_modules_import_each_other_and_nothing_else(module: Path) -> None:
    text = module.read_text()
    for imported in re.findall(r'^(?:import|export)(?: [^;"(]*? from)? "([^"]+)";', text, re.MULTILINE):
        assert imported.startswith("."), f"{module} imports {imported}, a dependency"
        assert (module.parent / imported).resolve() in MODULES, f"{module} imports {imported}, which is not in the package"
    assert text.startswith("/**")


def test_a_packed_package_has_the_sources_and_is_imported_where_there_is_no_page(tmp_path: Path) -> None:
    for folder in (PACKAGE, SOURCES):
        shutil.copytree(folder, tmp_path / folder.relative_to(ROOT), ignore=shutil.ignore_patterns("node_modules", "lib"))
    shutil.copy(ROOT / "LICENSE", tmp_path)
    npm(tmp_path / "clients" / "js", "pack", "--pack-destination", str(tmp_path))
    installed = tmp_path / "application" / "node_modules" / MANIFEST["name"]
    with tarfile.open(next(tmp_path.glob("*.tgz"))) as tarball:
        tarball.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python has none
        tarball.extractall(installed)
    package = installed / "package"
    sources = {f"lib/{module.relative_to(SOURCES).as_posix()}" for module in MODULES}
    declarations = {entry["types"].removeprefix("./") for entry in MANIFEST["exports"].values()}
    found = {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()}
    assert found == sources | declarations | {"react.js", "package.json", "README.md", "LICENSE"}
    for path in package.iterdir():
        path.rename(installed / path.name)
    modules = [path[1:] for path, entry in MANIFEST["exports"].items() if path != "./react"]  # React is no dependency
    script = "".join(f"await import('{MANIFEST['name']}{path}');" for path in modules)
    done = subprocess.run(["node", "--input-type=module", "--eval", script], cwd=tmp_path / "application", capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_sources_and_declarations_agree_with_typescript() -> None:
    if not (PACKAGE / "node_modules" / ".bin" / "tsc").exists():
        pytest.skip(PREFIX + "no TypeScript: the declarations of the browser client were not checked (cd clients/js && npm ci)")
    npm(PACKAGE, "run", "types")


def test_preferences_and_the_inbox_are_asked_for_without_a_page_or_a_connection(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip(PREFIX + "no Node.js: the requests of the browser client were not tried")
    script = """
        import { NotifyClient, Refused } from "./client/index.js";
        const client = new NotifyClient({ url: process.argv[2], token: process.argv[3], transports: ["poll"] });
        client.close();
        const changed = await client.setPreferences({ categories: { touch: "off" }, types: { "a.*": "digest" } });
        const back = await client.setPreferences({ categories: { touch: null } });
        const refused = await client.setPreferences({ level: "vip" }).catch((error) => error instanceof Refused && error.message);
        const { messages } = await client.inbox({ unread: true });
        const { types } = await client.preferences();
        console.log(JSON.stringify([changed.available.touch.choice, back.categories, types, refused, messages]));
        process.exit(); // a client renews its token by a timer, which would keep the process
    """
    shutil.copytree(SOURCES, tmp_path / "client")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "ask.js").write_text(script)
    with in_background(edge_world()) as world:
        done = subprocess.run(["node", "ask.js", world.url(), world.token("u1")], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["off", {}, {"a.*": "digest"}, "only the application may set it", []]
