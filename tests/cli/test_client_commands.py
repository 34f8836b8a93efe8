"""`engine token`, `publish` and `listen` as a user types them, against servers inside the test."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import msgspec
import psutil
import pytest

from engine.auth.tokens import load_or_create_secret
from engine.cli.listen import message_line
from engine.cli.options import local_time
from engine.cli.state_file import EngineState, write_state
from engine.client.frames import Message
from engine.errors import ConfigError, Unauthorized, Unreachable
from tests.support.background_loop import in_background
from tests.support.command_line import claims, engine, failure
from tests.support.misbehaving_server import Peer, misbehaving, stay
from tests.support.publish_server import Engine, refuses, rejects, running
from tests.support.waiting import until

RECORDING = str(Path(__file__).parents[2] / "examples" / "github" / "handwritten.jsonl")

pytestmark = pytest.mark.usefixtures("data_dir")


def received(peer: Peer, frame: dict[str, Any]) -> None:
    """Wait until the server has read this frame, which may be after the command has ended."""
    asyncio.run(until(lambda: frame in peer.frames))


@pytest.fixture
def accepting() -> Iterator[Engine]:
    with in_background(running()) as server:
        yield server


# -- the token of a command ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("command", [("listen", "alice"), ("publish", "alice", "a.b"), ("history", "alice"), ("status",)])
@pytest.mark.parametrize("given", ["ab.cd.ef\n", "ab.cd.é€", "ab cd"])
def test_text_that_is_no_token_is_refused_and_not_printed(command: tuple[str, ...], given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_TOKEN", given)
    told = failure(engine(*command, "--url", "http://127.0.0.1:9") if command != ("status",) else engine(*command))
    assert told == "--token or ENGINE_TOKEN: no token has spaces, line breaks, or characters beyond ASCII"


# -- token ---------------------------------------------------------------------------------------------------------------
def test_a_token_is_all_that_is_printed_and_says_what_was_asked_for() -> None:
    result = engine("token", "alice", "--scope", "publish", "--scope", "admin", "--ttl", "90s", "--tenant", "acme")
    assert result.exit_code == 0
    assert result.stderr == ""
    made = claims(result.stdout.strip())
    assert (made["sub"], made["tenant"], made["scope"]) == ("alice", "acme", "publish admin")
    assert 89 <= made["exp"] - made["iat"] <= 91
    assert claims(engine("token", "alice").stdout.strip())["scope"] == "connect"


def test_tokens_are_signed_with_the_secret_that_the_engine_made_and_none_is_made_elsewhere(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENGINE_JWT_SECRET")
    for command in (["token", "alice"], ["publish", "a", "t", "--url", "http://127.0.0.1:1"]):
        assert engine(*command).exit_code != 0
        assert not list(data_dir.iterdir()), "a stray secret would be used by a later start"
    assert "--data-dir" in failure(engine("token", "alice"), ConfigError)
    secret = load_or_create_secret(data_dir)
    made = jwt.decode(engine("token", "alice").stdout.strip(), secret, ["HS256"])
    assert made["sub"] == "alice"


def test_tokens_cannot_be_made_for_an_engine_of_an_outside_issuer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENGINE_JWT_SECRET")
    monkeypatch.setenv("ENGINE_JWT_JWKS_URL", "https://issuer.example/jwks")
    assert "--token" in failure(engine("token", "alice"), ConfigError)


@pytest.mark.parametrize(
    ("words", "told"),
    [(["--scope", "root"], "'root'; allowed are"), (["--ttl", "5"], "--ttl: a duration looks like"), (["--tenant", "a:b"], "tenant")],
)
def test_a_wrong_option_of_a_token_is_named(words: list[str], told: str) -> None:
    assert told in failure(engine("token", "alice", *words))


# -- publish -------------------------------------------------------------------------------------------------------------
def test_publishing_sends_what_was_typed_and_prints_the_result(accepting: Engine) -> None:
    options = ["--data", '{"by": "bob"}', "--delay", "1.5s", "--id", "k", "--priority", "high", "--url", accepting.url]
    result = engine("publish", "alice", "post.liked", *options)
    assert result.exit_code == 0
    assert result.stdout == "accepted id=k user=alice seq=1\n"
    assert accepting.requests == [
        [{"user": "alice", "type": "post.liked", "data": {"by": "bob"}, "delay": 1.5, "id": "k", "priority": "high"}]
    ]


def test_characters_that_a_terminal_lacks_are_escaped(accepting: Engine) -> None:
    command = [sys.executable, "-m", "engine", "publish", "alice", "a.b", "--id", "é😀", "--url", accepting.url]
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "accepted id=\\u00e9\\ud83d\\ude00 user=alice seq=1\n"


@pytest.mark.parametrize(
    ("words", "audience"),
    [
        (["t", "--topic", "post/9"], {"topic": "post/9"}),
        (["--topic", "post/9", "t"], {"topic": "post/9"}),
        (["t", "--broadcast", "--priority", "low"], {"broadcast": True, "priority": "low"}),
    ],
)
def test_publishing_reaches_a_topic_or_everyone_with_the_type_as_only_word(
    accepting: Engine, words: list[str], audience: dict[str, Any]
) -> None:
    assert engine("publish", *words, "--id", "k", "--url", accepting.url).exit_code == 0
    assert accepting.requests == [[{"type": "t", "id": "k", **audience}]]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "USER TYPE, or TYPE with --topic or --broadcast"),
        (["alice"], "USER TYPE, or TYPE with --topic or --broadcast"),
        (["alice", "t", "--topic", "post/9"], "USER or --topic, not both; leave out 'alice' or --topic"),
        (["alice", "t", "--broadcast"], "USER or --broadcast, not both; leave out 'alice' or --broadcast"),
        (["t", "--topic", "post/9", "--broadcast"], "--topic or --broadcast, not both"),
        (["--topic", "post/9"], "TYPE is missing: engine publish post.created --topic post/9"),
        (["--broadcast"], "TYPE is missing: engine publish post.created --broadcast"),
    ],
)
def test_publishing_to_none_or_several_audiences_is_refused(accepting: Engine, words: list[str], told: str) -> None:
    assert told in failure(engine("publish", *words, "--url", accepting.url))
    assert not accepting.requests


def test_publishing_uses_a_token_of_its_own_or_the_one_given(accepting: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(accepting, "tokens", seen)
    assert engine("publish", "a", "t", "--url", accepting.url, "--token", "given").exit_code == 0
    assert engine("publish", "a", "t", "--url", accepting.url).exit_code == 0
    assert seen[0] == "given"
    assert seen[1].count(".") == 2


def test_the_engine_is_found_by_the_state_file(accepting: Engine, data_dir: Path) -> None:
    me = psutil.Process()
    facts = {"version": "0", "ray_address": "", "ray_logs": "/logs", "namespace": "engine", "redis_url": ""}
    state = EngineState(url=accepting.url, pid=me.pid, pid_started_s=me.create_time(), **facts)
    write_state(data_dir, state)
    assert engine("publish", "a", "t").exit_code == 0


def test_no_engine_is_said_at_once_with_what_to_do() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        for command in (["publish", "a", "t"], ["listen", "a"], ["replay", RECORDING]):
            told = failure(engine(*command, "--url", url), Unreachable)
            assert "`engine up`" in told
            assert url in told


def test_a_free_port_in_the_configuration_needs_a_running_engine_or_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_PORT", "0")
    assert "--url" in failure(engine("publish", "a", "t"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--data", "{by: bob}"], "--data: not JSON"),
        (["--data", "[" * 5000], "--data: not JSON"),
        (["--delay", "soon"], "--delay: a duration"),
        (["--url", "localhost:8000"], "--url: an engine's URL"),
    ],
)
def test_a_wrong_option_of_publish_is_named(words: list[str], told: str) -> None:
    assert told in failure(engine("publish", "a", "t", *words))


def test_what_the_engine_rejects_is_told() -> None:
    with in_background(running(rejects("bad"))) as server:
        assert "not a type" in failure(engine("publish", "a", "bad", "--url", server.url))
    with in_background(running(refuses(401))) as server:
        assert "because 401" in failure(engine("publish", "a", "t", "--url", server.url, "--token", "x"), Unauthorized)


def test_an_engine_with_another_secret_is_explained() -> None:
    for command in (["publish", "a", "t"], ["replay", RECORDING]):
        with in_background(running(refuses(401), refuses(401))) as server:
            told = failure(engine(*command, "--url", server.url))
            assert f"the engine at {server.url} does not accept a token signed with jwt_secret (because 401): " in told
            assert "--data-dir" in told
    with in_background(misbehaving((401, {}, '{"detail": "the token\'s signature is not good"}'))) as server:
        assert "signed with jwt_secret (the token's signature is not good): " in failure(engine("listen", "u1", "--url", server.url))


# -- listen --------------------------------------------------------------------------------------------------------------
async def talks(peer: Peer) -> None:
    await peer.welcome(seq=2)
    await peer.send(1)
    odd = {"seq": 2, "id": "m2", "event_id": "7-2", "type": "t.x", "priority": "high", "ts": 10**17, "attempt": 2, "actor": "bob"}
    await peer.say("messages", messages=[{**odd, "data": {"title": "\x1b[31mred [bold]text", "n": 1}}])
    await stay(peer)


def test_a_delayed_message_is_shown_with_the_time_at_which_it_was_due() -> None:
    message = Message(seq=1, id="a", type="t", ts=1_700_000_000_000)
    later = msgspec.structs.replace(message, due=1_700_000_060_000)
    assert message_line(later) == message_line(msgspec.structs.replace(message, ts=1_700_000_060_000)) != message_line(message)


def test_a_time_beyond_the_calendar_is_a_question_mark() -> None:
    assert local_time(10**17) == "?"


def test_listening_prints_messages_fit_for_a_terminal_and_acknowledges_them() -> None:
    with in_background(misbehaving(talks)) as server:
        result = engine("listen", "u1", "--url", server.url, "--count", "2")
        assert result.exit_code == 0
        lines = result.stdout.splitlines()
        assert re.search(r'#1 t \{"n":1\}$', lines[0])
        assert lines[1] == r'? #2 ! t.x \x1b[31mred [bold]text (attempt 2) {"n":1} {"actor":"bob"}'
        assert "connected as u1" in result.stderr
        received(server.peers[0], {"type": "ack", "seq": 2})
        assert claims(server.peers[0].token)["sub"] == "u1"


async def grows(peer: Peer) -> None:
    await peer.welcome(seq=1)
    await peer.say("part", id="m0", generation=1, offset=0, text="To\x1bken [bold]", progress={"value": 0.5})
    await peer.send(1)
    await stay(peer)


def test_listening_tells_what_grows_beside_the_messages() -> None:
    with in_background(misbehaving(grows)) as server:
        result = engine("listen", "u1", "--url", server.url, "--count", "1")
        assert r'm0 grows: To\x1bken [bold] {"value":0.5}' in result.stderr
        assert len(result.stdout.splitlines()) == 1


def test_listening_for_programs_prints_one_json_object_per_line_and_nothing_else() -> None:
    with in_background(misbehaving(talks)) as server:
        result = engine("listen", "u1", "--json", "--url", server.url, "--count", "2", "--last-event-id", "7-0")
        objects = [json.loads(line) for line in result.stdout.splitlines()]
        assert [one["seq"] for one in objects] == [1, 2]
        assert objects[1]["data"]["title"].startswith("\x1b")
        assert server.peers[0].query["last_event_id"] == "7-0"


def test_a_wrong_cursor_and_a_refusal_are_told() -> None:
    with in_background(misbehaving((403, {}, '{"detail": "the scope `connect` is needed"}'))) as server:
        assert "a cursor looks like" in failure(engine("listen", "u1", "--url", server.url, "--last-event-id", "x"))
        refused = engine("listen", "u1", "--url", server.url)
        assert "the scope `connect` is needed" in failure(refused)
        assert set(refused.stderr.splitlines()) == {"disconnected (403): the scope `connect` is needed"}, "no attempt is announced"


def test_interrupting_a_listener_ends_it_quietly(tmp_path: Path) -> None:
    with in_background(misbehaving(talks)) as server:
        # What a shell starts in the background ignores SIGINT, and so would the listener.
        hearing = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from engine.__main__ import app; app()"
        command = [sys.executable, "-c", hearing, "listen", "u1", "--json", "--url", server.url]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert json.loads(process.stdout.readline())["seq"] == 1
            assert json.loads(process.stdout.readline())["seq"] == 2
            process.send_signal(2)
            assert process.wait(10) == 0
            assert "Traceback" not in process.stderr.read()
        received(server.peers[0], {"type": "ack", "seq": 2})


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_message_that_does_not_fit_the_disk_is_not_acknowledged_and_said_in_one_line(options: list[str]) -> None:
    with in_background(misbehaving(talks)) as server, open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "engine", "listen", "u1", *options, "--url", server.url]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": ""}  # as in a shell
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, timeout=90, check=False)
        assert ended.returncode == 1
        assert ended.stderr.splitlines()[1:] == ["error: message 1 cannot be printed and is not acknowledged: No space left on device"]
        assert not [frame for frame in server.peers[0].frames if frame["type"] == "ack"]


# -- what a user sees first ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("command", ["token", "publish", "listen"])
def test_help_shows_examples(command: str) -> None:
    assert f"engine {command}" in engine(command, "--help").stdout


def test_the_commands_and_the_package_import_neither_ray_nor_what_they_do_not_need() -> None:
    program = (
        "import sys, engine, engine.__main__; "
        "print([name for name in ('ray', 'jwt', 'websockets', 'httptools', 'starlette', 'redis') if name in sys.modules]); "
        "import engine.cli.local_engine, engine.cli.listen, engine.cli.progress, engine.features.rules.commands.replay; "
        "engine.Client, engine.SyncPublisher; "
        "print('ray' in sys.modules)"
    )
    printed = subprocess.check_output([sys.executable, "-c", program], text=True, cwd=Path(__file__).parents[2])
    assert printed.splitlines() == ["[]", "False"]
