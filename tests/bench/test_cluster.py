"""Which engines the benchmark of clusters measures, and in what order."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from bench.__main__ import parser
from bench.cluster import Size, cases


def test_one_host_and_two_take_turns_first_over_sockets_then_through_ray() -> None:
    args = parser().parse_args(["cluster"])
    found = [str(case) for case in cases(args.hosts, args.carriers, args.sizes, args.many)]
    assert found[:4] == ["1+1 on 1 host, unix", "1+1 on 2 hosts, tcp", "1+1 on 1 host, ray", "1+1 on 2 hosts, ray"]
    assert len(found) == 14


def test_many_shards_are_measured_on_the_most_hosts_and_at_the_fixed_rate_only() -> None:
    args = parser().parse_args(["cluster", "--sizes", "1+1", "--carriers", "tcp"])
    small, many = cases(args.hosts, args.carriers, args.sizes, args.many)
    assert (small.hosts, small.full) == (2, True)
    assert (many.size, many.hosts, many.full) == (Size(24, 4), 2, False)


@pytest.mark.parametrize("options", [["--sizes", "4"], ["--sizes", "0+1"], ["--hosts", "3"], ["--carriers", "pigeon"]])
def test_what_cannot_be_measured_is_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((SystemExit, ArgumentTypeError)):
        parser().parse_args(["cluster", *options])
    assert options[1] in capsys.readouterr().err
