"""The benchmark page: tables of every figure that was measured, targets beside them, and two charts."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from bench import plot
from bench.targets import COMPARISONS, TARGETS, compared, figure, of_target, verdict

Result = Mapping[str, Any]
Column = tuple[str, Callable[[Result], str]]

ROLES: Final = ("edge", "shard", "scheduler", "controller", "redis", "raylet", "gcs", "others", "web", "worker", "broker")


def representative(results: Iterable[Result]) -> list[Result]:
    """One result per benchmark, system, case, and whether it was by turns with peers: the first summary of several runs, or where there is
    none the first result."""
    chosen: dict[str, Result] = {}
    for result in results:
        key = repr((result["bench"], result.get("system"), result.get("case"), result.get("compared")))
        if key not in chosen or ("runs" in result and "runs" not in chosen[key]):
            chosen[key] = result
    return list(chosen.values())


def _own(results: Sequence[Result]) -> list[Result]:
    """Without the engine's by turns with peers, where it was measured alone, too."""
    alone = [(result["bench"], result["case"]) for result in results if result.get("system") == "engine" and not result.get("compared")]
    return [
        result
        for result in results
        if not (result.get("compared") and result["system"] == "engine" and (result["bench"], result["case"]) in alone)
    ]


def charts(results: Sequence[Result]) -> dict[str, str]:
    """File name -> SVG, of those that the results suffice for."""
    loads = [result for result in _own(results) if result["bench"] in ("latency", "delivery") and figure(result, "per_s")]
    loads = [result for result in loads if result["case"].get("batch") != 1]  # one message per request is another kind of load
    loads.sort(key=lambda result: (result["system"] != "engine", figure(result, "per_s")))
    latency, cost = dict[str, list[tuple[float, float]]](), dict[str, list[tuple[float, float]]]()
    for result in loads:
        system, per_s = result["system"], figure(result, "per_s") or 0.0
        if total := figure(result, "cpu_us_per_message", "total"):
            cost.setdefault(system, []).append((per_s, total))
        for quantile in ("p50", "p99"):
            value = figure(result, "latency_ms", quantile)
            if value and result["bench"] == "latency":  # at full load it is the window's
                latency.setdefault(f"{system} {quantile}", []).append((per_s, value))
    made, per_second = {}, "messages per second"
    if latency:
        title = "Throughput and latency, from the intended time to the client"
        series = [plot.Line(name, name.rsplit(" ", 1)[0], points, name.endswith("p99")) for name, points in latency.items()]
        made["benchmark-latency.svg"] = plot.lines(title, per_second, "ms", series)
    if cost:
        title = "Cost and load: CPU per acknowledged message, all processes"
        series = [plot.Line(name, name, points) for name, points in cost.items()]
        made["benchmark-cost.svg"] = plot.lines(title, per_second, "us", series)
    if bars := dict(_bar(result) for result in loads if result["system"] == "engine"):
        title = "The engine's CPU at each load, by process; the last bar is full load"
        made["benchmark-processes.svg"] = plot.stacked_bars(title, per_second, "% of a core", bars)
    return made


def _bar(result: Result) -> tuple[str, dict[str, float]]:
    """Per cent of a core by role, at a load."""
    per_s = figure(result, "per_s") or 0.0
    total, *parts = (figure(result, "cpu_us_per_message", role) or 0.0 for role in ("total", "edge", "shard", "redis"))
    shares = {**dict(zip(("edge", "shard", "redis"), parts, strict=True)), "others": max(0.0, total - sum(parts))}
    return f"{result['case'].get('rate', per_s):,.0f}".replace(",", " "), {role: round(us * per_s / 1e4, 1) for role, us in shares.items()}


