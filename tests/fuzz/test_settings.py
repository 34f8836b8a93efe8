"""Any configuration is a `Config` or a `ConfigError` that names the setting: from the environment, a file or the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.cli.settings import SECTION_OF, load, variable
from engine.config import FIELDS, Config
from engine.errors import ConfigError
from tests.support.hostile_input import texts

names = st.sampled_from(sorted(FIELDS))
odd_values = st.sampled_from(
    [
        "",
        "0",
        "-1",
        "1",
        "1.5",
        "nan",
        "inf",
        "-inf",
        "1e400",
        "9" * 400,
        "0x10",
        "true",
        "None",
        "\x00",
        "1,2,3",
        ",",
        "1,,2",
        "a=b",
        " 5 ",
        "5 ",
        "٣",
    ]
)


def load_or_reason(options: dict[str, Any] | None, env: dict[str, str], path: Path) -> Config | None:
    try:
        return load(options, env, path)
    except ConfigError as error:
        reason = str(error)
    assert reason.isprintable(), "one line, fit for a terminal"
    return None


def check(config: Config | None) -> None:
    """Numbers of a configuration are finite: every limit is one."""
    if config is not None:
        for name in FIELDS:
            value = getattr(config, name)
            for number in value if isinstance(value, tuple) else [value]:
                assert not isinstance(number, float) or abs(number) < float("inf"), name


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(names, st.one_of(odd_values, texts), max_size=4))
@example({"link_pacing_ms": "nan"})
@example({"link_calls_share": "nan"})
@example({"ack_timeout_factor": "inf"})
@example({"reconnect_jitter": "nan"})
@example({"port": "9" * 5000})
def test_any_environment_is_a_configuration_or_a_reason(tmp_path_factory: pytest.TempPathFactory, given_values: dict[str, str]) -> None:
    env = {variable(name): text for name, text in given_values.items()}
    check(load_or_reason(None, env, tmp_path_factory.getbasetemp() / "none.toml"))


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(texts.map(lambda text: f"ENGINE_{text}"), texts, max_size=2))
@example({"ENGINE_\n": "1"})
@example({"ENGINE_": "1"})
@example({"ENGINE_INTERNAL_": "1"})
def test_any_other_variable_is_refused_or_changes_nothing(tmp_path_factory: pytest.TempPathFactory, env: dict[str, str]) -> None:
    none = tmp_path_factory.getbasetemp() / "none.toml"
    assert load_or_reason(None, env, none) in (None, load_or_reason(None, {}, none))


scalars = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text("ab"), st.integers(), max_size=2),
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(names, scalars, max_size=4))
def test_any_option_is_a_configuration_or_a_reason(tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any]) -> None:
    check(load_or_reason(options, {}, tmp_path_factory.getbasetemp() / "none.toml"))


def file_with(name: str, value: str, section: str | None = None) -> bytes:
    """A file with one setting: in its own section, at the top for "", or in another."""
    title = SECTION_OF[name] if section is None else section
    return (f"[{title}]\n" if title else "").encode() + f"{name} = {value}".encode("utf-8", "replace")


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=60),
        st.builds(file_with, names, st.one_of(odd_values, texts)),
        st.builds(file_with, names, st.one_of(odd_values, texts), st.sampled_from(["", "engine", "internal", "odd", "engine.odd"])),
    )
)
@example(b"x = " + b"[" * 5000 + b"]" * 5000)
@example(b"[edge]\nport = " + b"9" * 5000)
@example(b"a." * 5000 + b"a = 1")
@example(b"[internal]\nlink_pacing_ms = nan")
@example(b"[internal]\nlink_pacing_ms = -inf")
@example(b"engine = 1")
@example(b"[[engine]]")
@example(b'"\\n" = 1')
@example(b'[engine]\n"\\n\\u001b[31m" = 1')
def test_any_file_is_a_configuration_or_a_reason(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "engine.toml"
    path.write_bytes(text)
    check(load_or_reason(None, {}, path))
