"""An asyncio transport without a socket."""

from __future__ import annotations

from typing import Any


class Transport:
    def __init__(self) -> None:
        self.written = b""
        self.ended = False

    def write(self, data: bytes) -> None:
        assert not self.ended
        self.written += data

    def write_eof(self) -> None:
        self.ended = True

    close = abort = write_eof

    def is_closing(self) -> bool:
        return self.ended

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0

    def set_protocol(self, protocol: Any) -> None:
        pass
