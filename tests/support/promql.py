"""What a PromQL query names: metrics, values of labels, and labels that it groups by. Of the part of the language that deploy/ uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_SELECTOR = re.compile(r"(engine_\w+)\s*(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPED = re.compile(r"\b(?:sum|min|max|avg|count|topk)\s+(by)\s*\(([^)]*)\)\s*\(")


class Selector(NamedTuple):
    """`metric{label="value", ...}`: label, operator and value of each."""

    metric: str
    matchers: list[tuple[str, str, str]]


def selectors_of(query: str) -> list[Selector]:
    """All of them, in order."""
    return [Selector(name, _MATCHER.findall(matchers)) for name, matchers in _SELECTOR.findall(query)]


def groups_of(query: str) -> Iterator[tuple[set[str], str]]:
    """For each `op by (labels) (inner)`, the labels and the inner query."""
    for found in _GROUPED.finditer(query):
        depth, end = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(query[end], 0)
            end += 1
        yield set(re.findall(r"\w+", found[2])), query[found.end() : end - 1]


def labels_left(query: str) -> set[str] | None:
    """The labels of its result: those of its outermost `by`; none for an operation without one; None where the query has neither."""
    outer = re.match(r"\s*(?:histogram_quantile\([0-9.]+, )?(\w+)\s*(?:by\s*\(([^)]*)\))?\s*\(", query)
    if outer is None or outer[1] not in {"sum", "min", "max", "avg", "count"}:
        return None
    labels = set(re.findall(r"\w+", outer[2] or ""))
    return labels - {"le"} if query.startswith("histogram_quantile") else labels
