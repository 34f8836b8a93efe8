"""A rule that calls a deployment of Ray Serve when it fires: an order was placed, and is to be confirmed.

    .venv/bin/pip install 'ray[serve]'
    ENGINE_RULES_PATH=examples/ray_action.toml .venv/bin/engine up   # in another terminal; it prints the address of its Ray
    RAY_AUTH_MODE=token .venv/bin/python examples/ray_serve_action.py ADDRESS

The engine finds the deployment by the names in the rule, `do = "serve://orders/Orders.confirm"`. The first call of this one fails, and is
tried again. ENGINE_URL and ENGINE_TOKEN say where the engine is, and who publishes.
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
from ray import serve

URL = os.environ.get("ENGINE_URL", "http://127.0.0.1:8000")


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Orders:
    """Confirms orders."""

    def __init__(self) -> None:
        self._tries: dict[str, int] = {}
        self._confirmed: dict[str, str] = {}  # by key; in a shop, in the database that the work changes too
        self._done = asyncio.Event()

    async def confirm(self, event: dict[str, Any]) -> None:
        """Called at least once for each action, under the same key."""
        key, tries = event["key"], self._tries.get(event["key"], 0) + 1
        self._tries[key] = tries
        if tries == 1:
            raise RuntimeError("the warehouse does not answer")
        self._confirmed[key] = f"{event['user']}: {event['message']['data']['order']}, at try {tries}"
        self._done.set()

    async def confirmed(self) -> list[str]:
        """The orders, as soon as there is one."""
        await self._done.wait()
        return list(self._confirmed.values())


@cache
def token() -> str:
    """The one in the environment, else one of the engine on this machine, made once: a second passes meanwhile."""
    made = [sys.executable, "-m", "engine", "token", "shop", "--scope", "publish"]
    return os.environ.get("ENGINE_TOKEN") or subprocess.check_output(made, text=True).strip()


def happened(event: dict[str, Any]) -> None:
    """Send an event to the engine."""
    headers = {"Authorization": f"Bearer {token()}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{URL}/v1/events", json.dumps(event).encode(), headers)
    with urllib.request.urlopen(request, timeout=30):
        pass


def main(address: str) -> None:
    """Place an order, and wait until it is confirmed."""
    ray.init(address, namespace="shop", log_to_driver=False)
    serve.start(proxy_location="Disabled")  # the engine calls by a handle; over HTTP a deployment is reached as a webhook
    orders = serve.run(Orders.bind(), name="orders", route_prefix=None)
    happened({"type": "order.placed", "user": "ann", "id": uuid4().hex, "data": {"order": "a lamp"}})
    print("confirmed", *orders.confirmed.remote().result(timeout_s=60))
    serve.shutdown()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "auto")
