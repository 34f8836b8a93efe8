"""The page: right figures beside right targets, and a report that goes on where it was interrupted."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench import report
from bench.page import charts, page, representative
from bench.targets import TARGETS, Comparison, of_target, verdict

HEADER = {
    "steps": {"delivery": ["delivery"], "latency": ["latency"]},
    "quick": False,
    "date": "1 Jan 2030, 00:00 UTC",
    "machine": {"cores": 2, "cpu": "x", "memory_gib": 4, "kernel": "6", "python": "3.11", "load_before": 0.1},
    "versions": {"ray": "1"},
}


def spread(median: float) -> dict[str, float]:
    return {"median": median, "min": median - 1, "max": median + 1}


def delivery(total: Any, **more: Any) -> dict[str, Any]:
    cost = {"edge": total, "shard": total, "redis": total, "total": total}
    case = {"users": 500, "publishers": 1}
    return {"bench": "delivery", "system": "engine", "case": case, "per_s": 20_000, "cpu_us_per_message": cost} | more


def latency(system: str, rate: int, p50: float, p99: float) -> dict[str, Any]:
    cost = {"web": 10.0, "total": 10.0}
    quantiles = {"p50": p50, "p99": p99, "max": p99}
    return {
        "bench": "latency", "system": system, "case": {"rate": rate}, "per_s": rate, "latency_ms": quantiles, "cpu_us_per_message": cost,
    }  # fmt: skip


RESULTS = [delivery(39.0), delivery(41.0), delivery(spread(40), runs=2), latency("engine", 2000, 3.5, 5.0), latency("peer", 100, 9.0, 99.0)]


def test_a_summary_of_several_runs_stands_for_them() -> None:
    chosen = representative([*RESULTS, delivery(99.0)])
    assert [result.get("runs") for result in chosen if result["bench"] == "delivery"] == [2]
    assert len(chosen) == 3


def test_a_target_is_held_against_the_engines_figure_of_its_case() -> None:
    found = {target.text: of_target(target, representative(RESULTS)) for target in TARGETS}
    assert found["delivery: server CPU per acknowledged, durable message"] == 40
    assert found["latency at 2 000/s, p50"] == 3.5
    assert found["latency at 10 000/s, p99"] is None


@pytest.mark.parametrize(("reached", "said"), [(40.1, "not met"), (40, "first met"), (20.1, "first met"), (20, "second met")])
def test_a_target_says_how_far_it_was_reached(reached: float, said: str) -> None:
    assert verdict(TARGETS[0], reached) == said


@pytest.mark.parametrize(("ratio", "said"), [(0.89, "not met"), (0.9, "first met"), (0.99, "first met"), (1.0, "second met")])
def test_a_rate_is_to_be_at_least_a_share_of_the_peers(ratio: float, said: str) -> None:
    rate = Comparison("a second", "messages", "delivery", {}, ("per_s",), "centrifugo", 0.9, 1.0, at_least=True)
    assert verdict(rate, ratio) == said


def test_the_page_has_every_result_its_targets_and_its_commands() -> None:
    text = page(HEADER, RESULTS, HEADER["steps"], "benchmarks.jsonl")  # type: ignore[arg-type]
    assert "| delivery: server CPU per acknowledged, durable message | 40 us | first met | 40 | 20 |" in text
    assert "| latency at 10 000/s, p99 | - | not measured |" in text
    assert "40 (39-41)" in text
    assert "| peer | 100 | 9 / 99 / 99 |" in text
    assert "python -m bench latency" in text


def test_peers_are_held_against_what_the_engine_took_by_turns_with_them() -> None:
    calibrated = {"calibration": {"python_ms": 20.0, "socket_round_trip_us": 3.0}}
    many = {"users": 500, "publishers": 128}
    turns = [
        delivery(30.0, compared=True),
        delivery(40.0, compared=True, system="mosquitto"),
        delivery(40.0, compared=True, case=many),
        delivery(30.0, compared=True, case=many, system="centrifugo", per_s=25_000),
        latency("socketio", 2000, 1, 2) | {"compared": True},
    ]
    text = page(HEADER, [*RESULTS, *({**result, "compared": True, "machine": calibrated} for result in turns)], {}, "benchmarks.jsonl")
    assert "| full load, 250 per request: CPU | 30 us | 40 (0.75 x) | - | - | at most 0.75 x, then 0.6 x mosquitto: first met |" in text
    assert "| 40 us | - | 30 (1.33 x) | - | at most 1.4 x, then 1 x centrifugo: first met |" in text
    assert "| 20000 messages | - | 25000 (0.80 x) | - | at least 0.9 x, then 1 x centrifugo: not met |" in text
    assert "| delivery: server CPU per acknowledged, durable message | 40 us |" in text, "targets of the engine go by what it took alone"
    assert "2 000/s" not in text.partition("## Beside the peers")[2], "the engine was not measured there by turns"
    assert "20 (20-20) ms for a loop of Python and 3 (3-3) us" in text


def test_what_was_not_measured_has_no_parts() -> None:
    storm = {"bench": "storm", "system": "peer", "case": {"users": 9}, "recovered": 0, "cpu_us_per_recovered": None}
    timers = {"bench": "timers", "system": "peer", "case": {"timers": 9}, "cpu_us_per_timer": {"worker": 5.0, "redis": 1.0, "total": 6.0}}
    text = page(HEADER, [storm, timers], {}, "benchmarks.jsonl")
    assert "| peer | 9 | - | - | 0 | - | - | - | - | - | - |" in text
    assert "| 6 | redis 1, worker 5 |" in text


def test_charts_are_well_formed_and_show_every_point() -> None:
    made = {name: ET.fromstring(svg) for name, svg in charts(representative(RESULTS)).items()}
    assert len(made["benchmark-latency.svg"].findall(".//{*}circle")) == 4
    assert len(made["benchmark-cost.svg"].findall(".//{*}circle")) == 3
    shown = {text.text for text in made["benchmark-processes.svg"].iter("{http://www.w3.org/2000/svg}text")}
    assert shown >= {"2 000", "20 000", "edge", "shard", "redis", "others"}


def test_the_share_of_a_core_is_cost_times_load() -> None:
    half = {"edge": 10.0, "shard": 10.0, "redis": 5.0, "total": 25.0}
    (chart,) = (svg for name, svg in charts([delivery(0, cpu_us_per_message=half)]).items() if "processes" in name)
    titles = {title.text for title in ET.fromstring(chart).iter("{http://www.w3.org/2000/svg}title")}
    assert titles == {"20 000, edge: 20", "20 000, shard: 20", "20 000, redis: 10", "20 000, others: 0"}


def test_without_results_there_are_no_charts_and_the_page_still_stands() -> None:
    assert charts([]) == {}
    assert "not measured" in page(HEADER, [], {}, "benchmarks.jsonl")


class Benchmarks:
    """In place of the real commands: each gives one line, and `failing` fails."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.run: list[str] = []

    def __call__(self, command: list[str], **_options: Any) -> Any:
        name = command[command.index("bench") + 1]
        self.run.append(name)

        class Ended:
            returncode = int(name == self.failing)
            stdout = json.dumps({"bench": name}) + "\n"

        return Ended


