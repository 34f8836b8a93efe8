"""Which server program is taken: the newest, and what is known of an old one."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.store import server_program
from engine.store.server_program import ServerProgram, installed_servers


def script(folder: Path, name: str, told: str) -> Path:
    """A program that answers `--version` with this."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{told}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def without_bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_program, "find_spec", lambda _name: None)


@pytest.mark.usefixtures("without_bundled")
def test_the_newest_program_on_path_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "a", "redis-server", "Redis server v=7.0.15 sha=0:0")
    valkey = script(tmp_path / "b", "valkey-server", "Valkey server v=8.1.4 sha=0:0")
    monkeypatch.setenv("PATH", f"{tmp_path}/a:{tmp_path}/b:/bin")
    assert installed_servers()[0].path == valkey
    assert [str(program) for program in installed_servers()] == [
        f"Valkey 8.1.4 ({valkey})",
        f"Redis 7.0.15 ({tmp_path}/a/redis-server)",
    ]


def test_an_old_one_on_path_gives_way_to_the_one_that_a_dependency_brings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = script(tmp_path, "redis-server", "Redis server v=6.2.14 sha=0:0")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    newest, *_, last = installed_servers()
    assert newest.product == "Valkey"
    assert newest.version >= (9, 1, 2)
    assert newest.lacking_fixes == ""
    assert last.path == old
    newer = script(tmp_path, "redis-server", "Redis server v=10.0.0 sha=0:0")
    assert installed_servers()[0].path == newer


@pytest.mark.usefixtures("without_bundled")
def test_a_program_that_does_not_run_or_is_another_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "redis-server", "KeyDB server v=6.3.4")
    (tmp_path / "valkey-server").write_text("#!/no/such/interpreter\n")
    (tmp_path / "valkey-server").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no valkey-server or redis-server found"):
        installed_servers()


def test_a_program_without_an_allocator_gets_that_of_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "a", "redis-server", "Redis server v=98.0.0 sha=0:0 malloc=libc bits=64")
    script(tmp_path / "b", "valkey-server", "Valkey server v=99.0.0 sha=0:0 malloc=jemalloc-5.3.0 bits=64")
    monkeypatch.setenv("PATH", f"{tmp_path}/a:{tmp_path}/b:/bin")
    monkeypatch.setenv("LD_PRELOAD", "libof.so.user")
    with_own, without, *_ = installed_servers()
    assert with_own.environment["LD_PRELOAD"] == "libof.so.user"
    first, second = without.environment["LD_PRELOAD"].split()
    assert (first, Path(second).name) == ("libof.so.user", "libjemalloc.so")
    assert Path(second).exists()


@pytest.mark.parametrize(
    ("product", "version", "fixed"),
    [
        ("Redis", (6, 2, 14), False),
        ("Redis", (6, 2, 20), True),
        ("Redis", (7, 0, 15), False),
        ("Redis", (7, 2, 10), False),
        ("Redis", (7, 2, 11), True),
        ("Redis", (8, 0, 3), False),
        ("Redis", (8, 4, 0), True),
        ("Valkey", (8, 0, 6), True),
        ("Valkey", (8, 1, 3), False),
        ("Valkey", (9, 1, 2), True),
    ],
)
def test_a_version_without_the_fixes_of_the_lua_vulnerabilities_is_known(product: str, version: tuple[int, int, int], fixed: bool) -> None:
    lacking = ServerProgram(Path("/x"), product, version).lacking_fixes
    assert (lacking == "") == fixed
    assert fixed or "CVE-2025-49844" in lacking
