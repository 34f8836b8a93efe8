"""The names of `engine.ray`: publish and listen from tasks, actors, Serve replicas, Data pipelines and drivers of the engine's cluster."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ray_notifications.hidden_engine import package

if TYPE_CHECKING:
    from engine.ray import *  # noqa: F403

_ray: Any = import_module(f"{package().__name__}.ray")

__all__: list[str] = []
__all__ += _ray.__all__

if not TYPE_CHECKING:  # a type checker would take every name for one of this module

    def __getattr__(name: str) -> Any:
        """Import a name on first access (PEP 562): a publisher needs nothing of Ray Data."""
        if name in __all__:
            return getattr(_ray, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Completers list the names that are not imported yet, too."""
    return sorted({*globals(), *__all__})
