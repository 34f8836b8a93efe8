"""The Go client, built by Go, keeps the promises of a client over WebSocket."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
from pathlib import Path

from tests.conformance.client_promises import ClientPromise, promises_of, trial_of
from tests.conformance.client_under_test import CommandClient
from tests.support.missing_programs import untried

CLIENT = Path(__file__).parents[2] / "clients" / "go"


def go(*words: str | Path) -> str:
    """Run Go in the folder of the client; returns what it prints."""
    if shutil.which("go") is None:
        untried("no Go: its client was not tried")
    try:
        subprocess.run(["go", "mod", "download"], cwd=CLIENT, capture_output=True, check=True, timeout=100)
    except subprocess.SubprocessError:
        untried("Go could not download what its client needs")
    done = subprocess.run(["go", *words], cwd=CLIENT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def test_the_go_client_keeps_its_promises(tmp_path: Path) -> None:
    go("build", "-o", tmp_path / "client", "./conformance")

    async def keeps(promise: ClientPromise) -> None:
        async with trial_of(CommandClient(f"{tmp_path}/client"), promise) as trial:
            await promise(trial, random.Random(promise.__name__))

    promises = promises_of(CommandClient(""))
    assert promises
    async with asyncio.TaskGroup() as group:  # each on a server of its own; most of the time is waiting
        for promise in promises:
            group.create_task(keeps(promise))


def test_the_go_client_is_formatted_and_vetted() -> None:
    go("vet", "./...")
    done = subprocess.run(["gofmt", "-l", CLIENT], capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_the_unit_tests_of_the_go_client_pass() -> None:
    go("test", "-count=1", "./...")
