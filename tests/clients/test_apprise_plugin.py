"""The plugin of Apprise, against a real edge."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from apprise import Apprise, NotifyType

from engine.core.wire import records as wire
from tests.support.edge_world import EdgeWorld, edge_world
from tests.support.hosts import CHECKOUT

PLUGIN = CHECKOUT / "clients" / "apprise" / "notify_engine.py"


@pytest.fixture(scope="module")
def plugin() -> Any:
    """The plugin, imported as a user imports it."""
    spec = importlib.util.spec_from_file_location("notify_engine", PLUGIN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def url(world: EdgeWorld, rest: str, scopes: str = "publish") -> str:
    return f"engine://{world.token('airflow', scopes=scopes)}@127.0.0.1:{world.port}/{rest}"


async def notify(address: str, **message: Any) -> bool:
    apprise = Apprise()
    assert apprise.add(address)
    return bool(await asyncio.to_thread(apprise.notify, **message))


def bodies(world: EdgeWorld) -> dict[str, Any]:
    return {post.key: msgspec.json.decode(b"{%b}" % post.envelope.body) for post in world.shard.of(wire.Post)}


@pytest.mark.usefixtures("plugin")
async def test_each_user_of_the_address_is_notified(world: EdgeWorld) -> None:
    assert await notify(url(world, "ann/bob%20x?kind=airflow.failed"), title="etl failed", body="line", notify_type=NotifyType.FAILURE)
    assert bodies(world).keys() == {"default:ann", "default:bob x"}
    told = bodies(world)["default:ann"]
    assert (told["type"], told["priority"]) == ("airflow.failed", "high")
    assert told["data"] == {"title": "etl failed", "body": "line", "level": "failure"}


@pytest.mark.usefixtures("plugin")
async def test_a_refusal_is_a_failure_of_apprise(world: EdgeWorld) -> None:
    assert not await notify(url(world, "ann", scopes="connect"), body="x")
    assert world.shard.of(wire.Post) == []


async def test_a_repeat_after_an_outage_has_the_same_ids(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "RETRY_FIRST_S", 0.01)
    sent: list[Any] = []
    post = plugin.requests.post

    def lossy(address: str, **request: Any) -> Any:
        sent.append(request["json"])
        answer = post(address, **request)
        if len(sent) == 1:
            raise plugin.requests.ConnectionError("the answer is lost")
        return answer

    monkeypatch.setattr(plugin.requests, "post", lossy)
    async with edge_world() as world:
        assert await notify(url(world, "ann"), body="x")
        assert len(sent) == 2
        assert sent[0] == sent[1]
        assert list(world.shard.mailboxes["default:ann"]) == [1]


@pytest.mark.parametrize(("status", "retry_after"), [(502, ""), (504, ""), (503, "Wed, 21 Oct 2026 07:28:00 GMT")])
async def test_an_answer_of_a_proxy_in_a_restart_is_tried_again(
    plugin: Any, monkeypatch: pytest.MonkeyPatch, status: int, retry_after: str
) -> None:
    monkeypatch.setattr(plugin, "RETRY_FIRST_S", 0.01)
    refusal = plugin.requests.Response()
    refusal.status_code = status
    refusal.headers["Retry-After"] = retry_after
    answers = [refusal]
    post = plugin.requests.post
    monkeypatch.setattr(plugin.requests, "post", lambda address, **request: answers.pop() if answers else post(address, **request))
    async with edge_world() as world:
        assert await notify(url(world, "ann"), body="x")
        assert bodies(world)["default:ann"]["data"]["body"] == "x"


async def test_an_engine_that_stays_away_is_a_failure_in_the_end(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "RETRY_FIRST_S", 0.001)
    assert not await notify("engine://token@127.0.0.1:9/ann", body="x")


@pytest.mark.usefixtures("plugin")
def test_an_address_without_a_token_or_a_recipient_is_refused() -> None:
    for wrong in ("engine://127.0.0.1/ann", "engine://token@127.0.0.1/", "engine://token@127.0.0.1/ann?topic=x"):
        assert not Apprise().add(wrong), wrong
    assert Apprise().add("engines://token@host/?topic=ray/jobs")


@pytest.mark.usefixtures("plugin")
def test_a_shown_address_hides_the_token() -> None:
    apprise = Apprise()
    apprise.add("engine://sesame@host:8000/ann")
    assert "sesame" not in apprise[0].url(privacy=True)
    assert apprise[0].url().startswith("engine://sesame@host:8000/ann?")


async def test_the_command_of_apprise_finds_it_in_its_folder(world: EdgeWorld) -> None:
    start = [sys.executable, "-c", "from apprise.cli import main; main()"]
    program = [*start, "--plugin-path", str(PLUGIN.parent), "-b", "x", url(world, "ann")]
    done = await asyncio.to_thread(subprocess.run, program, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert bodies(world)["default:ann"]["data"]["body"] == "x"
