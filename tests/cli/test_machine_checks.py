"""The checks of `engine doctor` on this machine, each where it finds something and where it does not."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from engine.auth.tokens import SECRET_FILE, load_or_create_secret
from engine.cli import machine_checks
from engine.cli.finding import Finding
from engine.cli.machine_checks import clock, files, interpreter, keys, memory, open_files, packages, ports, storage_program
from engine.config import Config
from engine.errors import ConfigError
from tests.support.another_user import as_nobody


def only(found: Iterator[Finding]) -> Finding:
    (finding,) = found
    return finding


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(data_dir=str(tmp_path / "data"), port=0)


@pytest.mark.parametrize(
    ("options", "prefix", "level"),
    [
        ("'--enable-shared' '--enable-optimizations'", "/opt/python", "ok"),
        ("'--enable-shared'", "/opt/python", "warning"),
        ("'--enable-shared'", "/usr", "ok"),  # Debian's: optimised, and its options do not say so
    ],
)
def test_a_python_without_optimisation_is_told(options: str, prefix: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: {"CONFIG_ARGS": options}[name])
    monkeypatch.setattr(sys, "base_prefix", prefix)
    assert only(interpreter()).level == level


def test_the_installed_packages_are_those_required(monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(packages()).level == "ok"
    monkeypatch.setattr(machine_checks, "requires", lambda _: ["redis>=99", "no-such-package>=1", 'absent>=1; extra == "test"'])
    finding = only(packages())
    assert finding.level == "failed"
    assert "needed is >=99; no-such-package is absent" in finding.found


@pytest.mark.skipif(sys.platform != "linux", reason="adjtimex is Linux's")
@pytest.mark.parametrize(("state", "level"), [(0, "ok"), (5, "warning")])
def test_a_clock_that_nothing_sets_is_told(state: int, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(clock()).check == "clock"  # the kernel's answer, whichever
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(adjtimex=lambda _: state))
    assert only(clock()).level == level


def test_the_data_directory_is_looked_at_and_not_made(config: Config, tmp_path: Path) -> None:
    found = {finding.check: finding for finding in files(config)}
    assert found["files"].level == found["disk"].level == "ok"
    assert not Path(config.data_dir).exists()
    Path(config.data_dir).mkdir(mode=0o755)
    assert "others may read" in next(files(config)).found
    (tmp_path / "file").touch()
    assert next(files(replace(config, data_dir=str(tmp_path / "file")))).level == "failed"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a directory away")
@pytest.mark.parametrize("mode", [0o777, 0o700])
def test_a_data_directory_of_another_user_is_told(config: Config, mode: int) -> None:
    with tempfile.TemporaryDirectory() as parent:
        Path(parent, "data").mkdir()
        Path(parent, "data").chmod(0o777)
        Path(parent).chmod(mode)
        found = as_nobody(lambda: next(files(replace(config, data_dir=f"{parent}/data"))))
    assert (found.level, "data_dir" in found.found) == ("failed", True)


def test_a_secret_open_to_others_is_told(config: Config) -> None:
    load_or_create_secret(config.data_dir)
    assert only(keys(config)).level == "ok"
    Path(config.data_dir, SECRET_FILE).chmod(0o644)
    assert "chmod 600" in only(keys(config)).found


def test_a_full_disk_is_told(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=17 << 20))
    assert [(finding.level, finding.found[:6]) for finding in files(config) if finding.check == "disk"] == [("warning", "17 MiB")]


@pytest.mark.parametrize(
    ("settings", "level", "told"),
    [
        ({}, "ok", "a secret of its own"),
        ({"jwt_secret": "x" * 32}, "ok", "as configured"),
        ({"jwt_secret": "short"}, "warning", "at least 32 bytes are needed"),
        ({"jwt_secret": "short", "host": "0.0.0.0"}, "failed", "only an engine on loopback starts without"),
        ({"jwt_public_key": "/no/such/file"}, "failed", "jwt_public_key"),
        ({"link_tls_cert": "/no/a", "link_tls_key": "/no/b", "link_tls_ca": "/no/c"}, "failed", "link_tls_ca"),
    ],
)
def test_keys_that_keep_an_engine_from_starting_are_told(config: Config, settings: dict[str, Any], level: str, told: str) -> None:
    finding = only(keys(replace(config, **settings)))
    assert finding.level == level
    assert told in finding.found


def test_a_port_in_use_is_told(config: Config) -> None:
    assert only(ports(config)).level == "ok"
    with socket.create_server(("127.0.0.1", 0)) as server:
        finding = only(ports(replace(config, port=server.getsockname()[1])))
    assert finding.level == "failed"
    assert "choose another with --port" in finding.found
    assert "not looked at from here" in only(ports(replace(config, address="auto", port=8000))).found


def test_a_machine_without_a_redis_program_is_told(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    assert next(storage_program(config)).found.startswith("its own: ")
    assert list(storage_program(replace(config, redis_url="redis://127.0.0.1:1"))) == []

    def none() -> None:
        raise ConfigError("redis_url: no valkey-server or redis-server found")

    monkeypatch.setattr(machine_checks, "installed_servers", none)
    assert only(storage_program(config)).level == "failed"


def test_a_kernel_that_may_refuse_to_fork_is_told(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "_OVERCOMMIT", tmp_path / "overcommit")
    (tmp_path / "overcommit").write_text("0\n")
    assert [finding.level for finding in storage_program(config)] == ["ok"]
    (tmp_path / "overcommit").write_text("2\n")
    assert [finding.level for finding in storage_program(config)] == ["ok", "warning"]


def test_too_little_memory_is_told(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "memory_bytes", lambda: 8 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=6 << 30))
    assert only(memory(config)).level == "ok"
    assert only(memory(replace(config, redis_memory_bytes_max=5 << 30))).level == "warning"
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 30))
    assert only(memory(config)).found == "1.0 of 8.0 GiB free"
    assert only(memory(config)).level == "warning"


@pytest.mark.parametrize(("hard", "level"), [(1024, "warning"), (51_000, "ok"), (resource.RLIM_INFINITY, "ok")])
def test_a_limit_of_open_files_below_the_connections_is_told(
    config: Config, hard: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, hard))
    assert only(open_files(config)).level == level
