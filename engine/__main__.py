"""`python -m engine` is `engine`."""

from __future__ import annotations

from engine.cli.app import main

if __name__ == "__main__":
    main()