def page(header: Mapping[str, Any], results: Iterable[Result], steps: Mapping[str, Sequence[str]], lines: str) -> str:
    """The whole page in Markdown.

    Args:
        header: machine, versions and date of the results.
        results: all of them; the page shows one for each case.
        steps: name -> arguments of the command that gave the results.
        lines: the file of results, as a link from the page.
    """
    results = list(results)
    all_chosen = representative(results)
    beside = [result for result in all_chosen if result.get("compared")]
    chosen = _own(all_chosen)
    machine, kinds = header["machine"], {result["bench"] for result in chosen}
    parts = [
        "# Benchmarks",
        "Compare the engine's figures with your needs and with other systems. "
        f"`python -m bench report` writes this page; the lines behind it are in [{lines.rpartition('/')[2]}]({lines}). "
        f"{header['date']}, on {machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB, Linux {machine['kernel']}, "
        f"Python {machine['python']}; load average before: {machine['load_before']}.",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in header["versions"].items()) + ".",
        "Server and load generator share the machine, over loopback. CPU is user and system time of **all** processes of a system, from "
        "`/proc`; the generator's own stands beside it. Latency counts from the moment a message was meant to be sent. Where a benchmark "
        "ran several times, figures are medians, with the smallest and largest in brackets.",
        *_calibration(results),
    ]
    if header["quick"]:
        parts.append("**A quick run: it shows that everything runs, the figures mean little.**")
    parts += ["## Targets", _targets(chosen), "## Charts", *(f"![{name}]({name})" for name in charts(chosen))]
    for bench, columns in _TABLES.items():
        if bench in kinds:
            doc = importlib.import_module(f"bench.{bench}").__doc__ or ""
            of_bench = [result for result in chosen if result["bench"] == bench]
            parts += [f"## {bench.capitalize()}", *doc.strip().split("\n\n"), *_again(header, bench), _table(columns, of_bench)]
    if beside:
        about = (importlib.import_module("bench.peers").__doc__ or "").strip()
        parts += ["## Beside the peers", *about.split("\n\n"), _comparisons(beside)]
    commands = "\n".join(f"python -m bench {' '.join(arguments)}" for arguments in steps.values())
    parts += ["## Commands", f"```\n{commands}\n```"]
    return "\n\n".join(map(_wrapped, parts)) + "\n"


def _again(header: Mapping[str, Any], bench: str) -> list[str]:
    """When a benchmark was measured, if that was not with the others."""
    again = header.get("again", {}).get(bench)
    if again is None:
        return []
    return [f"Measured by itself on {again['date']}, commit {again['commit']}; load average before: {again['load_before']}."]


def _wrapped(part: str) -> str:
    """A paragraph at 100 columns; tables and code as they are."""
    return part if part.startswith(("|", "```")) else textwrap.fill(part, 100, break_long_words=False, break_on_hyphens=False)


def _targets(results: Sequence[Result]) -> str:
    rows = []
    for target in TARGETS:
        reached = of_target(target, results)
        told = ("-", "not measured") if reached is None else (f"{reached:g} {target.unit}".strip(), verdict(target, reached))
        rows.append((target.text, *told, f"{target.first:g}", f"{target.then:g}"))
    return _rows(("", "measured", "", "first: at most", "then: at most"), rows)


def _comparisons(results: Sequence[Result]) -> str:
    """Every system's figures of the same runs, and how many times a peer's the engine's is."""
    systems = list(dict.fromkeys(result["system"] for result in results))
    peers = [name for name in systems if name != "engine"]
    rows = []
    for comparison in COMPARISONS:
        found = compared(comparison, results)
        own = found.get("engine")
        if own is None or len(found) < 2:
            continue
        cells = [f"{own:g} {comparison.unit}"]
        cells += [f"{found[peer]:g} ({own / found[peer]:.2f} x)" if found.get(peer) else "-" for peer in peers]
        goal = "-"
        if found.get(comparison.peer):
            limits = f"{comparison.first:g} x" + (f", then {comparison.then:g} x" if comparison.then != comparison.first else "")
            bound = "at least" if comparison.at_least else "at most"
            goal = f"{bound} {limits} {comparison.peer}: {verdict(comparison, own / found[comparison.peer])}"
        rows.append((comparison.text, *cells, goal))
    return _rows(("", "engine", *(f"{peer} (engine is)" for peer in peers), "target"), rows)


def _calibration(results: Sequence[Result]) -> list[str]:
    """A line on what `bench.machine.calibration` gave before the runs; none where no result has it."""
    found = [result["machine"]["calibration"] for result in results if "calibration" in result.get("machine", {})]
    if not found:
        return []
    texts = []
    for name, text in (("python_ms", "{} ms for a loop of Python"), ("socket_round_trip_us", "{} us for a byte to a socket and back")):
        values = sorted(each[name] for each in found)
        texts.append(text.format(f"{values[len(values) // 2]:g} ({values[0]:g}-{values[-1]:g})"))
    return [f"The machine itself, before each run, in CPU: {' and '.join(texts)}. Reports whose figures of it differ differ by that much."]


def _table(columns: Sequence[Column], results: Sequence[Result]) -> str:
    return _rows([name for name, _ in columns], [[cell(result) for _, cell in columns] for result in results])


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def _of(*path: str) -> Callable[[Result], str]:
    """A number, of several runs the median with smallest and largest."""

    def cell(result: Result) -> str:
        found: Any = result
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(found, Mapping):
            low, high = found["min"], found["max"]
            return f"{found['median']:g}" + (f" ({low:g}-{high:g})" if low != high else "")
        return "-" if found is None else f"{found:g}" if isinstance(found, int | float) and not isinstance(found, bool) else str(found)

    return cell


