"""Publish a notification, now and in five seconds.

    make run                                                         # in another terminal
    .venv/bin/python examples/quickstart_publish.py alice

ENGINE_TOKEN is a token with scope `publish`; without one, `engine token` makes it.
"""

import asyncio
import os
import subprocess
import sys

from ray_notifications import Publisher

URL = os.environ.get("ENGINE_URL", "http://127.0.0.1:8000")


def publisher_token() -> str:
    """The one in the environment, else one of the engine on this machine."""
    given = os.environ.get("ENGINE_TOKEN")
    return (
        given or subprocess.check_output([sys.executable, "-m", "engine", "token", "quickstart", "--scope", "publish"], text=True).strip()
    )


async def main(user: str) -> None:
    """Publish one notification for now and one for later."""
    async with Publisher(URL, publisher_token()) as publisher:
        print(await publisher.publish(user=user, type="post.liked", actor="bob", target="post/9", data={"title": "Bob liked your post"}))
        print(await publisher.publish(user=user, type="survey.ask", delay=5, data={"title": "How was it?"}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "alice"))
