"""The archivist as Ray has it, see `engine.actors.ray_actors`; apart from the others, which do not load the libraries of its database."""

from __future__ import annotations

from typing import Final

from engine.actors import archivist
from engine.actors.ray_actors import ray_side

Archivist: Final = ray_side(archivist.Archivist, __name__)
