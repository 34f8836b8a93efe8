"""`make described`: requests made from /openapi.json, and what follows from their answers, to a running engine with a token of each scope.

make described                      five minutes, all scopes at once
make described MINUTES=1 ONLY=publish,events

Schemathesis makes the requests. A finding is an answer that the description does not allow, or a request that it allows and the engine
refuses; it is printed with the command that repeats it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from engine.auth.tokens import SCOPES
from tests.support.running_engine import RunningEngine, running_engine

_LEFT_OUT = "^/v1/(ws|sse|scale|rebalance|upgrade|tokens/revoke|edges/.*|(tenant-)?rules/dry-run)$"
"""No HTTP, without end, an end of the edge or of the token, or a body in TOML; of two more operations, one method."""

_SHARES = {"fuzzing": 0.7, "stateful": 0.3}
"""Of the time: requests by themselves, and chains of them along the links of the description."""

_SETTINGS = """
request-timeout = 30
[generation]
with-security-parameters = false
database = "none"
[checks]
negative_data_rejection.expected-statuses = ["400", "403", "404", "405", "406", "409", "412", "413", "415", "422", "428", "431"]
positive_data_acceptance.expected-statuses = ["2xx", "403", "404", "409", "412"]
"""


_ENGINE = {"ENGINE_HISTORY_URL": "sqlite:///history.db", "ENGINE_INTERNAL_POLL_WAIT_S_MAX": "10"} | dict.fromkeys(
    ("ENGINE_INTERNAL_CONFIRM_USER_MAX", "ENGINE_INTERNAL_CONFIRM_ADDRESS_MAX"), "1000000"
)
"""One user asks for all mails: a 429 for that would be a finding. A poll that may wait for longer than a request may would be one, too."""


def main() -> int:
    """Run one Schemathesis for each scope. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.described", description="requests made from the description")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--only", default=",".join(sorted(SCOPES)), help="scopes, by commas")
    arguments = parser.parse_args()
    with running_engine(env=_ENGINE) as engine, tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "schemathesis.toml"
        settings.write_text(_SETTINGS)
        failed = []
        for phase, share in _SHARES.items():
            seconds = int(arguments.minutes * 60 * share)
            running = [(scope, _started(engine, scope, settings, phase, seconds)) for scope in arguments.only.split(",")]
            for scope, process in running:
                output, _ = process.communicate()
                sys.stdout.write(f"\n### {scope}, {phase}\n{output}")
                if process.returncode:
                    failed.append(f"{scope}, {phase}")
    sys.stdout.write(f"findings with {'; '.join(failed)}\n" if failed else "no findings\n")
    return 1 if failed else 0


def _started(engine: RunningEngine, scope: str, settings: Path, phase: str, seconds: int) -> subprocess.Popen[str]:
    token = engine.token(f"user-{scope}", scope, ttl_s=seconds + 600)
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(settings), "run", f"{engine.url}/openapi.json",
        "--header", f"Authorization: Bearer {token}", "--max-time", str(seconds), "--phases", phase, "--continue-on-failure",
        "--exclude-path-regex", _LEFT_OUT, "--exclude-operation-id", "publishOnConnection", "--exclude-operation-id", "storeRules",
        "--exclude-operation-id", "storeRulesOfTenant",
        "--suppress-health-check", "all", "--warnings", "off", "--no-color",
    ]  # fmt: skip
    env = os.environ | {"SCHEMATHESIS_HOOKS": "tests.support.described_requests", "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, cwd=settings.parent)


if __name__ == "__main__":
    sys.exit(main())
