"""The Kotlin client, built by Maven, keeps the promises of a client over WebSocket."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import shutil
import subprocess
from pathlib import Path

from tests.conformance.client_promises import ClientPromise, promises_of, trial_of
from tests.conformance.client_under_test import CommandClient
from tests.support.missing_programs import untried
from tests.support.scripted_engine import ScriptedEngine, serving, token

CLIENT = Path(__file__).parents[2] / "clients" / "kotlin"
SHARED = CLIENT / "target" / "shared.jsa"
"""The loaded classes, as the first machine leaves them for all others, which then start in half the time."""

# Machines that live for seconds: the second stage of compilation would cost more than it saves, as would threads that collect.
MACHINE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUIET = "-Xlog:disable"  # warnings of a machine would be among the lines of the client


def sources() -> str:
    """A digest of all that the compiled client depends on."""
    digest = hashlib.sha256()
    for path in [CLIENT / "pom.xml", *sorted(CLIENT.glob("src/**/*.kt"))]:
        digest.update(f"{path}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def built() -> str:
    """The classpath of the client, compiled once for the same sources; a warning is an error."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        untried("no Maven or Java: the Kotlin client was not tried")
    classpath, compiled = CLIENT / "target" / "classpath.txt", CLIENT / "target" / "packed.txt"
    maven, env = ["mvn", "--quiet", "--batch-mode"], {"MAVEN_OPTS": MACHINE, **os.environ}
    if not compiled.exists() or compiled.read_text() != sources():
        compiled.unlink(missing_ok=True)
        paths = ["dependency:build-classpath", "-Dmdep.outputFile=target/classpath.txt"]
        try:
            subprocess.run([*maven, *paths], cwd=CLIENT, env=env, capture_output=True, check=True, timeout=150)
        except subprocess.SubprocessError:
            untried("Maven could not download what the Kotlin client needs")
        done = subprocess.run([*maven, "test-compile"], cwd=CLIENT, env=env, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        for name in ("classes", "test-classes"):  # a machine shares no classes of a folder
            shutil.make_archive(os.fspath(CLIENT / "target" / name), "zip", CLIENT / "target" / name)
        SHARED.unlink(missing_ok=True)
        compiled.write_text(sources())
    return f"{CLIENT}/target/classes.zip:{CLIENT}/target/test-classes.zip:{classpath.read_text()}"


async def test_the_kotlin_client_keeps_its_promises() -> None:
    classpath = built()
    machines = asyncio.Semaphore(3)  # each is a Java machine that starts

    async def keeps(promise: ClientPromise, classes: str) -> None:
        command = f"java {MACHINE} {QUIET} -XX:{classes}={SHARED} -cp {classpath} ConformanceKt"
        async with machines, trial_of(CommandClient(command), promise) as trial:
            await promise(trial, random.Random(promise.__name__))

    first, *others = promises_of(CommandClient(""))
    async with asyncio.timeout(300), asyncio.TaskGroup() as group:
        await keeps(first, "SharedArchiveFile" if SHARED.exists() else "ArchiveClassesAtExit")
        for promise in others:
            group.create_task(keeps(promise, "SharedArchiveFile"))


def test_a_token_that_does_not_come_in_time_is_asked_for_again() -> None:
    command = ["java", *MACHINE.split(), "-cp", built(), "LateTokensKt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout.split(), done.returncode) == (["IOException", "TimeoutCancellationException", "ConnectException"], 0), done.stderr


async def test_a_handler_that_raises_loses_no_acknowledgement() -> None:
    classpath = built()
    async with serving(ScriptedEngine()) as server:
        server.publish()
        server.publish()
        env = os.environ | {"NOTIFY_URL": server.url, "NOTIFY_TOKEN": token()}
        process = await asyncio.create_subprocess_exec("java", *MACHINE.split(), "-cp", classpath, "RaisingHandlerKt", env=env)
        assert await asyncio.wait_for(process.wait(), 60) == 0
        await server.until(lambda: sorted(server.pending) == [2])
