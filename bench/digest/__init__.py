"""How well missed messages are grouped by intent and told in lines, beside TF-IDF clustering, and what that costs.

On labelled messages (`bench.digest.labelled`): the rules were tuned on two thirds of the intents, the rest is held out. Pairwise F1 of
the clusters, over all pairs of messages of one absence; ROUGE-L (F1) of the lines against those that a person wrote; the share of
messages that rules decide; time and CPU for 10, 100 and 1 000 missed messages.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import msgspec

from bench.digest.labelled import Absence, absences
from bench.digest.tf_idf import cluster, tuned_threshold
from engine.features.digest.core.clusters import Cluster, Sorted, clusters_of, sort_out
from engine.features.digest.core.missed import Missed, read_missed
from engine.features.digest.core.wording import line_of
from engine.features.digest.text_groups import ModelMissing, TextGroups

SIZES = (10, 100, 1000)
Groups = Sequence[Sequence[int]]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rules-only", action="store_true", help="without a model")


def run(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Quality of each part and system, then cost."""
    model: TextGroups | None = None
    if not args.rules_only:
        try:
            model = TextGroups()
        except ModelMissing as error:
            args.phases.enter(str(error))
    threshold = tuned_threshold(absences(held=False))
    for part, held in (("tuned", False), ("held out", True)):
        every = absences(held=held)
        for source, language in (("all", ""), ("github", "en"), ("forum", "en"), ("forum", "zh")):
            some = [one for one in every if source == "all" or (one.source, one.language) == (source, language)]
            case = f"{part}, {source} {language}".strip()
            yield quality("tf-idf", case, some, lambda absence: cluster(absence.messages, threshold))
            yield {**quality("rules", case, some, partial(_numbers, model=None)), **lines(some, None), **decided(some)}
            if model is not None:
                yield {**quality("rules and model", case, some, partial(_numbers, model=model)), **lines(some, model)}
    for language in ("en", "zh"):
        yield from costs(model, language)


def read(absence: Absence) -> list[Missed]:
    """The messages of an absence as the engine reads them."""
    return [read_missed(msgspec.json.encode(message)[1:-1]) for message in absence.messages]


def digest(messages: Sequence[Missed], model: TextGroups | None) -> list[Cluster]:
    """As the engine makes it, without its budget of time."""
    found = sort_out(messages, None, (), 0)
    return clusters_of(found, None if model is None else model.group(texts(found)))


def texts(found: Sorted) -> list[list[str]]:
    return [[missed.text or missed.type for missed in window] for window in found.rest]


def _numbers(absence: Absence, model: TextGroups | None) -> list[int]:
    place = {missed.id: number for number, one in enumerate(digest(read(absence), model)) for missed in one.messages}
    return [place[message["id"]] for message in absence.messages]


def quality(system: str, case: str, every: Sequence[Absence], numbers: Callable[[Absence], Sequence[int]]) -> dict[str, Any]:
    """Pairwise precision, recall and F1: of all pairs in one cluster those of one intent, and the other way round."""
    right = together = same = 0
    for absence in every:
        found = numbers(absence)
        for (a, label_a), (b, label_b) in combinations(zip(found, absence.labels, strict=True), 2):
            right += a == b and label_a == label_b
            together += a == b
            same += label_a == label_b
    precision, recall = right / (together or 1), right / (same or 1)
    f1 = 2 * precision * recall / ((precision + recall) or 1)
    figures = {"f1": round(f1, 3), "precision": round(precision, 3), "recall": round(recall, 3)}
    return {"bench": "digest", "system": system, "case": case, "messages": sum(len(one.messages) for one in every), **figures}


def decided(every: Sequence[Absence]) -> dict[str, Any]:
    """Share of the messages whose cluster the rules know."""
    found = [sort_out(read(absence), None, (), 0) for absence in every]
    ruled = sum(len(messages) for one in found for messages in one.ruled.values())
    return {"decided_by_rules": round(ruled / sum(len(absence.messages) for absence in every), 3)}


def lines(every: Sequence[Absence], model: TextGroups | None) -> dict[str, Any]:
    """ROUGE-L of the line that has most of an intent's messages, for intents of two messages and more; the mean."""
    scores = []
    for absence in every:
        clusters = digest(read(absence), model)
        wanted: dict[str, list[int]] = defaultdict(list)
        for place, label in enumerate(absence.labels):
            wanted[label].append(place)
        for places in wanted.values():
            if len(places) > 1:
                ids = {absence.messages[place]["id"] for place in places}
                best = max(clusters, key=lambda one: _overlap(one, ids))
                scores.append(rouge_l(line_of(best, absence.language), absence.lines[places[0]].format(n=len(places))))
    return {"rouge_l": round(sum(scores) / (len(scores) or 1), 3)}


def _overlap(one: Cluster, ids: set[str]) -> float:
    found = {missed.id for missed in one.messages}
    return len(found & ids) / len(found | ids)


def rouge_l(line: str, reference: str) -> float:
    """F1 of the longest common subsequence, in words, and in characters of scripts without spaces (Lin 2004)."""
    a, b = _tokens(line), _tokens(reference)
    row = [0] * (len(b) + 1)
    for token in a:
        before = row
        row = [0]
        for place, other in enumerate(b):
            row.append(before[place] + 1 if token == other else max(before[place + 1], row[place]))
    common = row[-1]
    return 2 * common / ((len(a) + len(b)) or 1)


def _tokens(text: str) -> list[str]:
    spaced = "".join(f" {char} " if char > "\u2e7f" else char if char.isalnum() else " " for char in text.lower())
    return [token for token in spaced.split() if any(map(str.isalnum, token))]


def costs(model: TextGroups | None, language: str) -> Iterator[dict[str, Any]]:
    """Of one user's digest: stage 1 and the lines on an edge, stage 2 in its actor."""
    every = [one for one in absences(held=False) if one.source == "forum" and one.language == language]
    bodies = [msgspec.json.encode(message)[1:-1] for absence in every for message in absence.messages]
    for size in SIZES:
        rounds = max(2000 // size, 3)
        some = [bodies[place % len(bodies)].replace(b'"id":"', b'"id":"%d-' % place) for place in range(size)]
        begun, begun_cpu, modelled = time.perf_counter(), time.process_time(), 0.0
        for _ in range(rounds):
            found = sort_out([read_missed(body) for body in some], None, (), 0)
            asked = time.perf_counter()
            groups = None if model is None else model.group(texts(found))
            modelled += time.perf_counter() - asked
            for one in clusters_of(found, groups):
                line_of(one, language)
        ms, cpu_ms = (time.perf_counter() - begun) * 1000 / rounds, (time.process_time() - begun_cpu) * 1000 / rounds
        figures = {"ms": round(ms, 2), "of_it_model_ms": round(modelled * 1000 / rounds, 2), "cpu_ms": round(cpu_ms, 2)}
        yield {"bench": "digest", "system": "rules" if model is None else "rules and model", "case": f"cost, {size} {language}", **figures}
