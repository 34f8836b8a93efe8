"""What a server wrote on a WebSocket, as an independent client reads it."""

from __future__ import annotations

from typing import Any

from websockets.client import ClientProtocol
from websockets.frames import Opcode
from websockets.protocol import OPEN
from websockets.uri import parse_uri

from tests.support.hostile_input import strict_json


def written_messages(written: bytes) -> list[Any]:
    """The JSON values of the text frames. Fails when the bytes are not valid frames."""
    library = ClientProtocol(parse_uri("ws://h/"), state=OPEN, max_size=None)
    library.receive_data(written)
    assert library.parser_exc is None, library.parser_exc
    return [strict_json(frame.data) for frame in library.events_received() if frame.opcode is Opcode.TEXT]  # type: ignore[union-attr]