def _case(name: str) -> Callable[[Result], str]:
    return lambda result: str(result["case"].get(name, "-"))


def _quantiles(path: str, *names: str) -> Callable[[Result], str]:
    def cell(result: Result) -> str:
        found = [figure(result, path, name) for name in names]
        return " / ".join("-" if value is None else f"{value:g}" for value in found)

    return cell


def _roles(path: str, *below: str) -> Callable[[Result], str]:
    """The parts of a sum, without those that hardly count."""

    def cell(result: Result) -> str:
        total = figure(result, path, *below, "total")
        if not total:
            return "-"
        shares = {role: figure(result, path, *below, role) or 0.0 for role in ROLES}
        return ", ".join(f"{role} {value:g}" for role, value in shares.items() if value >= 0.01 * total)

    return cell


def _roles_of_timers(result: Result) -> str:
    """The engine tells scheduling and firing apart; a peer's cost is one sum."""
    return _roles("cpu_us_per_timer", *(["fire"] if "fire" in result["cpu_us_per_timer"] else []))(result)


def _by_load(of_timers: Callable[[Result], str], of_messages: Callable[[Result], str]) -> Callable[[Result], str]:
    """The cell of a benchmark that has both loads."""
    return lambda result: (of_timers if "cpu_us_per_timer" in result else of_messages)(result)


_SYSTEM: Final[Column] = ("system", _of("system"))
_FARED: Final[tuple[Column, ...]] = (("lost", _of("lost")), ("repeated", _of("repeated")), ("out of order", _of("out_of_order")))
_COST: Final[tuple[Column, ...]] = (
    ("CPU us per message", _of("cpu_us_per_message", "total")),
    ("of which", _roles("cpu_us_per_message")),
    ("generator us", _of("generator_cpu_us_per_message")),
)
_TRAFFIC: Final[tuple[Column, ...]] = (
    ("exchanges/s", _of("exchanges_per_s")),
    ("Redis commands/s", _of("redis_commands_per_s")),
    ("RSS MiB", _of("rss_mib", "total")),
)
_LATENCY: Final[Column] = ("p50 / p99 / max ms", _quantiles("latency_ms", "p50", "p99", "max"))

