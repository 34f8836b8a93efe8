"""docs/OPERATIONS.md: commands, names and numbers in it are the engine's, and its restore brings back what a backup has."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from redis.asyncio import Redis
from typer.main import get_command

from engine.__main__ import app
from engine.config import FIELDS, STORES_ALLOWED, Config
from engine.store.cluster import tag_of
from engine.store.keys import EPOCH_FIELD, LINK_KEY_KEY, META_KEY
from engine.store.redis_client import claim_data_epoch
from tests.support.redis_server import RedisServer, find_server
from tests.support.scrapes import FAMILIES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "OPERATIONS.md").read_text()
CLUSTER = (ROOT / "docs" / "CLUSTER.md").read_text()
OF_OTHERS = {"max_workers", "node_id", "queued_pct", "stores_away"}  # of Ray, of the status, and of /readyz


def test_every_command_of_the_engine_exists_with_its_options() -> None:
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    found = re.findall(r"(?:^|`|deploy/node )engine ([a-z-]+)((?: [a-z0-9-]+| --[a-z-]+)*)", TEXT + CLUSTER, re.MULTILINE)
    assert {name for name, _ in found} >= {"up", "down", "status", "drain", "scale", "erase", "revoke"}
    for name, words in found:
        part = (words.split() or [""])[0]
        command = getattr(commands[name], "commands", {}).get(part, commands[name])  # `engine dead-letters list`
        known = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", words)) <= known, name


def test_every_alert_says_what_to_do() -> None:
    alerts = {rule["alert"] for group in yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text())["groups"] for rule in group["rules"]}
    assert set(re.findall(r"`(Engine[A-Z]\w+)`", TEXT)) == alerts


def test_settings_and_figures_that_it_names_exist() -> None:
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", TEXT))
    figures = {name for name in named if name.startswith("engine_")}
    assert named - figures - OF_OTHERS <= FIELDS.keys()
    assert figures <= FAMILIES.keys() | {f"{name}_total" for name in FAMILIES}


def test_its_ports_are_the_engines() -> None:
    assert f"| {Config().port} (`port`)" in TEXT
    assert f"| {Config().link_ports} (`link_ports`)" in TEXT


@pytest.mark.parametrize("stores", STORES_ALLOWED)
def test_keys_of_a_redis_cluster_have_the_tag_of_the_first_store(stores: int) -> None:
    assert f"`{tag_of(0, stores)}{META_KEY}`" in TEXT
    assert f"redis-cli -c del {tag_of(0, stores)}{LINK_KEY_KEY}`" in TEXT
    assert f"`{tag_of(0, stores)}`" in (ROOT / "docs" / "SECURITY.md").read_text()


@pytest.mark.parametrize("file", sorted(set(re.findall(r"\]\(([^):#]+)[^):]*\)", TEXT))))
def test_what_it_refers_to_is_there(file: str) -> None:
    assert (ROOT / "docs" / file).exists()


@pytest.fixture
def restored() -> Iterator[RedisServer]:
    """A Redis on what the commands of the document made of a backup, in which a key and a data epoch are."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "new").mkdir()
        server = RedisServer(find_server(), folder)
        server.options = [*server.options, "--dbfilename", "backup.rdb"]
        server.start()
        with redis.Redis.from_url(server.url) as client:
            client.set("a message", "its text")
            client.hset(META_KEY, EPOCH_FIELD, "old")
            client.save()  # what `redis-cli --rdb` gets
        server.kill()
        (script,) = re.findall(r"```\n +(mkdir .*?)```", TEXT, re.DOTALL)
        script = script.replace("/var/lib/redis", f"{folder}/new").replace("~", str(folder))
        subprocess.run(["sh", "-ec", script], check=True)
        again = RedisServer(find_server(), folder / "new")
        again.start()
        yield again
        again.kill()


async def test_a_restored_redis_has_everything_and_makes_old_cursors_those_of_another_time(restored: RedisServer) -> None:
    assert f"redis-cli hdel {META_KEY} {EPOCH_FIELD}`" in TEXT
    assert f"redis-cli del {LINK_KEY_KEY}`" in TEXT
    async with Redis.from_url(restored.url, decode_responses=True) as client:
        assert await client.get("a message") == "its text"
        assert await claim_data_epoch(client, 1_800_000_000) == "old"
        assert await client.execute_command("hdel", META_KEY, EPOCH_FIELD) == 1
        assert await claim_data_epoch(client, 1_800_000_000) not in ("", "old")
