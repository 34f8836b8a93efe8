"""The command line as a user meets it: real processes, real signals, what they print and what they leave behind."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner
from websockets.exceptions import InvalidStatus

from engine.__main__ import app
from engine.cli.state_file import EngineState, read_state, remove_state, running_state, write_state
from engine.cli.status_report import ask_status
from engine.client import Client
from engine.config import Config
from engine.errors import EngineError
from engine.store.embedded_redis import DataDirLock
from tests.support.another_user import as_nobody
from tests.support.running_engine import RunningEngine, wait_gone

COMMANDS = ("up", "token", "revoke", "publish", "listen", "replay", "rules", "status", "config", "scale", "snapshot", "restore", "down")
STOP_S = 30
"""The aim is 4 s; this machine may be doing anything else."""


def refusal(action: Callable[[], object]) -> str:
    try:
        action()
    except EngineError as error:
        return str(error)
    return ""


def engine_command(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "engine", *arguments],
        cwd=cwd,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


# -- without an engine -------------------------------------------------------------------------------------------------
def test_help_teaches_every_command_and_starts_no_ray(tmp_path: Path) -> None:
    steps = ("import sys; sys.argv = ['engine', '--help']", "try:", " import engine.__main__; engine.__main__.main()")
    code = "\n".join((*steps, "finally:", " print('ray' in sys.modules)"))
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    for command in COMMANDS:
        assert f" {command} " in found.stdout
    assert "engine publish alice" in found.stdout
    assert found.stdout.rstrip().endswith("False")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ENGINE_HOST": "0.0.0.0", "ENGINE_JWT_SECRET": "short"}, "jwt_secret: at least 32 bytes are needed"),
        ({"ENGINE_HOST": "0.0.0.0", "ENGINE_JWT_JWKS_URL": "https://x.example/"}, "jwt_audience: needed with jwt_jwks_url"),
        ({"ENGINE_JWT_PUBLIC_KEY": "no.pem"}, "jwt_public_key: neither PEM text nor a readable file"),
        ({"ENGINE_RULES_PATH": "none.toml"}, "none.toml: No such file or directory"),
        ({"ENGINE_RULES_PATH": "bad.toml"}, "bad.toml:2: rule 'like': "),
    ],
)
def test_an_engine_with_weak_keys_or_unusable_rules_does_not_start_and_names_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], said: str
) -> None:
    (tmp_path / "bad.toml").write_text('\n[[rule]]\nname = "like"\nevent = "e"\n')
    monkeypatch.chdir(tmp_path)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    found = CliRunner().invoke(app, ["up", "--port", "0", "--data-dir", "data"])
    assert isinstance(found.exception, EngineError)
    assert said in str(found.exception)
    assert "\n" not in str(found.exception)
    assert "starting" not in found.stdout


def test_a_command_ends_quietly_with_the_reader_of_its_output(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "engine", "token", "alice"]
    env = os.environ | {"ENGINE_JWT_SECRET": "x" * 32}
    found = subprocess.run(command, cwd=tmp_path, env=env, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert (found.returncode, found.stderr) == (1, "")


def test_output_that_a_full_disk_does_not_take_is_said_in_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "engine", "config", "--json"]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (1, "error: standard output: No space left on device\n")


@pytest.mark.parametrize("words", [("history",), ("publish", "alice"), ("export",)])
def test_words_that_are_not_utf8_are_refused_in_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    env = os.environ | {"ENGINE_JWT_SECRET": "x" * 32}
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        command = [os.fsencode(word) for word in (sys.executable, "-m", "engine", *words, "--url", url)]
        ended = subprocess.run([*command, b"b\xff"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (1, "error: 'b\\udcff' is not UTF-8\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    found = CliRunner().invoke(app, [command, "--help"])
    assert found.exit_code == 0
    assert "Usage" in found.stdout
    assert "default: (" not in found.stdout


def test_prose_of_a_help_flows_and_examples_keep_their_lines() -> None:
    shown = CliRunner().invoke(app, ["verify", "--help"], env={"COLUMNS": "80"}).stdout
    lines = [line.strip() for line in shown.splitlines()]
    prose = lines[lines.index("While an engine runs on the data directory, its Redis is read; users do not") :]
    assert prose[1].startswith("notice. Otherwise a copy of the directory's data is loaded and read,")
    assert all(len(line) > 60 for line in prose[1:3]), "a line end of the source is kept"
    assert "engine verify" in lines


@pytest.mark.slow
def test_an_unknown_setting_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "engine.toml").write_text("prot = 1\n")
    found = engine_command("status", cwd=tmp_path)
    assert found.returncode == 1
    assert "unknown setting 'prot'" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("status",), ("scale", "--shards", "3")])
def test_commands_that_need_an_engine_say_how_to_start_one(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    found = engine_command(*arguments, cwd=tmp_path)
    assert found.returncode == 1
    assert "engine up" in found.stderr


@pytest.mark.slow
def test_the_status_of_an_engine_that_was_killed_is_one_line_that_says_so(tmp_path: Path) -> None:
    (tmp_path / ".engine").mkdir()
    own = psutil.Process()
    facts = {"version": "1", "ray_address": "", "ray_logs": "/logs", "namespace": "engine", "redis_url": ""}
    write_state(tmp_path / ".engine", EngineState(url="http://127.0.0.1:1", pid=own.pid, pid_started_s=own.create_time() - 100, **facts))
    found = engine_command("status", cwd=tmp_path)
    assert found.returncode == 1
    assert found.stderr.count("\n") == 1
    assert f"is gone: its process {own.pid} was killed" in found.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_closed_data_directory_is_told_apart_from_an_empty_one() -> None:
    with tempfile.TemporaryDirectory() as data_dir:  # mode 0700

        def refusals() -> list[str]:
            return [refusal(lambda: running_state(data_dir)), refusal(lambda: ask_status(Config(data_dir=data_dir)))]

        assert ["you may not read" in found for found in as_nobody(refusals)] == [True, True]


def test_stopping_what_does_not_run_is_no_error(tmp_path: Path) -> None:
    assert engine_command("down", cwd=tmp_path).returncode == 0


def test_stopping_an_engine_that_starts_names_its_process(tmp_path: Path) -> None:
    lock = DataDirLock(tmp_path / ".engine")
    down = engine_command("down", cwd=tmp_path)
    assert (down.returncode, f"`kill {os.getpid()}`" in down.stderr) == (1, True)
    lock.release()


@pytest.mark.slow
def test_a_port_that_is_taken_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = engine_command("up", "--port", str(taken.getsockname()[1]), cwd=tmp_path)
    assert found.returncode == 1
    assert "--port" in found.stderr
    assert not (tmp_path / ".engine" / "redis").exists()


@pytest.mark.slow
def test_a_redis_that_does_not_answer_is_named(tmp_path: Path) -> None:
    patience = {"ENGINE_INTERNAL_REDIS_TIMEOUT_MS": "300"}
    found = engine_command("up", "--port", "0", "--redis", "redis://:hush@127.0.0.1:1/0", cwd=tmp_path, **patience)
    assert found.returncode == 1
    assert "redis://:***@127.0.0.1:1/0 does not answer" in found.stderr
    assert "hush" not in found.stderr + found.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("--address", "auto"), "--redis redis://HOST"),
        (("--address", "auto", "--redis", "unix:///tmp/redis.sock"), "--redis redis://HOST"),
        (("--address", "auto", "--redis", "redis://127.0.0.1", "--port", "0"), "free on all nodes"),
    ],
)
def test_joining_a_cluster_needs_what_all_its_nodes_can_reach(tmp_path: Path, arguments: tuple[str, ...], advice: str) -> None:
    found = engine_command("up", *arguments, cwd=tmp_path)
    assert found.returncode == 1
    assert advice in found.stderr


def test_the_state_of_a_process_that_is_gone_is_told_from_that_of_one_that_runs(tmp_path: Path) -> None:
    def state(pid: int, started_s: float) -> EngineState:
        return EngineState(
            url="http://127.0.0.1:1",
            pid=pid,
            pid_started_s=started_s,
            version="1",
            ray_address="",
            ray_logs="",
            namespace="engine",
            redis_url="",
        )

    own = psutil.Process()
    write_state(tmp_path, state(own.pid, own.create_time()))
    found = read_state(tmp_path)
    assert found is not None
    assert found.runs()
    assert stat.S_IMODE((tmp_path / "engine.json").stat().st_mode) == 0o600
    assert not state(own.pid, own.create_time() - 100).runs(), "the pid was given out again"
    (tmp_path / "engine.json").write_bytes(b'{"url":"\xff"}')
    assert read_state(tmp_path) is None, "it is damaged"
    remove_state(tmp_path)
    assert read_state(tmp_path) is None


# -- with one ----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[RunningEngine]:
    """An engine of this module's own: it is killed and stopped here."""
    engine = RunningEngine(folder, "--shards", "1")
    try:
        engine.start()
        yield engine
    finally:
        if engine.process is not None and engine.process.poll() is None:
            engine.stop()


