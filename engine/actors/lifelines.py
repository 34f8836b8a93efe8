"""A connection to each shard, over which nothing is sent: it breaks with the shard's process.

Ray tells callers of a death after one or two seconds, and a round of calls looks every two; the kernel tells at once. A connection between
nodes may break for another reason, so whoever is told calls the shard. One within a node breaks for no other. A shard that Ray does not
reach any more when it is to be connected to has probably died since it answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ray.exceptions import RayError

from engine.actors.carrier import Peer

log = logging.getLogger(__name__)

_OPEN_S: Final = 3.0
"""For a connection. Without one, a death is found by the rounds."""


class Lifelines:
    """Those of one controller.

    Args:
        peer: (name of an actor) -> the actor.
        on_break: called with the name of an actor whose connection broke, and whether that was within this node.
    """

    def __init__(self, peer: Callable[[str], Peer], on_break: Callable[[str, bool], None]) -> None:
        self._peer = peer
        self._on_break = on_break
        self._held: dict[str, asyncio.Task[None]] = {}

    def hold(self, name: str) -> None:
        """The actor has just answered: look after its process. No effect while that is done already."""
        if name not in self._held:
            self._held[name] = asyncio.ensure_future(self._until_broken(name))

    def cut(self) -> None:
        """Look after nobody any more."""
        for task in self._held.values():
            task.cancel()

    async def _until_broken(self, name: str) -> None:
        peer, broke = self._peer(name), False
        try:
            async with asyncio.timeout(_OPEN_S):
                await peer.open()
            broke = await peer.lost()
        except RayError as error:
            log.info("%s has answered, and is not to be reached: %r", name, error)
            broke = True
        except (OSError, TimeoutError) as error:
            log.info("the end of %s will be found late: %r", name, error)
        finally:
            peer.close()
            del self._held[name]
        if broke:
            log.info("the connection to %s broke", name)
            self._on_break(name, peer.carrier == "unix")
