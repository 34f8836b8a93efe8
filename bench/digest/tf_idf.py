"""What most would do first: TF-IDF of everything a message says, and a cluster for what is alike (average linkage), threshold tuned."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any

import msgspec

from bench.digest.labelled import Absence


def words(message: dict[str, Any]) -> Counter[str]:
    """All words of the message, and pairs of characters in scripts without spaces."""
    text = msgspec.json.encode({name: value for name, value in message.items() if name not in ("id", "ts")}).decode().lower()
    spaced = "".join(char if char.isalnum() and char <= "\u2e7f" else " " for char in text)
    return Counter([*spaced.split(), *(a + b for a, b in pairwise(text) if a > "\u2e7f" and b > "\u2e7f")])


def similarities(messages: Sequence[dict[str, Any]]) -> list[list[float]]:
    """Cosines."""
    counts = [words(message) for message in messages]
    uses = Counter(word for found in counts for word in found)
    vectors = []
    for found in counts:
        vector = {word: count * math.log(1 + len(messages) / uses[word]) for word, count in found.items()}
        length = math.sqrt(sum(value * value for value in vector.values())) or 1.0
        vectors.append({word: value / length for word, value in vector.items()})
    return [[sum(value * b.get(word, 0.0) for word, value in a.items()) for b in vectors] for a in vectors]


def joined(alike: list[list[float]], threshold: float) -> list[int]:
    """Average linkage, until no two clusters are as much alike as `threshold`."""
    clusters = [[place] for place in range(len(alike))]
    while len(clusters) > 1:
        best, pair = max(
            (sum(alike[a][b] for a in first for b in second) / (len(first) * len(second)), (i, j))
            for (i, first), (j, second) in combinations(enumerate(clusters), 2)
        )
        if best < threshold:
            break
        clusters[pair[0]] += clusters.pop(pair[1])
    numbers = [0] * len(alike)
    for number, cluster_ in enumerate(clusters):
        for place in cluster_:
            numbers[place] = number
    return numbers


def cluster(messages: Sequence[dict[str, Any]], threshold: float) -> list[int]:
    """The number of each message's cluster."""
    return joined(similarities(messages), threshold)


def tuned_threshold(every: Sequence[Absence]) -> float:
    """The threshold with the best pairwise F1 on these."""
    found = [(similarities(absence.messages), absence.labels) for absence in every]
    return max((step / 20 for step in range(2, 19)), key=lambda threshold: _f1(found, threshold))


def _f1(found: Sequence[tuple[list[list[float]], list[str]]], threshold: float) -> float:
    right = wrong = 0
    for alike, labels in found:
        for (a, label_a), (b, label_b) in combinations(zip(joined(alike, threshold), labels, strict=True), 2):
            right += 2 * (a == b and label_a == label_b)
            wrong += (a == b) != (label_a == label_b)
    return right / ((right + wrong) or 1)
