"""`engine token`, `publish`, `listen` and `replay` as a user types them, against servers inside the test."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import jwt
import msgspec
import psutil
import pytest
import typer
from typer.testing import CliRunner, Result

from engine.auth.tokens import load_or_create_secret
from engine.cli.client_commands import register
from engine.cli.listen import message_line
from engine.cli.replay import LINE_BYTES_MAX, open_recording
from engine.cli.state_file import EngineState, write_state
from engine.client.frames import Message
from engine.errors import ConfigError, EngineError, RulesError, Unauthorized, Unreachable
from tests.support.background_loop import in_background
from tests.support.misbehaving_server import Peer, misbehaving, stay
from tests.support.publish_server import Engine, refuses, rejects, running
from tests.support.waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "github"
RULES = str(EXAMPLE / "rules.toml")

app = typer.Typer()
register(app)


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("ENGINE_JWT_SECRET", "a-secret-for-tests-of-32-characters!")
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def engine(*words: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, list(words), input=stdin)


def failure(result: Result, kind: type[BaseException] = EngineError) -> str:
    assert result.exit_code != 0
    assert isinstance(result.exception, kind), repr(result.exception)
    return str(result.exception)


def received(peer: Peer, frame: dict[str, Any]) -> None:
    """Wait until the server has read this frame, which may be after the command has ended."""
    asyncio.run(until(lambda: frame in peer.frames))


@pytest.fixture
def accepting() -> Iterator[Engine]:
    with in_background(running()) as server:
        yield server


def claims(token: str) -> dict[str, Any]:
    return json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))


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


# -- revoke --------------------------------------------------------------------------------------------------------------
ANSWER = b'{"revoked":"user","before":1,"until":1900000000000}'


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["alice"], {"user": "alice"}),
        (["alice", "--before", "2026-01-31T12:00:00Z"], {"user": "alice", "before": "2026-01-31T12:00:00Z"}),
        (["--jti", "j1"], {"jti": "j1"}),
        (["--bearer", "a.b.c"], {"token": "a.b.c"}),
        (["--bearer", "-"], {"token": "x.y.z"}),
    ],
)
def test_revoking_asks_for_what_was_typed_with_a_token_of_an_admin(words: list[str], asked: dict[str, str]) -> None:
    with answering(ANSWER) as (url, requests):
        result = engine("revoke", *words, "--url", url, stdin=b"x.y.z\n")
    assert result.exit_code == 0, repr(result.exception)
    assert result.stdout.startswith("revoked user until=2030-03-17T")
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/tokens/revoke HTTP/1.1\r\n")
    assert json.loads(body) == asked
    (token,) = re.findall(rb"Authorization: Bearer (\S+)", head)
    assert claims(token.decode())["scope"] == "admin"


@pytest.mark.parametrize("words", [[], ["alice", "--jti", "x"], ["--jti", "x", "--bearer", "y"]])
def test_one_thing_is_revoked_at_a_time(words: list[str]) -> None:
    assert "exactly one of USER, --jti and --bearer" in failure(engine("revoke", *words))
    assert "--before: only with USER" in failure(engine("revoke", "--jti", "x", "--before", "2026-01-31T12:00:00Z"))


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (b"422 Unprocessable Content", b'{"detail": "$.before: at most 300 seconds ahead"}', "$.before: at most 300 seconds ahead"),
        (b"403 Forbidden", b'{"detail": "the scope `admin` is needed"}', "the scope `admin` is needed"),
        (b"401 Unauthorized", b'{"detail": "the token\'s signature is not good"}', "does not accept a token signed with jwt_secret"),
        (b"503 Service Unavailable", b"{}", "does not answer: 503 Service Unavailable; it may be revoked: repeat it"),
    ],
)
def test_what_cannot_be_revoked_is_told(status: bytes, body: bytes, told: str) -> None:
    with answering(body, status) as (url, _):
        assert told in failure(engine("revoke", "alice", "--url", url))


@contextmanager
def answering(body: bytes, status: bytes = b"200 OK") -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers every request with this; the requests it gets."""
    requests: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            (size,) = re.findall(rb"Content-Length: (\d+)", head)
            requests.append(head + await reader.readexactly(int(size)))
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
            await writer.drain()
        writer.close()

    @asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    with in_background(serving()) as url:
        yield url, requests


