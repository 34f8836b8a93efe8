"""The settings of the autoscaler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from engine.config import Config, Section, SettingRule, store_urls
from engine.features.autoscaling.core import count_range


def rules(config: Config) -> Iterator[SettingRule]:
    """See `Section`."""
    for name, least, most in (
        ("autoscale_shards", len(store_urls(config.redis_url)), 32),
        ("autoscale_schedulers", len(store_urls(config.redis_url)), 16),  # timer partitions
        ("autoscale_edges", 1, 64),
    ):
        counts = getattr(config, name)
        try:
            allowed = not counts or (count_range(counts)[0] >= least and count_range(counts)[-1] <= most)
        except ValueError:
            allowed = False
        wanted = f"allowed is FIRST-LAST, two numbers from {least} to {most}, or empty to leave it off"
        yield allowed, f"{name}: {counts!r} is not allowed; {wanted}"
    yield (
        not config.autoscale_dry_run or bool(config.autoscale_shards or config.autoscale_schedulers or config.autoscale_edges),
        "autoscale_dry_run: needed are autoscale_shards, autoscale_schedulers or autoscale_edges, else there is nothing to decide",
    )

    shares = (config.autoscale_down_share, config.autoscale_target_share, config.autoscale_up_share)
    yield (
        0 < shares[0] < shares[1] < shares[2] <= 1 and 2 * shares[0] < shares[2],
        "autoscale_down_share, autoscale_target_share, autoscale_up_share: above 0, each above the one before, at most 1, and the last "
        "more than twice the first, else a change of the number would be undone by its own effect",
    )


SECTION: Final = Section(
    "how many shards, schedulers and edges there are, by their load; off by default",
    {
        "autoscale_shards": "FIRST-LAST: the fewest and the most shards, such as 2-6; empty leaves their number to `engine scale`",
        "autoscale_schedulers": "the same for schedulers; 16 at most",
        "autoscale_edges": "the same for edges",
        "autoscale_dry_run": "decisions are shown in `engine status`, and not carried out",
    },
    rules,
)
