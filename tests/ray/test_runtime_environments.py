"""Tasks that ask for an environment of their own, on the Ray of an engine, whose agent for that starts with the first of them."""

from __future__ import annotations

import os
from typing import Any


def test_a_task_has_the_environment_it_asks_for(job: Any) -> None:
    @job.remote(num_cpus=0)  # type: ignore[untyped-decorator]
    def wanted() -> str | None:
        return os.environ.get("WANTED")

    for value in ("first", "next"):
        assert job.get(wanted.options(runtime_env={"env_vars": {"WANTED": value}}).remote(), timeout=60) == value