@pytest.mark.engine
@pytest.mark.slow
def test_an_engine_comes_up_and_is_found_by_the_other_commands(folder: Path, running: RunningEngine) -> None:
    output = running.output.read_text()
    assert f"open {running.url}/#token=" in output
    assert "engine down" in output
    assert stat.S_IMODE(running.data_dir.stat().st_mode) == 0o700

    status = engine_command("status", "--data-dir", str(running.data_dir), cwd=folder)
    assert status.returncode == 0, status.stderr
    for part in ("edge-0", "shard-0", "scheduler-0", "controller", "redis"):
        assert part in status.stdout
    found = json.loads(engine_command("status", "--json", "--data-dir", str(running.data_dir), cwd=folder).stdout)
    assert found["ready"]
    assert [row["pid"] for row in found["shards"]]

    again = engine_command("up", "--port", "0", "--data-dir", str(running.data_dir), cwd=folder)
    assert again.returncode == 1
    assert "another engine" in again.stderr

    same = engine_command("scale", "--shards", "1", "--data-dir", str(running.data_dir), cwd=folder)
    assert same.returncode == 0
    assert "1 shard" in same.stdout
    none = engine_command("scale", "--data-dir", str(running.data_dir), cwd=folder)
    assert none.returncode == 1
    assert "--shards" in none.stderr


