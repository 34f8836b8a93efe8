"""`python -m engine.check HISTORY`: print the violations of a recorded history. Exit code 1 when there are any."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from engine.check.checker import REASONS, check


def main() -> int:
    """The command. Returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m engine.check",
        description="Decide from a history of publishers and clients alone whether PROTOCOL.md was kept. See docs/HISTORY-CHECK.md.",
    )
    parser.add_argument("history", type=Path, help="file with one JSON object per line")
    given = parser.parse_args()
    try:
        with given.history.open(encoding="utf-8") as lines:
            violations = check(lines)
    except OSError as error:
        parser.error(f"{given.history}: {error.strerror}")
    for one in violations:
        sys.stdout.write(f"line {one.line}: {one} ({REASONS[one.reason]})\n")
    sys.stdout.write(f"{len(violations)} violations\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
