"""`engine status`: the status of the running engine, requested over HTTP and printed as tables that fit 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from engine.actors.feature_actors import FEATURE_ROLES, FEATURES
from engine.api.actor_feature import StatusLine
from engine.cli.local_engine import EngineTarget, mint_token, printable
from engine.cli.operator_request import ask
from engine.cli.state_file import check_readable, read_state
from engine.config import Config
from engine.errors import EngineError

_TOKEN_TTL_S: Final = 60
_LATENCIES: Final = {"publish to send": "send_", "send to ACK": "ack_"}  # row: prefix of its quantiles in the totals
_DECISIONS_SHOWN: Final = 3
_QUANTILES: Final = ("p50", "p95", "p99")


def ask_status(config: Config, token: str | None = None) -> dict[str, Any]:
    """`GET /v1/status` of the running engine, with this token or one made for it.

    Raises:
        EngineError: none runs, it does not answer, or it refuses the token; one line.
    """
    check_readable(config.data_dir)
    state = read_state(config.data_dir)
    if state is None:
        raise EngineError(f"no engine runs on {config.data_dir}; start one with `engine up`")
    if not state.runs():
        raise EngineError(f"the engine on {config.data_dir} is gone: its process {state.pid} was killed; start it again with `engine up`")
    target = EngineTarget(config, state.url, token or partial(mint_token, config, "status", ("operator",), _TOKEN_TTL_S, "default"))
    return ask(target, "GET", "/v1/status", advice=f"the logs of pid {state.pid}: {state.ray_logs}")


def print_status(found: dict[str, Any], console: Console) -> None:
    """The status for people."""
    if "totals" not in found:
        _print_tenant(found, console)
        return
    totals = found["totals"]
    console.print(parts_table(found))
    console.print(
        f"\n{totals['connections']} connection{'' if totals['connections'] == 1 else 's'}, {totals['pending']} pending, "
        f"{totals['published']} published, {totals['acknowledged']} acknowledged\n"
    )
    console.print(latency_table(totals))
    for line in scaling_lines(found.get("scaling") or {}):
        console.print(line, soft_wrap=True, highlight=False)
    if totals.get("quarantined"):
        console.print(f"[red]{totals['quarantined']} stored records could not be read and were moved aside[/]; the shards' logs say which")
    if snapshots := found["redis"].get("snapshots"):
        last = f"the last {snapshots['age_s'] / 60:.0f} min ago, {snapshots['bytes'] / 1e6:.1f} MB" if "name" in snapshots else "none yet"
        console.print(f"{snapshots['count']} snapshots, {last}", highlight=False)
    lines = list(_lines_of_features(found))
    for part, text, is_fault in lines:
        if not is_fault:
            console.print(f"{escape(part)}: {escape(printable(text))}", soft_wrap=True, highlight=False)
    for part, fault in _faults(found, lines):
        console.print(f"[yellow]{escape(part)}:[/] {escape(printable(fault))}", soft_wrap=True, highlight=False)


def _print_tenant(found: dict[str, Any], console: Console) -> None:
    """What the token of an admin gets."""
    connections = f"{found['connections']} connection{'' if found['connections'] == 1 else 's'}"
    stored = f"{found['users']} users, {found['stored_bytes'] / 1e6:.1f} MB stored, {found['topics']} topics"
    console.print(
        f"tenant {escape(found['tenant'])}: {connections}, {stored}, {found['signal_names']} signal names", soft_wrap=True, highlight=False
    )
    console.print("figures of the engine need a token with the scope operator", soft_wrap=True, highlight=False)


def _lines_of_features(found: dict[str, Any]) -> Iterator[StatusLine]:
    for actor in FEATURES:
        for row in found.get(f"{actor.role}s", ()):
            if (line := actor.line(row)) is not None:
                yield line


def _faults(found: dict[str, Any], lines: Iterable[StatusLine]) -> Iterator[tuple[str, str]]:
    """The parts that do less than they should, and why."""
    if fault := found["redis"].get("snapshots", {}).get("error"):
        yield "snapshots", fault
    yield from ((line.part, line.text) for line in lines if line.is_fault)
    for row in found["edges"]:
        for part, reason in (row.get("degraded") or {}).items():
            yield f"edge-{row['index']}: {part}", reason


def scaling_lines(scaling: dict[str, Any]) -> list[str]:
    """How far the engine is from the wanted numbers, and what the autoscaler decided; nothing where there is nothing to say."""
    lines = []
    if scaling and not scaling.get("settled", True):
        wanted = ", ".join(f"{number} {role}" for role, number in scaling["wanted"].items())
        lines.append(f"[yellow]changing to {wanted}[/], wanted by {escape(scaling['by'] or 'the settings')}: {escape(state_of(scaling))}")
    for resource, waiting in groupby(scaling.get("waiting") or (), key=itemgetter("resource")):
        found = list(waiting)
        names = ", ".join(entry["actor"] for entry in found)
        verb = "waits" if len(found) == 1 else "wait"
        lines.append(f"[yellow]{names} {verb} for a node with a free `{resource}`[/]; the nodes offer {found[0]['offered']}, all taken")
    if scaling.get("autoscale", "off") != "off":
        lines.append(f"autoscaler: {scaling['autoscale']}")
    for decision in (scaling.get("decisions") or [])[:_DECISIONS_SHOWN]:
        at = datetime.fromtimestamp(decision["at_ms"] / 1000).astimezone().strftime("%H:%M:%S")
        change = {"scale": f"{decision['have']} to {decision['wanted']} {decision['role']}", "rebalance": "move slots"}
        lines.append(f"  {at} {change.get(decision['action'], 'nothing')}: {escape(decision['reason'])}")
    return lines


def state_of(scaling: dict[str, Any]) -> str:
    """What the engine is doing about the numbers of its actors, in a few words."""
    moves, left = scaling.get("moves") or [], scaling.get("slots_left", 0)
    waiting, leaving = scaling.get("joining") or [], scaling.get("leaving") or []
    parts = []
    if moves or left:
        routes = sorted({f"{move['from']} to {move['to']}" for move in moves})
        parts.append(f"{left} slots to move" + (f", {routes[0]}" if len(routes) == 1 else ""))
    if waiting:
        taken = sorted({f"`{entry['resource']}`" for entry in scaling.get("waiting") or ()})
        parts.append(f"waiting for {', '.join(waiting)}" + (f" (no node has a free {' or '.join(taken)})" if taken else ""))
    if upgrading := scaling.get("upgrading"):
        parts.append(f"upgrading {upgrading[0]}, {len(upgrading)} to go")
    if stopped := scaling.get("stopped"):
        parts.append(f"the last upgrade has stopped: {stopped}")
    if draining := scaling.get("draining"):
        parts.append(f"emptying the node of {', '.join(draining)}")
    if leaving:
        parts.append(f"{', '.join(leaving)} {'leaves' if len(leaving) == 1 else 'leave'}")
    return "; ".join(parts) or ("settled" if scaling.get("settled") else "changing the slot map")


def parts_table(found: dict[str, Any]) -> Table:
    """A row for every actor, and for Redis."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))  # fits 80 columns with addresses of any length
    for title in ("part", "pid", "node", "state"):
        table.add_column(title, no_wrap=True)
    for title in ("cpu %", "MB", "restarts", "conns", "pending"):
        table.add_column(title, no_wrap=True, justify="right")
    roles = ("edge", "shard", "scheduler", *FEATURE_ROLES)
    rows = [row for role in roles for row in found.get(f"{role}s", ())]
    for row in [*rows, found["controller"]]:
        name = row["role"] if row["role"] == "controller" else f"{row['role']}-{row['index']}"
        waiting = "leaving" if row.get("leaving") else "draining" if row.get("draining") else "starting"
        state = "[green]ready[/]" if row["ready"] else f"[yellow]{waiting}[/]" if row["alive"] else "[red]silent[/]"
        connections = row.get("connections", "")
        if isinstance(connections, dict):
            connections = sum(connections.values())
        numbers = (
            f"{row['cpu_pct']:.1f}",
            f"{row['rss_bytes'] / 1e6:.0f}",
            str(row["restarts"]),
            str(connections),
            str(row.get("pending", "")),
        )
        table.add_row(name, str(row["pid"] or ""), str(row["node"] or ""), state, *numbers)
    redis = found["redis"]
    stores = {f"redis-{number}": store for number, store in enumerate(redis.get("stores", ()))} or {"redis": redis}
    for name, store in stores.items():
        state = "[green]ready[/]" if store["alive"] else "[red]silent[/]"
        memory = f"{store.get('used_memory_bytes', 0) / 1e6:.0f}"
        table.add_row(name, str(store.get("pid", "")), store.get("node", ""), state, "", memory, str(store["restarts"]), "", "")
    return table


def latency_table(totals: dict[str, Any]) -> Table:
    """Quantiles of the recent past; `-` where nothing was measured yet."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("latency, ms", no_wrap=True)
    for quantile in _QUANTILES:
        table.add_column(quantile, no_wrap=True, justify="right")
    for name, prefix in _LATENCIES.items():
        values = (totals.get(f"{prefix}{quantile}_ms") for quantile in _QUANTILES)
        table.add_row(name, *("-" if value is None else f"{value:g}" for value in values))
    return table
