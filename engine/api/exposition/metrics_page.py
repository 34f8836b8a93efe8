"""The body of `GET /metrics`: Prometheus' text format 0.0.4, or OpenMetrics 1.0 with exemplars for a client that prefers it.

Eight shards with a hundred tenants make 12 000 lines, which take the library 250 ms. So the text is made some lines at a time, and between
them the event loop serves everybody else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from engine.api.exposition.catalogue import FeatureMetrics
from engine.api.exposition.families import families, own_row
from engine.auth import tokens
from engine.auth.tokens import Principal
from engine.errors import Unavailable
from engine.gateway.metrics import EdgeMetrics

_openmetrics: Final[Callable[[Any], bytes]] = openmetrics.generate_latest  # has no types of its own
LINES_MAX: Final = 50
"""Samples between two turns of the event loop: a millisecond."""

_EOF: Final = b"# EOF\n"
_FIGURES: Final = frozenset({"figures", "exemplars", "publish_latency", "publish_latency_sum_ms"})
_WEIGHT: Final = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")


def allow(principal: Principal) -> None:
    """Raises Problem: 403, the token lacks the scope. Metrics name tenants, rules and the targets of actions."""
    if tokens.OPERATOR not in principal.scopes:
        tokens.require(principal, tokens.METRICS)


def without_figures(status: Mapping[str, Any]) -> dict[str, Any]:
    """The status without what is in the rows of its actors for metrics only: some kilobytes for each."""
    return {
        name: [{field: value for field, value in row.items() if field not in _FIGURES} for row in rows] if isinstance(rows, list) else rows
        for name, rows in status.items()
    }


async def page(
    metrics: EdgeMetrics, status: Callable[[], Awaitable[Mapping[str, Any]]], accept: str, of_features: Iterable[FeatureMetrics]
) -> tuple[bytes, str]:
    """The text for a scrape, and its content type.

    Args:
        status: returns the controller's; raises Unavailable while it does not answer: then only this edge has figures.
        of_features: the metrics of the features of this edge.
    """
    try:
        found: Mapping[str, Any] | None = await status()
    except Unavailable:
        found = None
    openly, parts = prefers_openmetrics(accept), []
    for part in texts(families(found, metrics.edge, own_row(metrics), of_features), openly=openly):
        parts.append(part)
        await asyncio.sleep(0)
    return b"".join(parts), openmetrics.CONTENT_TYPE_LATEST if openly else CONTENT_TYPE_PLAIN_0_0_4


def texts(made: Iterable[Metric], *, openly: bool) -> Iterator[bytes]:
    """The text in parts of at most `LINES_MAX` samples; `openly`: in OpenMetrics."""
    for metric in made:
        samples = metric.samples
        for first in range(0, len(samples), LINES_MAX):
            metric.samples = samples[first : first + LINES_MAX]
            text = _openmetrics(_Scrape([metric])).removesuffix(_EOF) if openly else generate_latest(_Scrape([metric]))
            yield text if not first else text.split(b"\n", 2)[2]  # HELP and TYPE once
    if openly:
        yield _EOF


def prefers_openmetrics(accept: str) -> bool:
    """Does an `Accept` header (RFC 9110, section 12.5.1) name OpenMetrics 1.0 with a weight not below that of plain text?"""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for offer in accept.split(","):
        media_type, *parameters = (part.strip() for part in offer.lower().split(";"))
        values = dict(parameter.partition("=")[::2] for parameter in parameters)
        if media_type in weights and (media_type == "text/plain" or values.get("version", "1.0.0") == "1.0.0"):
            weights[media_type] = max(weights[media_type], _weight(values.get("q", "1")))
    return 0 < weights["application/openmetrics-text"] >= weights["text/plain"]


def _weight(text: str) -> float:
    return float(text) if _WEIGHT.fullmatch(text) else 0.0


class _Scrape(Collector):
    """The metrics of one scrape, as the formats take them."""

    def __init__(self, made: Iterable[Metric]) -> None:
        self._made = made

    def collect(self) -> Iterable[Metric]:
        return self._made
