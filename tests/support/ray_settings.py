"""Settings of Ray in the process of a test. Ray reads them when it is imported: import this module before all that import Ray."""

from __future__ import annotations

import importlib
import os
import sys

assert "ray" not in sys.modules, "Ray was imported before its settings"

os.environ.setdefault("RAY_AUTH_MODE", "token")  # for tests that join an engine's Ray
# A test without Ray must not join the Ray of another worker's test, which ends when it likes. Programs that tests start are users' own.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
importlib.import_module("ray")
del os.environ["RAY_ENABLE_AUTO_CONNECT"]
