"""A notification engine on Ray and Redis: delivers what it has accepted at least once, in order, until it is acknowledged.

To use an engine, import:

    from ray_notifications import Client, Publisher          # asyncio
    from ray_notifications import SyncClient, SyncPublisher  # threads

`ray_notifications` has the names of this package, which include those of `engine.client`, under a name that no application uses itself.
To run an engine from a program, call `engine.run`. In tasks and actors of its Ray cluster see `engine.ray`.

To read its code, start with `engine.core`, which is pure and has every decision; `engine.store`, `engine.actors` and `engine.routes` do
the I/O around it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine import client, ray  # noqa: F401 - both import their contents on first use
from engine.errors import EngineError

if TYPE_CHECKING:
    from engine.client import *  # noqa: F403
    from engine.config import Config

__version__ = "0.1.0"

__all__ = ["Config", "EngineError", "__version__", "run"]
__all__ += client.__all__

if not TYPE_CHECKING:  # a type checker would take every name for one of this module

    def __getattr__(name: str) -> Any:
        """Imports the clients on first use (PEP 562), so that actors and `engine --help` start without them."""
        if name == "Config":
            from engine.config import Config

            return Config
        if name in __all__:
            return getattr(client, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Completers list the names that are not imported yet, too."""
    return sorted({*globals(), *__all__})


def run(config: Config | None = None) -> int:
    """Run an engine until SIGINT or SIGTERM, as `engine up` does; returns its exit code. To be called from the main thread.

    Args:
        config: all settings, `Config(address="auto", edges=2)`; those left out have their defaults. None: from `engine.toml` and the
            environment, as `engine up` takes them.

    Raises:
        EngineError: it cannot start; the message says what to do.
    """
    from rich.console import Console

    from engine.cli.settings import checked, load
    from engine.cli.up import up

    return up(load() if config is None else checked(config), Console())