# -- publish -------------------------------------------------------------------------------------------------------------
def test_publishing_sends_what_was_typed_and_prints_the_result(accepting: Engine) -> None:
    options = ["--data", '{"by": "bob"}', "--delay", "1.5s", "--id", "k", "--priority", "high", "--url", accepting.url]
    result = engine("publish", "alice", "post.liked", *options)
    assert result.exit_code == 0
    assert result.stdout == "accepted id=k user=alice seq=1\n"
    assert accepting.requests == [
        [{"user": "alice", "type": "post.liked", "data": {"by": "bob"}, "delay": 1.5, "id": "k", "priority": "high"}]
    ]


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
        for command in (["publish", "a", "t"], ["listen", "a"], ["replay", str(EXAMPLE / "handwritten.jsonl")]):
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
    for command in (["publish", "a", "t"], ["replay", str(EXAMPLE / "handwritten.jsonl")]):
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
        assert "the scope `connect` is needed" in failure(engine("listen", "u1", "--url", server.url))


def test_interrupting_a_listener_ends_it_quietly(tmp_path: Path) -> None:
    with in_background(misbehaving(talks)) as server:
        # What a shell starts in the background ignores SIGINT, and so would the listener.
        hearing = (
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from tests.cli.test_client_commands import app; app()"
        )
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
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, timeout=90, check=False)
        assert ended.returncode == 1
        assert ended.stderr.splitlines()[1:] == ["error: message 1 cannot be printed and is not acknowledged: No space left on device"]
        assert not [frame for frame in server.peers[0].frames if frame["type"] == "ack"]


# -- replay --------------------------------------------------------------------------------------------------------------
def test_the_recording_of_the_example_is_replayed_by_the_rules_beside_it(accepting: Engine) -> None:
    result = engine("replay", str(EXAMPLE / "deliveries.jsonl.gz"), "--url", accepting.url)
    assert result.exit_code == 0, result.output
    assert "39 deliveries read, 21 of 21 notifications published" in result.stdout
    assert re.search(r"comment +8 +8", result.stdout)
    assert "accepted 21" in result.stdout
    assert "Codertocat 20, octocat 1" in result.stdout
    assert "no rule for this event 16" in result.stdout
    again = engine("replay", str(EXAMPLE / "deliveries.jsonl.gz"), "--url", accepting.url)
    assert "39 deliveries read, 0 of 21 notifications published" in again.stdout
    assert "duplicate 21" in again.stdout
    assert "--fresh" in again.stdout
    assert len(accepting.accepted) == 21
    fresh = engine("replay", str(EXAMPLE / "deliveries.jsonl.gz"), "--url", accepting.url, "--fresh", "--user-prefix", "test-")
    assert "accepted 21" in fresh.stdout
    assert {item["user"] for item in list(accepting.accepted.values())[21:]} == {"test-Codertocat", "test-octocat"}


def test_a_recorders_own_delivery_id_identifies_the_delivery(accepting: Engine, tmp_path: Path) -> None:
    line = json.loads((EXAMPLE / "handwritten.jsonl").read_text().splitlines()[1])
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({**line, "delivery": f"guid-{n}"}) + "\n" for n in (1, 2, 1)))
    assert engine("replay", str(file), "--url", accepting.url, "--rules", RULES).exit_code == 0
    assert list(accepting.accepted) == ["run-failed/guid-1", "run-failed/guid-2"]


def test_malformed_lines_are_counted_with_their_numbers_and_do_not_stop_the_rest(accepting: Engine, tmp_path: Path) -> None:
    good = (EXAMPLE / "handwritten.jsonl").read_text().splitlines()
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join([good[0], "", "{oops", '{"event": "e"}', '{"event": "e", "payload": []}', good[1], ""]))
    result = engine("replay", str(file), "--url", accepting.url, "--rules", RULES)
    assert result.exit_code == 0
    assert "2 deliveries read, 2 of 3 notifications published" in result.stdout
    assert "3 malformed lines" in result.stdout
    assert [int(number) for number in re.findall(r"line (\d+):", result.stdout)] == [3, 4, 5]


def test_a_file_that_is_none_is_an_error(accepting: Engine, tmp_path: Path) -> None:
    assert "No such file" in failure(engine("replay", "nowhere.jsonl", "--url", accepting.url))
    (tmp_path / "prose.txt").write_text("hello\nworld\n")
    assert engine("replay", "prose.txt", "--url", accepting.url, "--rules", RULES).exit_code == 1
    (tmp_path / "cut.gz").write_bytes((EXAMPLE / "deliveries.jsonl.gz").read_bytes()[:5000])
    assert "cannot be read to its end" in failure(engine("replay", "cut.gz", "--url", accepting.url, "--rules", RULES))


