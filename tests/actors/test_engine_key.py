"""How an actor gets the engine key. Ray's session directory is a folder of the test."""

from __future__ import annotations

import asyncio
import resource
import stat
from pathlib import Path

import pytest

from engine.actors import engine_key
from engine.actors.engine_key import ConfigLock, read_key, write_key
from engine.config import Config
from engine.errors import NotProven
from engine.store.sealed_config import engine_key as derived
from engine.store.sealed_config import proof, seal

KEY, OTHER = derived(bytes(32)), derived(bytes(range(32)))
CONFIG = Config(redis_url="redis://:password@host/0")


@pytest.fixture(autouse=True)
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "session"

    def node_folder(namespace: str) -> Path:
        made = folder / namespace
        made.mkdir(parents=True, exist_ok=True)
        return made

    monkeypatch.setattr(engine_key, "_node_folder", node_folder)
    return folder


async def test_an_actor_waits_for_the_key_and_leaves_it_for_the_next_of_its_node(session: Path) -> None:
    lock = ConfigLock(seal(CONFIG, KEY))
    waiting = asyncio.ensure_future(lock.config())
    await asyncio.sleep(0)
    assert lock.locked
    assert not waiting.done()
    assert not lock.public.redis_url
    lock.unlock(KEY)
    assert await waiting == CONFIG
    assert not lock.locked
    (file,) = (session / "engine").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert await ConfigLock(seal(CONFIG, KEY)).config() == CONFIG


async def test_another_key_is_refused_and_left_nowhere() -> None:
    lock = ConfigLock(seal(CONFIG, KEY))
    with pytest.raises(NotProven):
        lock.unlock(OTHER)
    assert lock.locked
    assert read_key("engine") is None


async def test_a_key_that_another_engine_left_on_the_node_is_not_used() -> None:
    write_key(OTHER, "engine")
    lock = ConfigLock(seal(CONFIG, KEY))
    waiting = asyncio.ensure_future(lock.config())
    await asyncio.sleep(0)
    assert not waiting.done()
    lock.unlock(KEY)
    assert await waiting == CONFIG
    assert read_key("engine") == KEY


async def test_a_node_that_cannot_keep_the_key_does_not_stop_the_actor(session: Path) -> None:
    lock = ConfigLock(seal(CONFIG, KEY))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # as a full disk
    try:
        lock.unlock(KEY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert await lock.config() == CONFIG
    assert not list((session / "engine").iterdir()), "nor does it keep a part"


async def test_only_processes_of_the_engine_are_listened_to() -> None:
    lock = ConfigLock(seal(CONFIG, KEY))
    with pytest.raises(NotProven, match="waits for the engine key"):
        lock.check("stop", proof(KEY, "stop"))
    lock.unlock(KEY)
    lock.check("stop", proof(KEY, "stop"))
    for given in (b"", proof(OTHER, "stop"), proof(KEY, "status")):
        with pytest.raises(NotProven):
            lock.check("stop", given)


async def test_a_configuration_that_is_complete_needs_no_key() -> None:
    lock = ConfigLock(CONFIG)
    assert await lock.config() is CONFIG
    lock.check("stop", b"")
