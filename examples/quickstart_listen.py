"""Receive a user's notifications, and resume at the last one after a restart.

    make run                                                         # in another terminal
    .venv/bin/python examples/quickstart_listen.py alice

ENGINE_TOKEN is a token with scope `connect` for that user; without one, `engine token` makes it.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

from ray_notifications import Client

URL = os.environ.get("ENGINE_URL", "http://127.0.0.1:8000")


def fresh_token(user: str) -> str:
    """Called again before the token expires."""
    given = os.environ.get("ENGINE_TOKEN")
    return given or subprocess.check_output([sys.executable, "-m", "engine", "token", user], text=True).strip()


async def main(user: str, kept: Path, cursor: str | None) -> None:
    """Print notifications; the file `kept` holds the cursor."""
    async with Client(URL, lambda: fresh_token(user), last_event_id=cursor, on_cursor=kept.write_text, on_event=print) as client:
        async for message in client:
            print(message.seq, message.type, message.data)  # acknowledged when the loop asks for the next one


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else "alice"
    file = Path(f"cursor-{name}.txt")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(name, file, file.read_text() if file.exists() else None))