def test_an_interrupted_report_goes_on_after_the_last_complete_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {"delivery": ["delivery"], "latency": ["latency"], "storm": ["storm"]}
    monkeypatch.setattr(report, "versions", lambda *_packages: {"commit": "a"})
    first, second = Benchmarks("latency"), Benchmarks()
    path = tmp_path / "partial.jsonl"
    monkeypatch.setattr(report.subprocess, "run", first)
    with pytest.raises(SystemExit, match="latency failed"):
        report.measure(report.ResultsFile(path), steps, False, Console(quiet=True))
    monkeypatch.setattr(report.subprocess, "run", second)
    file = report.ResultsFile(path)
    report.measure(file, steps, False, Console(quiet=True))
    assert first.run == ["delivery", "latency"]
    assert second.run == ["latency", "storm"]
    assert [result["bench"] for result in file.results] == ["delivery", "latency", "storm"]
    again = report.ResultsFile(path)
    assert again.read()
    assert again.results == file.results


def test_results_of_another_commit_are_not_mixed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {"delivery": ["delivery"]}
    path = tmp_path / "partial.jsonl"
    for commit in ("a", "b"):
        benchmarks = Benchmarks()
        monkeypatch.setattr(report.subprocess, "run", benchmarks)
        monkeypatch.setattr(report, "versions", lambda *_packages, commit=commit: {"commit": commit})
        file = report.ResultsFile(path)
        report.measure(file, steps, False, Console(quiet=True))
        assert benchmarks.run == ["delivery"]
        assert len(file.results) == 1


