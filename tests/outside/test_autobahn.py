"""The cases of the Autobahn test suite (https://github.com/crossbario/autobahn-testsuite) against the transport of WebSockets.

`kosoku` is a fuzzing client that runs Autobahn's own case files. The server is an edge whose WebSockets send each message back.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kosoku import FailureError, run_fuzzingclient
from websockets.frames import Frame, Opcode

from engine.core.wire.records import Welcome
from engine.transports import websocket_handshake
from engine.transports.websocket_protocol import INVALID_DATA, NOT_UTF8
from engine.transports.websocket_transport import DirectWebSocket
from tests.support.edge_world import edge_world

ALL = ["*"]

COMPRESSION = ["12.*", "13.*"]
"""Cases of `permessage-deflate`, which the engine does not offer."""

LENIENT = {"6.4.3", "6.4.4"}
"""Of text that is not UTF-8, in a frame that arrives in pieces. The engine checks a frame when it is complete, as RFC 6455 allows."""

UNSPECIFIED = {"7.1.6", "7.13.1", "7.13.2"}
"""These only inform, since the RFC leaves the behaviour open."""

EXPECTED = dict.fromkeys(LENIENT, ("NON-STRICT", "OK")) | dict.fromkeys(UNSPECIFIED, ("INFORMATIONAL", "INFORMATIONAL"))

LARGEST = {"frame_bytes_max": 16 << 20, "fragments_max": 1 << 17, "client_frames_burst": 1 << 20, "send_buffer_bytes_max": 64 << 20}
"""Autobahn sends 16 MiB in one frame, 4 MiB in 65 537 fragments, and does not wait for the echoes."""


class Echo(DirectWebSocket):
    """Sends each message back. The session's handler is replaced; the transport below it is the engine's."""

    __slots__ = ()

    def on_welcome(self, record: Welcome) -> None:
        """Send nothing: Autobahn expects its own messages only."""

    def text(self, data: bytes) -> None:
        if self.ended:
            return
        try:
            data.decode()
        except UnicodeDecodeError:
            self.fail(INVALID_DATA, NOT_UTF8)
            return
        self.write(data)

    def binary(self) -> None:
        """Do nothing: `_message` has the payload."""

    def _message(self) -> None:
        first, payload = self._fragments[0], b"".join(fragment.data for fragment in self._fragments)
        super()._message()
        if first.opcode is Opcode.BINARY:
            self._write_all([Frame(Opcode.BINARY, payload).serialize(mask=False)])


async def run(url: str, cases: Sequence[str], concurrency: int) -> dict[str, tuple[str, str]]:
    """The verdicts on messages and on the closing handshake, of the cases that are not as expected."""
    try:
        results = await run_fuzzingclient(url, cases, COMPRESSION, concurrency)
    except FailureError as failure:
        results = failure.results
    verdicts = {result.case_id: (result.behavior.value, result.behavior_close.value) for result in results}
    assert len(verdicts) == (len(cases) if cases != ALL else 301)
    return {case: verdict for case, verdict in verdicts.items() if verdict != EXPECTED.get(case, ("OK", "OK"))}


async def test_autobahns_cases_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_handshake, "DirectWebSocket", Echo)
    async with edge_world(**LARGEST) as world:
        url = f"ws://127.0.0.1:{world.port}/v1/ws?token={world.token('alice')}"
        suspects = await run(url, ALL, concurrency=32)
        # Most cases give an answer a second, which a busy machine may miss: those are judged alone.
        assert not (suspects and await run(url, list(suspects), concurrency=1))