@pytest.mark.engine
@pytest.mark.slow
async def test_a_subscriber_gets_what_is_published_to_the_topic_and_to_everyone(folder: Path, running: RunningEngine) -> None:
    await Client(running.url, running.token("reader")).subscribe("post/9")
    async with running.connect("reader") as socket:
        for words, result in ((["--topic", "post/9"], "topic=post/9"), (["--broadcast"], "broadcast=True")):
            told = engine_command("publish", "post.created", *words, "--id", "k", "--data-dir", str(running.data_dir), cwd=folder)
            assert told.stdout == f"accepted id=k {result}\n", told.stderr
            frame = await running.receive(socket, "messages")
            assert [(message["id"], message["type"]) for message in frame["messages"]] == [("k", "post.created")]


@pytest.mark.engine
@pytest.mark.slow
async def test_after_a_kill_everything_is_gone_the_next_start_has_every_accepted_message_and_revocation_and_it_goes_down(
    folder: Path, running: RunningEngine
) -> None:
    await running.publish({"user": "u1", "type": "test.message", "id": "before-the-kill"})
    token = running.token("leaked", iat=int(time.time()) - 5)
    revoked = engine_command("revoke", "leaked", "--data-dir", str(running.data_dir), cwd=folder)
    assert (revoked.returncode, revoked.stdout.partition(" issued_before=")[0]) == (0, "revoked user")
    processes = running.descendants()
    assert running.process is not None
    began = time.monotonic()
    running.process.kill()
    running.process.wait(10)
    wait_gone(processes, STOP_S)
    print(f"all gone {time.monotonic() - began:.1f} s after the kill")
    running.start()
    async with running.connect("u1") as socket:
        frame = await running.receive(socket, "messages")
    assert frame["messages"][0]["id"] == "before-the-kill"  # a broadcast of another test may follow
    with pytest.raises(InvalidStatus) as caught:
        await running.connect("leaked", additional_headers={"Authorization": f"Bearer {token}"})
    assert caught.value.response.status_code == 401

    processes = running.descendants()
    began = time.monotonic()
    down = engine_command("down", "--data-dir", str(running.data_dir), cwd=folder)
    assert down.returncode == 0, down.stderr
    print(f"down in {time.monotonic() - began:.1f} s")
    assert running.stop() == 0
    wait_gone(processes, STOP_S)
    assert read_state(running.data_dir) is None
