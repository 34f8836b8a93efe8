"""A job of somebody else on the engine's Ray cluster: a driver in another namespace, which collects all that Ray lets it see.

Run as a program, `python -m tests.support.foreign_job ADDRESS NAMESPACE`, with what Ray's token authentication wants in the environment.
It prints, as one JSON object,

    seen        texts and, in hex, bytes: actors, jobs, nodes and placement as the control service has them, every value of its key-value
                store, and the answers of actors of that namespace to whatever may be called without arguments
    answered    names of the methods that answered, `actor.method`
    refused     methods that answered with an exception, and its text
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

import ray
from ray._private import state as gcs_state
from ray._private.worker import global_worker
from ray.exceptions import RayTaskError

WAIT_S: Final = 60
KV_NAMESPACES: Final = (
    None,
    b"fun",
    b"job",
    b"session",
    b"named_actors",
    b"cluster",
    b"dashboard",
    b"usage_stats",
    b"__autoscaler",
    b"serve",
)
ADDED_BY_RAY: Final = ("__init__", "__ray_ready__", "__ray_terminate__")


def text_of(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else repr(value)


def values_of_the_control_service() -> list[str]:
    accessor, client = gcs_state.state._connect_and_get_accessor(), global_worker.gcs_client
    tables = [accessor.get_actor_table(None, None), accessor.get_job_table(), accessor.get_node_table(), accessor.get_worker_table()]
    tables += [accessor.get_placement_group_table(), accessor.get_task_events(), [accessor.get_system_config()]]
    seen = [text for table in tables for row in table for text in (repr(row), text_of(row))]
    for namespace in KV_NAMESPACES:
        for key in client.internal_kv_keys(b"", namespace):
            value = client.internal_kv_get(key, namespace) or b""
            seen += [key.hex(), value.hex(), repr(value)]
    return seen


def calls_of(name: str, actor: Any) -> dict[str, tuple[Any, ...]]:
    """Methods of an actor to be called, with arguments that do no harm where they are taken."""
    names = [method for method in actor._ray_method_signatures if method not in ADDED_BY_RAY]
    arguments: dict[str, tuple[Any, ...]] = {
        "exchange": ("edge-0/foreign", 0, b""),
        "unlock": (bytes(32),),
        "connections_of": ("default",),
        "drain_edge": (0,),
        "hand_over": ([0], 0) if name.startswith("shard") else (),
        "adopt": (1,),
        "release": (1,),
        "slow_clients": (1,),
        "follow": (1,),
        "ingest": ("default", "/v1/notifications", [b'[{"user": "ann", "type": "t"}]']),
        "request": ("default", "", "POST", "/v1/notifications", b'[{"user": "ann", "type": "t"}]'),
    }
    return {method: arguments.get(method, ()) for method in names}


def main() -> None:
    address, namespace = sys.argv[1:]
    ray.init(address=address, namespace="somebody-else", log_to_driver=False)
    found: dict[str, Any] = {"seen": values_of_the_control_service(), "answered": [], "refused": {}}
    for entry in ray.util.list_named_actors(all_namespaces=True):
        if entry["namespace"] != namespace:
            continue
        name = entry["name"]
        actor = ray.get_actor(name, namespace=namespace)
        for method, arguments in calls_of(name, actor).items():
            try:
                answer = ray.get(getattr(actor, method).remote(*arguments), timeout=WAIT_S)
            except (RayTaskError, TypeError) as error:
                found["refused"][f"{name}.{method}"] = str(error)
            else:
                found["answered"].append(f"{name}.{method}")
                found["seen"].append(text_of(answer))
    found["seen"] += list(found["refused"].values())
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