def test_an_overlong_line_is_left_out_without_being_kept_in_memory(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "long.gz", "wb", compresslevel=1) as file:
        file.write(b'{"a":1}\n')
        for _ in range(LINE_BYTES_MAX * 2 // (1 << 20) + 1):
            file.write(b"x" * (1 << 20))
        file.write(b'\n{"b":2}\n')
    with open_recording(str(tmp_path / "long.gz")) as recording:
        assert list(recording.lines()) == [b'{"a":1}\n', None, b'{"b":2}\n']


def test_rejected_notifications_are_listed_and_the_exit_code_says_so() -> None:
    with in_background(running(rejects("github.star"))) as server:
        result = engine("replay", str(EXAMPLE / "deliveries.jsonl.gz"), "--url", server.url)
        assert result.exit_code == 1
        assert "2 notifications rejected" in result.stdout
        assert "not a type" in result.stdout
        assert "accepted 19" in result.stdout


def test_own_rules_are_used_and_wrong_ones_told_with_their_place(accepting: Engine, tmp_path: Path) -> None:
    rules = tmp_path / "mine.toml"
    rules.write_text('[[rule]]\nname = "pushes"\nevent = "push"\nrecipients = ["pusher.name"]\ntype = "git.push"\n')
    result = engine("replay", str(EXAMPLE / "deliveries.jsonl.gz"), "--rules", str(rules), "--url", accepting.url)
    assert re.search(r"pushes +2 +2", result.stdout)
    rules.write_text('[[rule]]\nname = "pushes"\nevent = "push"\ntype = "git.push"\n')
    assert "mine.toml:1: rule 'pushes'" in failure(engine("replay", "x", "--rules", str(rules)), RulesError)
    assert "No such file" in failure(engine("replay", "x", "--rules", "nowhere.toml"), RulesError)


PING_RULES = '[[rule]]\nname = "pings"\nevent = "ping"\nrecipients = ["sender.login"]\ntype = "git.ping"\n'


def test_the_configured_rules_come_before_those_beside_the_recording(
    accepting: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.toml").write_text(PING_RULES)
    monkeypatch.setenv("ENGINE_RULES_PATH", "mine.toml")
    assert re.search(r"pings +1 +1", engine("replay", str(EXAMPLE / "deliveries.jsonl.gz"), "--url", accepting.url).stdout)


def test_the_rules_beside_the_recording_are_used_when_no_others_are_named(accepting: Engine, tmp_path: Path) -> None:
    (tmp_path / "recorded").mkdir()
    recording = tmp_path / "recorded" / "deliveries.jsonl.gz"
    recording.write_bytes((EXAMPLE / "deliveries.jsonl.gz").read_bytes())
    (recording.parent / "rules.toml").write_text(PING_RULES)
    assert re.search(r"pings +1 +1", engine("replay", str(recording), "--url", accepting.url).stdout)


@pytest.mark.parametrize("recording", ["a.jsonl", "-"])
def test_a_replay_without_rules_is_an_error_that_names_the_ways_to_give_some(recording: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    if recording == "-":
        (tmp_path / "rules.toml").write_text(PING_RULES)
    reason = failure(engine("replay", recording, "--url", "http://127.0.0.1:1"))
    assert "--rules" in reason
    assert "rules_path" in reason


def test_a_rate_is_kept(accepting: Engine) -> None:
    import time

    begun = time.monotonic()
    assert engine("replay", str(EXAMPLE / "deliveries.jsonl.gz"), "--rate", "100", "--url", accepting.url).exit_code == 0
    assert time.monotonic() - begun >= 38 / 100


# -- what a user sees first ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("command", ["token", "publish", "listen", "replay"])
def test_help_shows_examples(command: str) -> None:
    assert f"engine {command}" in engine(command, "--help").stdout


def test_the_commands_and_the_package_import_neither_ray_nor_what_they_do_not_need() -> None:
    program = (
        "import sys, engine, engine.cli.client_commands; "
        "print([name for name in ('ray', 'jwt', 'websockets', 'httptools', 'starlette', 'redis') if name in sys.modules]); "
        "import engine.cli.local_engine, engine.cli.listen, engine.cli.replay, engine.cli.progress; "
        "engine.Client, engine.SyncPublisher; "
        "print('ray' in sys.modules)"
    )
    printed = subprocess.check_output([sys.executable, "-c", program], text=True, cwd=Path(__file__).parents[2])
    assert printed.splitlines() == ["[]", "False"]
