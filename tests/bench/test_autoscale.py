"""What the benchmark of the autoscaler sets."""

from __future__ import annotations

from bench.__main__ import parser
from bench.autoscale import THRESHOLDS
from engine.cli.settings import checked
from engine.config import Config


def test_its_thresholds_are_ones_that_an_engine_takes() -> None:
    args = parser().parse_args(["autoscale"])
    checked(Config(autoscale_shards=f"{args.least}-{args.most}", **{f"autoscale_{name}": getattr(args, name) for name in THRESHOLDS}))
