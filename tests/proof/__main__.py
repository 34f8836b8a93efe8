"""`make proof`: damage, power cuts, bad networks, and suites of others that take long.

Random single-bit flips and zeroed or torn blocks in stored data: nothing altered may be delivered, nothing go unseen. Power cuts of Redis
under load: nothing that was answered 202 may be lost. Toxiproxy between the parties: nothing may be lost or out of order.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from engine.store.server_program import installed_servers
from tests.proof import http2, mcp_suite, networks
from tests.proof.damage import OUTCOMES, Case, Proof
from tests.proof.power import endure
from tests.support.front_proxies import PROXIES, installed

PIECE = 50
"""Damages of live keys with one server."""


async def run(flips: int, blocks: int, seed: int) -> list[Case]:
    """A tenth of the damages are of a snapshot, four tenths of the append-only file and half of live keys."""
    with tempfile.TemporaryDirectory(prefix="engine-proof-") as folder:
        proof = Proof(Path(folder), installed_servers()[0], seed)
        await proof.prepare()
        kinds = ["bit"] * flips + ["zeroed", "torn"] * (blocks // 2)
        total, began = len(kinds), time.monotonic()
        of_snapshot, of_files = kinds[::10], [kind for at, kind in enumerate(kinds) if at % 10 in (1, 2, 3, 4)]
        of_live = [kind for at, kind in enumerate(kinds) if at % 10 > 4]
        for kind in of_snapshot:
            proof.damage_snapshot(kind)
        while of_files or of_live:
            for kind in of_files[:PIECE]:
                await proof.damage_file(kind)
            await proof.damage_live(of_live[:PIECE])
            del of_files[:PIECE], of_live[:PIECE]
            print(f"{len(proof.cases)} of {total}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        return proof.cases


def table(cases: list[Case]) -> str:
    """The outcomes by place and kind, as Markdown."""
    counts = Counter((case.place, case.kind, case.outcome) for case in cases)
    lines = [f"| place | damage | {' | '.join(OUTCOMES)} |", f"|---|---|{'---|' * len(OUTCOMES)}"]
    for place, kind in sorted({(case.place, case.kind) for case in cases}):
        lines.append(f"| {place} | {kind} | {' | '.join(str(counts[place, kind, outcome]) for outcome in OUTCOMES)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--blocks", type=int, default=1_000)
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    logging.disable(logging.CRITICAL)  # every damage is logged, with its traceback
    cases = asyncio.run(run(given.flips, given.blocks, given.seed))
    print(table(cases))
    wrong = [case for case in cases if case.outcome in ("altered", "missed")]
    for case in wrong[:50]:
        print(case)
    lost = power_cuts(given.cuts, given.seed)
    lost |= bad_networks()
    failed = http2_cases() | (not conforms())
    return 1 if wrong or lost or failed else 0


def bad_networks() -> bool:
    """Say what they cost. Was anything lost?"""
    program = networks.program()
    if program is None:
        print("bad networks: not tried, since there is no Toxiproxy, which Go builds")
        return False
    with tempfile.TemporaryDirectory(prefix="engine-proof-", ignore_cleanup_errors=True) as folder:
        books = asyncio.run(networks.endure(Path(folder), program, lambda line: print(line, flush=True)))
    print(f"bad networks: {books}", flush=True)
    return bool(books["lost"] or books["out_of_order"] or books["wrong"])


def conforms() -> bool:
    """Run the suite, and say what is not as it is known to be."""
    if not mcp_suite.installed():
        print("the conformance suite of MCP is not installed, and was not tried")
        return True
    unexpected = asyncio.run(mcp_suite.differences())
    print("\n".join(unexpected) or "the conformance suite of MCP: all as listed", flush=True)
    return not unexpected


def power_cuts(cuts: int, seed: int) -> bool:
    """Say what they cost. Was anything lost that must not be?"""
    wrong = False
    for fsync in ("always", "everysec") if cuts else ():
        with tempfile.TemporaryDirectory(prefix="engine-proof-", ignore_cleanup_errors=True) as folder:
            books = asyncio.run(endure(Path(folder), cuts, seed, fsync, lambda count: print(f"cut {count}", file=sys.stderr)))
        print(f"{cuts} power cuts, redis_fsync = {fsync}: {books}", flush=True)
        wrong |= bool(books["lost"] or books["wrong"])
    return wrong


def http2_cases() -> bool:
    """Say what h2spec finds of the proxies. Does HAProxy fail a case? nginx answers some with 400 in place of the stream's end."""
    program, results = http2.program(), {}
    for name in filter(installed, PROXIES) if program is not None else ():
        with tempfile.TemporaryDirectory(prefix="engine-proof-", ignore_cleanup_errors=True) as folder:
            passed, cases = results[name] = asyncio.run(http2.judge(name, program, Path(folder)))
        print(f"h2spec, {name}: {passed} of {cases} cases pass", flush=True)
    if not results:
        print("h2spec: not tried, for want of it, which Go builds, or of proxies")
    passed, cases = results.get("haproxy", (0, 0))
    return passed < cases


if __name__ == "__main__":
    sys.exit(main())
