"""A Ray Serve deployment that streams an answer to its user, token by token: devices see it grow, and at the end it is in the inbox.

    .venv/bin/pip install 'ray[serve]'
    .venv/bin/engine up   # in another terminal; it prints the address of its Ray
    RAY_AUTH_MODE=token .venv/bin/python examples/ray_serve_stream.py ADDRESS

Open the demo page as `reader` meanwhile, and reload it: the text goes on where it was. Give a number of tokens for a longer answer.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from uuid import uuid4

import ray
from ray import serve

from ray_notifications.ray import AsyncPublisher

TOKENS = 200
USER = "reader"


async def generate(tokens: int) -> AsyncIterator[str]:
    """In place of a model."""
    for number in range(tokens):
        await asyncio.sleep(0.005)
        yield f"token-{number} "


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Model:
    """Answers prompts. The caller waits for nothing but the number of the message."""

    def __init__(self) -> None:
        self.publisher = AsyncPublisher()

    async def answer(self, job: str, user: str, tokens: int) -> int:
        """Stream an answer to the user. A request that Serve runs again begins the answer anew, or finds that it has ended."""
        async with self.publisher.stream(user=user, type="llm.answer", id=job, data={"title": f"Answer {job}"}) as message:
            done = 0
            async for token in generate(tokens):
                await message.append(token)
                done += 1
                if done % 50 == 0:
                    await message.progress(done / tokens, text=f"{done} of {tokens} tokens")
        return message.seq


def main() -> None:
    """Deploy, and ask for an answer."""
    ray.init(address=sys.argv[1] if len(sys.argv) > 1 else "auto", log_to_driver=False)
    tokens = int(sys.argv[2]) if len(sys.argv) > 2 else TOKENS
    serve.start(proxy_location="Disabled")  # this example calls the deployment by its handle; over HTTP it is the same
    handle = serve.run(Model.bind(), name="model", route_prefix=None)
    job = f"answer-{uuid4().hex[:8]}"
    print(f"{tokens} tokens are message {handle.answer.remote(job, USER, tokens).result()} of {USER}")
    serve.shutdown()


if __name__ == "__main__":
    main()
