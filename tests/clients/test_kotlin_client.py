"""The Kotlin client, built by Maven, keeps the promises of a client over WebSocket."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
from pathlib import Path

from tests.conformance.client_promises import ClientPromise, promises_of, trial_of
from tests.conformance.client_under_test import CommandClient
from tests.support.missing_programs import untried

CLIENT = Path(__file__).parents[2] / "clients" / "kotlin"


def built() -> str:
    """The classpath of the client, compiled; a warning is an error."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        untried("no Maven or Java: the Kotlin client was not tried")
    maven = ["mvn", "--quiet", "--batch-mode"]
    paths = ["dependency:build-classpath", "-Dmdep.outputFile=target/classpath.txt"]
    try:
        subprocess.run([*maven, *paths], cwd=CLIENT, capture_output=True, check=True, timeout=150)
    except subprocess.SubprocessError:
        untried("Maven could not download what the Kotlin client needs")
    done = subprocess.run([*maven, "test-compile"], cwd=CLIENT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return f"{CLIENT}/target/classes:{CLIENT}/target/test-classes:{(CLIENT / 'target' / 'classpath.txt').read_text()}"


async def test_the_kotlin_client_keeps_its_promises() -> None:
    command = f"java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp {built()} ConformanceKt"
    machines = asyncio.Semaphore(3)  # each is a Java machine that starts

    async def keeps(promise: ClientPromise) -> None:
        async with machines, trial_of(CommandClient(command), promise) as trial:
            await promise(trial, random.Random(promise.__name__))

    promises = promises_of(CommandClient(""))
    assert promises
    async with asyncio.timeout(300):
        await asyncio.gather(*map(keeps, promises))
