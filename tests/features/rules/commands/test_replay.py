"""Recordings: what is read from them, and what is left out."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import TracebackType
from typing import Any

from engine.features.rules.commands.replay import ACTS, CONDITIONS, LINE_BYTES_MAX, Replay, open_recording
from engine.features.rules.core.toml_loader import parse_rules


def test_an_overlong_line_is_left_out_without_being_kept_in_memory(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "long.gz", "wb", compresslevel=1) as file:
        file.write(b'{"a":1}\n')
        for _ in range(LINE_BYTES_MAX * 2 // (1 << 20) + 1):
            file.write(b"x" * (1 << 20))
        file.write(b'\n{"b":2}\n')
    with open_recording(str(tmp_path / "long.gz")) as recording:
        assert list(recording.lines()) == [b'{"a":1}\n', None, b'{"b":2}\n']


class PublisherInMemory:
    """`engine.client.publisher.Publisher` that keeps what it gets."""

    def __init__(self, _on_result: object) -> None:
        self.posted: list[dict[str, Any]] = []

    async def __aenter__(self) -> PublisherInMemory:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    async def post(self, **item: Any) -> None:
        self.posted.append(item)

    async def flush(self) -> None:
        pass


async def test_a_replay_skips_what_publishers_cannot_ask_for(tmp_path: Path) -> None:
    rule = '[[rule]]\nname = "{}"\nevent = "e"\ntype = "t"\nrecipients = ["u"]\n{}\n'
    more = {"now": "", "away": 'inactive = "30d"', "asked": 'delay = "1h"\nfire = { unless_active = true }', "acts": 'do = "https://h/"'}
    rules = parse_rules("".join(rule.format(name, text) for name, text in more.items()), "x.toml")
    (tmp_path / "events").write_bytes(b'{"event":"e","payload":{"u":"ann"}}\n')
    publisher = PublisherInMemory(None)
    replay = Replay(rules, lambda _on_result: publisher)  # type: ignore[arg-type,return-value]
    with open_recording(str(tmp_path / "events")) as recording:
        report = await replay.run(recording)
    assert [item["type"] for item in publisher.posted] == ["t"]
    assert (report.skipped[CONDITIONS], report.skipped[ACTS], report.notified) == (2, 1, {"now": 1})
