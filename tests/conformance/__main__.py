"""Checks a server, or a client, of PROTOCOL.md, one line for each promise.

python -m tests.conformance http://127.0.0.1:8000 --secret-file .engine/jwt-secret     a server, with the secret of its HS256 tokens
python -m tests.conformance --client "node my_client.js"                               a client (client_under_test.py: what it has to do)
python -m tests.conformance --client "..." --transports websocket,sse,poll             one that falls back

The promises are the functions of server_promises.py and client_promises.py. A server may be in use: users, ids and topics are made up,
and begin with `conformance-`. A broadcast that waits reaches them too: give a --tenant that has none. Exit code 0: all were kept.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.conformance import client_promises, server_promises
from tests.conformance.client_under_test import CommandClient
from tests.conformance.connections import TRANSPORTS, Server

PROMISE_TIMEOUT_S = 180


def main() -> int:
    """Check and report. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("url", nargs="?", help="of the server to check")
    parser.add_argument("--secret-file", type=Path, default=Path(".engine/jwt-secret"), help="of its tokens (default: %(default)s)")
    parser.add_argument("--tenant", default="default", help="of the users")
    parser.add_argument("--client", metavar="COMMAND", help="runs the client to check, in place of a server")
    parser.add_argument("--transports", default="websocket", help=f"of the client, by commas: {', '.join(TRANSPORTS)}")
    parser.add_argument("--only", default="", help="names of promises, by commas")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of what is done at random (default: from the clock)")
    arguments = parser.parse_args()
    if bool(arguments.url) == bool(arguments.client):
        parser.error("either the URL of a server or --client")
    if unknown := set(arguments.transports.split(",")) - set(TRANSPORTS):
        parser.error(f"unknown transports {sorted(unknown)}")
    only = set(filter(None, arguments.only.split(",")))
    if arguments.client:
        return asyncio.run(check_client(arguments.client, arguments.transports.split(","), arguments.seed, only))
    if not arguments.secret_file.is_file():
        parser.error(f"no file {arguments.secret_file}: --secret-file names the one with the secret that tokens are signed with")
    server = Server(arguments.url, arguments.secret_file.read_text().strip(), arguments.tenant)
    return asyncio.run(check_server(server, arguments.seed, only))


async def check_server(server: Server, seed: int, only: set[str]) -> int:
    """Every promise of a server, or only some."""
    async with server.http:
        checks = [(promise, lambda promise=promise: server_promises.check(promise, server, seed)) for promise in server_promises.PROMISES]
        return await report(checks, seed, only)


async def check_client(command: str, transports: list[str], seed: int, only: set[str]) -> int:
    """Every promise of a client that has these transports, or only some. Each starts the command anew."""

    async def run(check: client_promises.ClientPromise) -> None:
        async with client_promises.trial_of(CommandClient(command, transports), check) as trial:
            await check(trial, random.Random(seed))

    checks = client_promises.promises_of(CommandClient(command, transports))
    return await report([(check, lambda check=check: run(check)) for check in checks], seed, only)


async def report(checks: list[tuple[Callable[..., object], Callable[[], Awaitable[None]]]], seed: int, only: set[str]) -> int:
    """Run them one after another and print what became of each."""
    broken = 0
    chosen = [(check, run) for check, run in checks if not only or check.__name__ in only]
    for check, run in chosen:
        try:
            async with asyncio.timeout(PROMISE_TIMEOUT_S):
                await run()
            print(f"kept    {check.__name__}: {check.__doc__}", flush=True)
        except Exception as error:
            broken += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(
                f"BROKEN  {check.__name__}: {check.__doc__}\n        {type(error).__name__}: {error}\n        at {where.line}", flush=True
            )
    print(f"{len(chosen) - broken} kept, {broken} broken; --seed {seed} does the same again")
    return 1 if broken or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
