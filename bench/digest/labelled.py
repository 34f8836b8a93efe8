"""The labelled messages: GitHub deliveries with labels written by hand, and the forum's, dealt out to absences of one user each.

`github.jsonl` has what a notification of each of the 329 deliveries of `@octokit/webhooks-examples` 7.6.1 (see examples/github/LICENSE)
would say, the intent that a person reads in it, and the line that a person would write for n of that intent. A third of the intents is
held out, by a digest of its label or, in the forum, by its number: nothing was tuned on them. Within an absence all messages are of one
part, and come within 100 s, so that windows part no intent.
"""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bench.digest.forum import Labelled, draw

GITHUB = Path(__file__).parent / "github.jsonl"
FORUM_SESSIONS = 30
START_MS = 1_767_000_000_000
SPAN_MS = 100_000


class Absence(NamedTuple):
    """What one user has missed: messages with `id` and `ts`, oldest first, and the label and written line of each."""

    language: str
    source: str
    messages: list[dict[str, Any]]
    labels: list[str]
    lines: list[str]


def absences(*, held: bool) -> list[Absence]:
    """All absences of the held-out third, or of the rest; the same at every call."""
    choice = random.Random(17)
    rows = [row for row in map(json.loads, GITHUB.read_text("utf-8").splitlines()) if row["held"] is held]
    choice.shuffle(rows)
    github = [Labelled(row["label"], row["line"], row["message"]) for row in rows]
    found = [_absence("en", "github", github[first : first + 24], choice) for first in range(0, len(github), 24)]
    for language in ("en", "zh"):
        sessions = islice(draw(language, choice, held=held), FORUM_SESSIONS // 3 if held else FORUM_SESSIONS * 2 // 3)
        found += [_absence(language, "forum", session, choice) for session in sessions]
    return found


def _absence(language: str, source: str, session: list[Labelled], choice: random.Random) -> Absence:
    times = sorted(choice.randrange(SPAN_MS) for _ in session)
    messages = [{"id": f"m{n}", "ts": START_MS + ts, **one.message} for n, (ts, one) in enumerate(zip(times, session, strict=True))]
    return Absence(language, source, messages, [one.label for one in session], [one.line for one in session])
