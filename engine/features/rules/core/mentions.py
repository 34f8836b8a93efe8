"""Finds `@login` mentions in a text, as GitHub does.

A login is 1 to 39 letters, digits and single inner hyphens. Not mentions: mail addresses, teams (`@org/team`), apps (`@name[bot]`), and
anything in fenced code, inline code (CommonMark 0.31, sections 4.5 and 6.1) and HTML comments. Linear in the length of the text.
"""

from __future__ import annotations

import re
from typing import Final

TEXT_CHARS_MAX: Final = 1 << 18
"""Four times what GitHub allows in a comment; the rest is not searched."""

_MENTION: Final = re.compile(r"(?<![\w@/.`-])@([a-z0-9](?:[a-z0-9]|-(?=[a-z0-9])){0,38})(?![\w/-]|\[bot\])", re.IGNORECASE | re.ASCII)
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})([^\n]*)")
_TICKS: Final = re.compile(r"`+")
_COMMENT: Final = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)


def mentions(text: str) -> list[str]:
    """The logins mentioned in a text, in order; repetitions, also in another case, are left out."""
    found: dict[str, str] = {}
    for login in _MENTION.findall(_without_code(text[:TEXT_CHARS_MAX])):
        found.setdefault(login.lower(), login)
    return list(found.values())


def _without_code(text: str) -> str:
    prose: list[str] = []
    paragraph: list[str] = []
    fence = ""
    for line in _COMMENT.sub(" ", text).splitlines():
        edge = _FENCE.match(line)
        if fence:
            closes = edge is not None and edge[1].startswith(fence) and not edge[2].strip()
            fence = "" if closes else fence
        elif edge is not None and not (edge[1][0] == "`" and "`" in edge[2]):
            fence = edge[1]
        elif line.strip():
            paragraph.append(line)
            continue
        prose.append(_without_spans("\n".join(paragraph)))  # a blank line or a fence ends a paragraph, and with it inline code
        paragraph.clear()
    prose.append(_without_spans("\n".join(paragraph)))
    return "\n".join(prose)


def _without_spans(paragraph: str) -> str:
    """Inline code runs from a run of backticks to the next run of the same length; a run without a partner is text."""
    runs = [(match.start(), match.end()) for match in _TICKS.finditer(paragraph)]
    following: dict[int, int] = {}
    partner: list[int] = [-1] * len(runs)
    for index in range(len(runs) - 1, -1, -1):
        length = runs[index][1] - runs[index][0]
        partner[index] = following.get(length, -1)
        following[length] = index
    kept: list[str] = []
    index = position = 0
    while index < len(runs):
        if partner[index] < 0:
            index += 1
            continue
        kept.append(paragraph[position : runs[index][0]])
        position = runs[partner[index]][1]
        index = partner[index] + 1
    kept.append(paragraph[position:])
    return "`".join(kept)