_TABLES: Final[dict[str, tuple[Column, ...]]] = {
    "delivery": (
        _SYSTEM,
        ("acknowledged by", _of("acknowledged_by")),
        ("publishers", _case("publishers")),
        ("messages/s", _of("per_s")),
        *_COST,
        _LATENCY,
        *_FARED,
        *_TRAFFIC,
    ),
    "latency": (_SYSTEM, ("rate", _case("rate")), _LATENCY, *_COST, *_FARED, *_TRAFFIC),
    "fanout": (
        _SYSTEM,
        ("connections", _case("connections")),
        ("published as", _case("published_as")),
        ("last client ms, p50 / max", _quantiles("last_client_ms", "p50", "max")),
        ("CPU us per delivery", _of("cpu_us_per_delivery", "total")),
        ("of which", _roles("cpu_us_per_delivery")),
        ("generator us", _of("generator_cpu_us_per_delivery")),
        ("others' messages p99 ms: alone", _of("unicast_ms", "alone", "p99")),
        ("beside broadcasts", _of("unicast_ms", "beside", "p99")),
        *_FARED,
    ),
    "stream": (
        ("streams", _case("streams")),
        ("tokens/s each", _case("tokens_per_s")),
        ("rolled up within ms", _case("rollup_ms")),
        ("tokens/s", _of("tokens_per_s")),
        ("tokens in a part", _of("tokens_per_frame")),
        ("late p50 / p99 ms", _quantiles("latency_ms", "p50", "p99")),
        ("CPU us per token", _of("cpu_us_per_token", "total")),
        ("of which", _roles("cpu_us_per_token")),
        ("wrong texts", _of("wrong")),
    ),
    "idle": (
        _SYSTEM,
        ("connections", _case("connections")),
        ("KiB each", _of("kib_per_connection", "total")),
        ("of which", _roles("kib_per_connection")),
        ("kernel KiB each, both ends", _of("kernel_kib_per_connection_both_ends")),
        ("% of a core", _of("cpu_pct_of_a_core", "total")),
        ("% without any", _of("cpu_pct_of_a_core_without_connections", "total")),
        ("CPU us to connect", _of("connect_cpu_us", "total")),
        ("RSS MiB without any", _of("rss_mib_without_connections")),
        ("disconnects", _of("disconnects")),
    ),
    "storm": (
        _SYSTEM,
        ("users", _case("users")),
        ("missed each", _case("missed_each")),
        ("recovers by", _case("recovers")),
        ("recovered", _of("recovered")),
        ("lost", _of("lost")),
        ("all there after s", _of("wall_s")),
        ("CPU us per recovered", _of("cpu_us_per_recovered", "total")),
        ("of which", _roles("cpu_us_per_recovered")),
        ("CPU us per stored", _of("cpu_us_per_stored", "total")),
        ("out of order", _of("out_of_order")),
    ),
    "timers": (
        _SYSTEM,
        ("timers", _case("timers")),
        ("until", _case("until")),
        ("late p50 / p99 / max ms", _quantiles("lateness_ms", "p50", "p99", "max")),
        ("at the scheduler, at most", _quantiles("scheduler_lateness_ms_at_most", "p50", "p99", "max")),
        ("CPU us per timer", _of("cpu_us_per_timer", "total")),
        ("of which (the engine's: to fire)", _roles_of_timers),
        ("scheduled/s", _of("schedule_per_s")),
        ("early", _of("early")),
        ("lost", _of("lost")),
        ("doubled", _of("doubled")),
    ),
    "scaling": (
        ("shards and edges", _case("shards")),
        ("publishers", _case("publishers")),
        ("messages/s", _of("per_s")),
        *_COST,
        ("cost ratio", _of("cost_ratio")),
        *_FARED,
        *_TRAFFIC,
    ),
    "servers": (
        ("masters", _case("masters")),
        ("load", _by_load(lambda _: "timers", lambda _: "messages")),
        ("a second", _by_load(_of("schedule_per_s"), _of("per_s"))),
        ("CPU us of one", _by_load(_of("cpu_us_per_timer", "total"), _of("cpu_us_per_message", "total"))),
        ("of which", _by_load(_roles_of_timers, _roles("cpu_us_per_message"))),
        ("cost ratio", _of("cost_ratio")),
        ("lost", _of("lost")),
    ),
    "cluster": (
        ("shards", _case("shards")),
        ("edges", _case("edges")),
        ("hosts", _case("hosts")),
        ("carrier", _case("carrier")),
        ("load", _case("load")),
        ("messages/s", _of("per_s")),
        *_COST,
        _LATENCY,
        ("cost, of that on one host", _of("of_one_host", "cpu_ratio")),
        ("p50 ms more than there", _of("of_one_host", "p50_more_ms")),
        *_FARED,
        *_TRAFFIC,
        ("hosts are", _of("hosts_are")),
    ),
    "soak": (
        ("minutes", _case("minutes")),
        ("rate", _case("rate")),
        ("messages", _of("messages")),
        ("growth, bytes per message", _of("growth_bytes_per_message", "total")),
        ("of which", _roles("growth_bytes_per_message")),
        ("RSS MiB at the end", _of("rss_mib", "total")),
        ("slowest ms", _of("latency_max_ms")),
        *_FARED,
    ),
    "wheel": (
        ("timers", _of("timers")),
        ("arm us", _of("arm_us")),
        ("fire us", _of("fire_us")),
        ("cancel us", _of("cancel_us")),
        ("longest advance ms", _of("longest_advance_ms")),
        ("bytes per timer", _of("bytes_per_timer")),
    ),
    "storage": (
        ("users", _case("users")),
        ("Redis bytes: a user with one message", _of("redis_bytes", "offline_user_with_one_message")),
        ("each further message", _of("redis_bytes", "each_further_message")),
        ("an id of a publisher", _of("redis_bytes", "accepted_id")),
        ("CPU us per first message", _of("cpu_us_per_first_message", "total")),
    ),
    "overload": (
        ("times the capacity", _case("times")),
        ("offered a second", _of("offered_per_s")),
        ("accepted a second: high", _of("by_priority", "high", "accepted_per_s")),
        ("normal", _of("by_priority", "normal", "accepted_per_s")),
        ("low", _of("by_priority", "low", "accepted_per_s")),
        ("high p99 ms: alone", _of("high_ms", "alone", "p99")),
        ("beside half of the capacity", _of("high_ms", "beside_half", "p99")),
        ("overloaded", _of("high_ms", "under_load", "p99")),
        ("low taken again after s", _of("low_taken_again_s")),
        *_FARED,
        ("announced as gone", _of("announced_gone")),
    ),
}
