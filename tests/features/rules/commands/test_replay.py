"""Recordings: what is read from them, and what is left out."""

from __future__ import annotations

import gzip
from pathlib import Path

from engine.features.rules.commands.replay import LINE_BYTES_MAX, open_recording


def test_an_overlong_line_is_left_out_without_being_kept_in_memory(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "long.gz", "wb", compresslevel=1) as file:
        file.write(b'{"a":1}\n')
        for _ in range(LINE_BYTES_MAX * 2 // (1 << 20) + 1):
            file.write(b"x" * (1 << 20))
        file.write(b'\n{"b":2}\n')
    with open_recording(str(tmp_path / "long.gz")) as recording:
        assert list(recording.lines()) == [b'{"a":1}\n', None, b'{"b":2}\n']
