"""The end of an append-only file: torn, or damaged before it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.store.append_only_file import damage_before_end

words = st.lists(st.binary(max_size=12), min_size=1, max_size=4).map(lambda rest: [b"SET", *rest])
commands = st.lists(words, min_size=1, max_size=8)


def written(commands: list[list[bytes]]) -> list[bytes]:
    return [b"*%d\r\n" % len(one) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in one) for one in commands]


def file_of(folder: Path, content: bytes) -> Path:
    path = folder / "appendonly.aof"
    path.write_bytes(content)
    return path


@given(commands, st.data())
def test_a_file_cut_anywhere_is_a_torn_end(
    tmp_path_factory: pytest.TempPathFactory, commands: list[list[bytes]], data: st.DataObject
) -> None:
    content = b"".join(written(commands))
    folder = tmp_path_factory.mktemp("torn")
    assert damage_before_end(file_of(folder, content[: data.draw(st.integers(0, len(content)))])) is None


@given(commands, st.data())
def test_an_end_that_was_overwritten_with_zeros_is_damage(
    tmp_path_factory: pytest.TempPathFactory, commands: list[list[bytes]], data: st.DataObject
) -> None:
    whole = written(commands)
    content = b"".join(whole)
    start = data.draw(st.integers(0, len(content) - 1))
    before = max(end for at in range(len(whole) + 1) if (end := len(b"".join(whole[:at]))) <= start)
    assert damage_before_end(file_of(tmp_path_factory.mktemp("zeroed"), content[:start] + bytes(len(content) - start))) == before


def test_a_length_beyond_the_end_is_damage_where_commands_follow(tmp_path: Path) -> None:
    first, second, third = written([[b"SET", b"a", b"1"], [b"SET", b"b", b"2"], [b"SET", b"c", b"3"]])
    damaged = second.replace(b"$3", b"$3000")
    assert damage_before_end(file_of(tmp_path, first + damaged + third)) == len(first)
    assert damage_before_end(file_of(tmp_path, first + second + third)) is None
    assert damage_before_end(file_of(tmp_path, first + damaged)) is None, "the last command: a torn end looks the same"


def test_a_count_beyond_the_end_is_damage_where_commands_follow(tmp_path: Path) -> None:
    first, second = written([[b"SET", b"a", b"1"], [b"SET", b"b", b"2"]])
    assert damage_before_end(file_of(tmp_path, first.replace(b"*3", b"*9") + second)) == 0


def test_an_empty_file_and_one_that_begins_with_a_dump_are_left_to_redis(tmp_path: Path) -> None:
    assert damage_before_end(file_of(tmp_path, b"")) is None
    assert damage_before_end(file_of(tmp_path, b"REDIS0009\xff*1\r\n$400\r\n" + b"".join(written([[b"SET", b"a"]])))) is None
