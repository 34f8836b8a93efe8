"""Writes docs/SETTINGS.md, the reference of all published settings: `python docs/settings.py`. A test compares the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from engine.cli.settings import SECTIONS, allowed, unit
from engine.config import FIELDS

_HEAD: Final = """\
# Settings

Give a setting as an option of `engine up` (`engine up --help` lists them), as `ENGINE_<NAME>` in
the environment, or as a key in its section of `engine.toml`: the first of these wins. `engine init`
writes an `engine.toml` of all settings, commented. `engine config` prints each with its value and
where that came from. `engine doctor` checks them, this machine, and the services that they name.

- Names that do not exist are refused with the nearest one. Variables that are no misspelt setting
  are left alone, as those of Kubernetes for a Service named `engine`.
- A number is in the unit that its name says: `_s` seconds, `_ms` milliseconds, `_bytes` bytes; `3d`
  is refused.
- A list is a text with commas, and in `engine.toml` also an array.
- An allowed origin is `http://HOST[:PORT]` or `https://HOST[:PORT]`, without a path, or `*`. While
  an engine listens on loopback, it allows the pages that this machine serves too, such as
  `http://localhost:3000`.
- Every other limit has a name, a unit and a reason in [`engine/config.py`](../engine/config.py).
  They are internal: they may change with any version.

`python docs/settings.py` makes this page.
"""


def reference() -> str:
    """The page."""
    return "\n".join([_HEAD, *(line for title in SECTIONS for line in _section(title))])


def _section(title: str) -> Iterator[str]:
    section = SECTIONS[title]
    yield f"## `[{title}]`: {section.about}\n"
    yield "| setting | default | allowed | meaning |"
    yield "|---|---|---|---|"
    for name, meaning in section.settings.items():
        default = msgspec.json.encode(FIELDS[name].default).decode()
        takes = allowed(name) + (f", in {unit(name)}" if unit(name) else "")
        yield " | ".join((f"| `{name}`", f"`{default}`", takes, meaning)) + " |"
    yield ""


if __name__ == "__main__":
    Path(__file__).with_name("SETTINGS.md").write_text(reference())
