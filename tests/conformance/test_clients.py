"""The Python client keeps the promises of a client; the browser's is tested likewise in tests/browser/test_conformance.py."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from tests.conformance import client_promises
from tests.conformance.client_under_test import CommandClient
from tests.conformance.python_client import PythonClient


@pytest.mark.parametrize("promise", client_promises.promises_of(PythonClient()), ids=lambda promise: promise.__name__)
async def test_the_python_client_keeps_its_promise(promise: client_promises.ClientPromise) -> None:
    async with client_promises.trial_of(PythonClient(), promise) as trial:
        await promise(trial, random.Random(promise.__name__))


async def test_the_python_client_keeps_its_promises_as_a_program() -> None:
    async with client_promises.trial_of(
        CommandClient(f"{sys.executable} -m tests.conformance.python_client"), client_promises.repeats_nacks
    ) as trial:
        await client_promises.repeats_nacks(trial, random.Random(1))


CARELESS = """
import json, os, sys, threading
from websockets.sync.client import connect
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
url = os.environ["NOTIFY_URL"].replace("http", "ws") + "/v1/ws"
with connect(url, subprotocols=["notify.v1.json"], proxy=None) as socket:
    for text in socket:
        for message in json.loads(text).get("messages", ()):
            print(json.dumps({"seq": message["seq"], "id": message["id"]}), flush=True)
            socket.send(json.dumps({"type": "ack", "seq": message["seq"]}))
"""


async def test_a_client_that_shows_whatever_arrives_is_found_out(tmp_path: Path) -> None:
    program = tmp_path / "careless.py"
    program.write_text(CARELESS)
    client = CommandClient(f"{sys.executable} {program}")
    async with client_promises.trial_of(client, client_promises.shows_once_in_order) as trial:
        await client_promises.shows_once_in_order(trial, random.Random(1))
    async with client_promises.trial_of(
        CommandClient(f"{sys.executable} {program}"), client_promises.acknowledges_repeats_of_settled
    ) as trial:
        with pytest.raises(AssertionError, match=r"shown were \[1, 1"):
            await client_promises.acknowledges_repeats_of_settled(trial, random.Random(1))
    async with client_promises.trial_of(CommandClient(f"{sys.executable} {program}"), client_promises.shows_early_copies_once) as trial:
        with pytest.raises(AssertionError, match="below the early copy were acknowledged with it"):
            await client_promises.shows_early_copies_once(trial, random.Random(1))
