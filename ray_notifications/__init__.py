"""The Python interface of ray-notification-engine, under a name of its own: `engine` is one that an application may have too.

    from ray_notifications import Client, Publisher          # asyncio
    from ray_notifications import SyncClient, SyncPublisher  # threads
    from ray_notifications.ray import Publisher, listen      # in tasks and actors of the engine's Ray cluster

The names are those of `engine` and `engine.ray`, and the objects are the same, unless an application's own package `engine` hides this
one (`ray_notifications.hidden_engine`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray_notifications import ray  # noqa: F401 - imports its contents on first use
from ray_notifications.hidden_engine import package

if TYPE_CHECKING:
    from engine import *  # noqa: F403
    from engine.client import *  # noqa: F403

_engine: Any = package()

__all__: list[str] = []
__all__ += _engine.__all__

if not TYPE_CHECKING:  # a type checker would take every name for one of this module

    def __getattr__(name: str) -> Any:
        """Import a name on first access (PEP 562)."""
        if name in __all__:
            return getattr(_engine, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Completers list the names that are not imported yet, too."""
    return sorted({*globals(), *__all__})
