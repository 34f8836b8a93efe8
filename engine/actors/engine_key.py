"""How a process of the engine gets the engine key, with which it reads the secrets of its configuration (`engine.store.sealed_config`).

States of a `ConfigLock`; its owner is the actor
    locked   Ray constructed the actor with a sealed configuration. `stats()` tells so
    open     for good: the key of this node's file fits, or `unlock` brought one that does; it is left in the file then

Where the key comes from. `engine up` has it from Redis and hands it to the controller, which hands it to every actor that is locked. Each
leaves it in a file of its node, so that this happens once per node. The file is in Ray's session directory, readable by this user only.

Crash points. An actor dies: its node has the file, so that it starts again without help. A controller dies and starts on a node that has
none: `engine up` hands it the key within seconds; when that is gone as well, whoever starts it again does. A node with a new session of Ray
has no file: the controller hands out the key. What runs needs no key any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from pathlib import Path
from typing import Final

import ray

from engine.actors.socket_carrier import private_folder
from engine.config import Config
from engine.errors import NotProven
from engine.store.sealed_config import SealedConfig, check_proof, proof

log = logging.getLogger(__name__)

_FILE: Final = "key"


class ConfigLock:
    """The configuration of an actor, and the proofs of who calls it.

    Args:
        given: what the actor was constructed with. A `Config` is complete, which only tests and the simulator have: it is open, without a
            key, and every proof is good.

    Attributes:
        public: the configuration without its secrets, where it was sealed.
        key: the engine key, once it is open.
    """

    def __init__(self, given: Config | SealedConfig) -> None:
        self._sealed = given if isinstance(given, SealedConfig) else None
        self._config = None if isinstance(given, SealedConfig) else given
        self.public = given.public if isinstance(given, SealedConfig) else given
        self.key = b""
        self._opened = asyncio.Event()

    @property
    def locked(self) -> bool:
        """Whether a key is needed."""
        return self._config is None

    async def config(self) -> Config:
        """The whole configuration. Waits for the key."""
        if self._config is None and self._sealed is not None and (key := read_key(self._sealed.public.namespace)):
            with contextlib.suppress(NotProven):  # of an engine that this namespace had before
                self._open(key)
        if self._config is None:
            log.info("waiting for the engine key: this node has none")
            await self._opened.wait()
        assert self._config is not None
        return self._config

    def unlock(self, key: bytes) -> None:
        """Open the configuration, and leave the key on this node. Raises NotProven when it is another key."""
        self._open(key)
        write_key(key, self.public.namespace)

    def _open(self, key: bytes) -> None:
        if self._sealed is not None:
            self._config, self.key = self._sealed.opened(key), key
        self._opened.set()

    def proof(self, purpose: str) -> bytes:
        """See `engine.store.sealed_config.proof`."""
        return proof(self.key, purpose) if self.key else b""

    def check(self, purpose: str, given: object) -> None:
        """Raises NotProven unless the caller is a process of this engine."""
        if self.locked:
            raise NotProven(f"{purpose}: the actor waits for the engine key")
        if self.key:
            check_proof(self.key, purpose, given)


def read_key(namespace: str) -> bytes | None:
    """The key in this node's file; None when there is none."""
    try:
        return (_node_folder(namespace) / _FILE).read_bytes()
    except OSError:
        return None


def write_key(key: bytes, namespace: str) -> None:
    """Leave the key on this node, for actors that start here. When that fails, they are handed it."""
    try:
        folder = _node_folder(namespace)
        with tempfile.TemporaryDirectory(dir=folder) as drafts:
            (draft := Path(drafts, _FILE)).touch(0o600)
            draft.write_bytes(key)
            draft.replace(folder / _FILE)
    except OSError as error:
        log.warning("the engine key is not kept on this node: %s", error)


def _node_folder(namespace: str) -> Path:
    """In Ray's session on this node, of this engine and this user. Raises OSError."""
    context = ray.get_runtime_context()
    return private_folder(Path(context.get_temp_dir()) / context.get_session_name(), namespace)
