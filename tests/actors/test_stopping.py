"""The end of an engine as its clients see it. The last test of the package: it ends the engine that the others share."""

from __future__ import annotations

import asyncio
import signal

import pytest
from websockets.exceptions import ConnectionClosed

from tests.support.running_engine import RunningEngine, wait_gone

pytestmark = pytest.mark.engine


async def test_ctrl_c_tells_clients_when_to_come_back_and_leaves_no_process_behind(two_edges: RunningEngine) -> None:
    processes = two_edges.descendants()
    socket = await two_edges.connect("leaves")
    await two_edges.receive(socket, "welcome")
    stopping = asyncio.get_running_loop().run_in_executor(None, lambda: two_edges.stop(number=signal.SIGINT))
    assert (await two_edges.receive(socket, "drain"))["after_ms"] >= 0
    with pytest.raises(ConnectionClosed) as closed:
        await asyncio.wait_for(socket.recv(), 60)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012
    assert await stopping == 0
    wait_gone(processes, 30)