def test_one_benchmark_is_measured_again_and_the_page_says_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "benchmarks.jsonl"
    compared = delivery(3.0, system="peer", compared="b")
    lines = [
        HEADER,
        delivery(1.0),
        {"through": "delivery"},
        latency("engine", 1, 2.0, 3.0),
        {"through": "latency"},
        compared,
        {"through": "peers"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(report.subprocess, "run", Benchmarks())
    monkeypatch.setattr(report, "versions", lambda *_packages: {"commit": "abc"})
    report.measure_again(report.ResultsFile(path), "latency")
    file = report.ResultsFile(path)
    file.read()
    assert file.results == [delivery(1.0), {"bench": "latency"}, compared]
    assert file.done == ["delivery", "latency", "peers"]
    text = page(file.header, RESULTS, file.header["steps"], "benchmarks.jsonl")
    assert text.count("Measured by itself on") == 1
    assert "commit abc" in text.partition("## Latency")[2]


def test_masters_show_the_cost_of_a_message_and_of_a_timer() -> None:
    message = delivery(40.0, bench="servers", case={"masters": 2}, cost_ratio=1.05)
    cost = {"fire": {"redis": 90.0, "shard": 10.0, "total": 100.0}, "total": 150.0}
    timer = {"bench": "servers", "case": {"masters": 2}, "cpu_us_per_timer": cost, "schedule_per_s": 9, "cost_ratio": 1.01}
    text = page(HEADER, [message, timer | {"case": {"masters": 2, "timers": 9}}], {}, "benchmarks.jsonl")
    assert "| 2 | messages | 20000 | 40 |" in text
    assert "| 2 | timers | 9 | 150 | shard 10, redis 90 | 1.01 |" in text


def test_a_file_that_is_no_results_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"some": "thing"}\n')
    with pytest.raises(ValueError, match="no header"):
        report.ResultsFile(path).read()


def test_a_page_from_given_results_has_them_beside_it(tmp_path: Path) -> None:
    from bench.__main__ import parser

    source, to = tmp_path / "given.jsonl", tmp_path / "page"
    source.write_text("".join(json.dumps(line) + "\n" for line in [HEADER, *RESULTS, {"through": "delivery"}]))
    for given in (source, to / "benchmarks.jsonl"):  # the second time from where the first left them
        report.run(parser().parse_args(["report", "--from", str(given), "--to", str(to)]))
        assert (to / "benchmarks.jsonl").read_text() == source.read_text()
        assert "40 (39-41)" in (to / "BENCHMARKS.md").read_text()
    assert {path.name for path in to.glob("*.svg")} == {"benchmark-latency.svg", "benchmark-cost.svg", "benchmark-processes.svg"}


def test_the_page_is_wrapped_and_links_to_its_lines() -> None:
    text = page(HEADER, RESULTS, {}, "../bench/benchmarks.jsonl")
    assert "[benchmarks.jsonl](../bench/benchmarks.jsonl)" in text
    assert not [line for line in text.splitlines() if len(line) > 100 and not line.startswith("|")]


def test_every_planned_command_is_one_the_benchmarks_understand() -> None:
    from bench.__main__ import parser

    for quick in (True, False):
        for name, arguments in report.plan(quick=quick, peers=True, soak_minutes=30).items():
            assert parser().parse_args([*arguments, "--json"]).name == name
