"""What is made of py-spy's samples."""

from __future__ import annotations

from bench.profile import package_of, summary

STACKS = [
    "run (threading.py);data_received (engine/transports/http_protocol.py);parse (engine/publish/drafts.py) 3",
    "run (threading.py);data_received (engine/transports/http_protocol.py:330) 1",
    "run (threading.py);parse (engine/publish/drafts.py);parse (engine/publish/drafts.py) 4",
    "process 12:edge 7",
]


def test_shares_are_of_the_samples_in_python_and_a_recursive_function_counts_once() -> None:
    found = summary(STACKS)
    assert found["samples"] == 8
    assert found["packages"] == {"engine.publish": 87.5, "engine.transports": 12.5}
    assert found["functions"] == {
        "parse (engine/publish/drafts.py)": 87.5,
        "data_received (engine/transports/http_protocol.py)": 12.5,
    }
    assert found["with_callees"]["run (threading.py)"] == 100.0
    assert found["with_callees"]["parse (engine/publish/drafts.py)"] == 87.5
    assert found["with_callees"]["data_received (engine/transports/http_protocol.py)"] == 50.0


def test_a_package_is_the_engines_room_or_the_library() -> None:
    assert package_of("engine/core/shard/shard.py") == "engine.core"
    assert package_of("engine/config.py") == "engine.config"
    assert package_of("redis/asyncio/client.py") == "redis"
    assert package_of("threading.py") == "threading"


def test_no_sample_is_no_share() -> None:
    assert summary([]) == {"samples": 0, "packages": {}, "functions": {}, "with_callees": {}}
