"""A notification engine on Ray and Redis: whatever it has accepted reaches its user, acknowledged, in order, and once.

Start reading at `engine.core` (every decision, pure), then `engine.store`, `engine.actors` and `engine.routes` (the shells).
"""

from __future__ import annotations

__version__ = "0.1.0"
