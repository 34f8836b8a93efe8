"""The measures of the digest: right on what can be told by hand."""

from __future__ import annotations

import pytest

from bench.digest import decided, digest, lines, quality, read, rouge_l
from bench.digest.labelled import Absence, absences
from bench.digest.tf_idf import cluster

ABSENCE = Absence(
    "en",
    "forum",
    [
        {"id": "a", "ts": 1, "type": "post.liked", "actor": "ana", "target": {"kind": "post", "id": "1", "title": "Roses"}},
        {"id": "b", "ts": 2, "type": "post.liked", "actor": "bob", "target": {"kind": "post", "id": "1", "title": "Roses"}},
        {"id": "c", "ts": 3, "type": "notice", "data": {"text": "The lift is broken"}},
        {"id": "d", "ts": 4, "type": "notice", "data": {"text": "Nobody repairs the lift"}},
    ],
    ["likes", "likes", "lift", "lift"],
    ["{n} people liked “Roses”"] * 2 + ["The lift is broken"] * 2,
)


def test_pairwise_f1_counts_pairs() -> None:
    found = quality("x", "y", [ABSENCE], lambda _absence: [0, 0, 0, 1])
    assert (found["precision"], found["recall"], found["f1"]) == (round(1 / 3, 3), 0.5, 0.4)
    assert quality("x", "y", [ABSENCE], lambda _absence: [0, 0, 1, 1])["f1"] == 1


def test_rules_decide_what_the_publisher_says_and_their_lines_are_as_written() -> None:
    assert decided([ABSENCE]) == {"decided_by_rules": 0.5}
    assert len(digest(read(ABSENCE), None)) == 3
    assert lines([ABSENCE], None) == {"rouge_l": round((1 + rouge_l("Nobody repairs the lift", "The lift is broken")) / 2, 3)}


@pytest.mark.parametrize(
    ("line", "reference", "score"),
    [("a b c", "a b c", 1), ("a c", "a b c", 0.8), ("x", "a", 0), ("电梯坏了", "电梯 坏了!", 1), ("", "", 0)],
)
def test_rouge_l_is_of_the_longest_common_subsequence(line: str, reference: str, score: float) -> None:
    assert rouge_l(line, reference) == pytest.approx(score)


def test_tf_idf_joins_what_has_the_same_words() -> None:
    numbers = cluster(ABSENCE.messages, 0.3)
    assert numbers[0] == numbers[1] != numbers[2]


def test_no_intent_is_in_both_parts_but_those_of_every_user() -> None:
    tuned, held = ({label for absence in absences(held=part) for label in absence.labels} for part in (False, True))
    assert tuned & held == {"followers"}
    assert absences(held=True) == absences(held=True)
