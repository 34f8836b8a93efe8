"""Writes docs/METRICS.md, the reference of all metrics: `python docs/metrics.py`. A test compares the file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from engine import features
from engine.api.exposition.catalogue import ENGINE_WIDE, OF_ACTORS, Family, FeatureMetrics

_HEAD: Final = """\
# Metrics

Scrape the engine with Prometheus, and look up a metric. `GET /metrics` of any edge has the figures
of the whole engine, in Prometheus' text format 0.0.4, or OpenMetrics 1.0 where `Accept` prefers it.

**A token is needed**, with the scope `metrics` (or `operator`): metrics name tenants, rules and the
targets of actions, and the port is that of the clients.

```
engine token prometheus --scope metrics --ttl 365d > /etc/prometheus/engine-token
```

```yaml
scrape_configs:
  - job_name: engine
    static_configs: [{targets: ["HOST:8000"]}]
    authorization: {credentials_file: /etc/prometheus/engine-token}    # read anew for each scrape
```

A token lives 400 days at most; `engine revoke prometheus` ends it. With an identity provider, let
Prometheus fetch tokens of the scope `metrics` (`oauth2` of the scrape configuration).

**One target is enough**: a load balancer, the port that several edges share, or one edge of a
cluster. The edge that is asked has its own numbers as they are, and those of all others at most two
seconds old, so scrape every 5 s or less often. With several targets each series exists once for
each: take the largest, `sum(max by (shard) (rate(engine_published_total[5m])))`, as the dashboards
and [alert rules](../deploy/alerts.yaml) do.

**Who is missing**, without an answer for 1.5 s, has `engine_up` 0 and nothing else, until it
answers: old numbers would look like a standstill. While the controller does not answer,
`engine_up{role="controller"}` is 0 and the edge serves its own numbers alone. A scrape waits for
nobody longer than half a second, for the controller five.

**Counters** begin at 0 when their actor's process starts, as Prometheus expects. `shard`,
`scheduler` and `edge` name the actor, the same in every incarnation.

**Names that users of the engine choose** (tenants, rules, categories) are bounded: the first 100
that an actor meets have series of their own, `(other)` stands for the rest until the process ends.
Nothing has a user, a message or a token as its label.

**Exemplars** (OpenMetrics only): buckets of `engine_delivery_seconds`, `engine_first_send_seconds`,
`engine_ack_seconds` and `engine_edge_publish_seconds` name the last message in them by
`message_id`, and by `trace_id` when it is part of a sampled trace ([TRACES.md](TRACES.md));
together they have at most 128 characters, and the id is left out beyond.
`GET /v1/users/{user}/messages/{id}` and `engine history USER --id ID` tell what became of it.
Prometheus stores them with `--enable-feature=exemplar-storage`.

**Dashboards** for Grafana are in [deploy/grafana](../deploy/grafana): overview, delivery, timers
and rules, tenants, cluster; their job is `engine`. [deploy/compose.yaml](../deploy/compose.yaml)
starts Prometheus and Grafana with them.

`python docs/metrics.py` makes this page.
"""
_SUFFIX: Final = {"counter": "_total", "info": "_info"}


def of_features() -> dict[str, FeatureMetrics]:
    """The metrics of each feature that has some, by its name."""
    names = [f"{features.__name__}.{found.name}.figures" for found in pkgutil.iter_modules(features.__path__)]
    return {name.split(".")[2]: importlib.import_module(name).METRICS for name in names if find_spec(name)}


def sections() -> dict[str, tuple[Family, ...]]:
    """All metrics, by the titles of the page."""
    found = dict(OF_ACTORS)
    for metrics in of_features().values():
        found[metrics.title] = (*found.get(metrics.title, ()), *(figure.family for figure in metrics.figures))
    return found | ENGINE_WIDE


def reference() -> str:
    """The page."""
    return "\n".join([_HEAD, *(line for title, families in sections().items() for line in _section(title, families))])


def _section(title: str, families: tuple[Family, ...]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| metric | type | labels | |"
    yield "|---|---|---|---|"
    for family in families:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        yield f"| `{family.name}{_SUFFIX.get(family.kind, '')}` | {family.kind} | {labels} | {family.help} |"
    yield ""


if __name__ == "__main__":
    Path(__file__).with_name("METRICS.md").write_text(reference())
