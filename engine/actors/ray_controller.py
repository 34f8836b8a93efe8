"""The controller as Ray has it, see `engine.actors.ray_actors`."""

from __future__ import annotations

from typing import Final

from engine.actors import controller
from engine.actors.ray_actors import ray_side

Controller: Final = ray_side(controller.Controller, __name__)
