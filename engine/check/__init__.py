"""An independent checker: decides from a recorded history alone whether PROTOCOL.md was kept. `python -m engine.check HISTORY`.

It imports nothing of the engine. A history is a file of JSON objects, one a line, in the order in which publishers and clients saw the
events; docs/HISTORY-CHECK.md has the members.
"""

from engine.check.checker import REASONS, Checker, Violation, check
from engine.check.recorder import Recorder

__all__ = ("REASONS", "Checker", "Recorder", "Violation", "check")
