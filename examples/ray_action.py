"""A rule that calls a Ray actor when it fires: a cart was left behind, and nothing has happened since.

    ENGINE_RULES_PATH=examples/ray_action.toml .venv/bin/engine up   # in another terminal; it prints the address of its Ray
    RAY_AUTH_MODE=token .venv/bin/python examples/ray_action.py ADDRESS

The actor is of this program, in a namespace of its own; the engine finds it by its name. Two users leave a cart, and one of them pays: the
other's cart is touched two seconds later. ENGINE_URL and ENGINE_TOKEN say where the engine is, and who publishes.
"""

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from functools import cache
from typing import Any
from uuid import uuid4

import ray

URL = os.environ.get("ENGINE_URL", "http://127.0.0.1:8000")


@ray.remote
class Carts:
    """What a shop does about carts."""

    def __init__(self) -> None:
        self._done: dict[str, str] = {}  # by key; in a shop, in the database that the work changes too
        self._touched = asyncio.Event()

    async def touch(self, event: dict[str, Any]) -> None:
        """Called at least once for each action, and always under the same key: a repeat changes nothing.

        When this returns it is done; when it raises, it is called again.
        """
        if event["key"] not in self._done:
            self._done[event["key"]] = f"{event['user']}: {event['message']['data']['item']}"
        self._touched.set()

    async def touched(self) -> list[str]:
        """The carts that were touched, as soon as there is one."""
        await self._touched.wait()
        return list(self._done.values())


@cache
def token() -> str:
    """The one in the environment, else one of the engine on this machine, made once: a second passes meanwhile."""
    made = [sys.executable, "-m", "engine", "token", "shop", "--scope", "publish"]
    return os.environ.get("ENGINE_TOKEN") or subprocess.check_output(made, text=True).strip()


def happened(event: dict[str, Any]) -> Any:
    """Send an event to the engine; what its rules made of it."""
    headers = {"Authorization": f"Bearer {token()}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{URL}/v1/events", json.dumps(event).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def main(address: str) -> None:
    """Leave two carts behind, pay one, and wait for the other."""
    ray.init(address, namespace="shop", log_to_driver=False)
    carts = Carts.options(name="carts", num_cpus=0).remote()  # type: ignore[attr-defined]
    for user, item in (("ann", "a lamp"), ("bob", "a chair")):
        happened({"type": "cart.abandoned", "user": user, "id": uuid4().hex, "data": {"item": item}})
    paid = happened({"type": "order.paid", "user": "bob", "id": uuid4().hex})
    print(f"cancelled {paid['cancelled']}")
    print("touched", *ray.get(carts.touched.remote()))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "auto")
