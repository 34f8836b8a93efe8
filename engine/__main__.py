"""`engine` and `python -m engine`: the commands of features, beside those of the kernel (`engine.cli.app`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import typer

from engine.cli.app import app, flow_help, main
from engine.features.audit import commands as audit
from engine.features.dead_letters import commands as dead_letters
from engine.features.digest import commands as digest
from engine.features.history import commands as history
from engine.features.inbox import commands as inbox
from engine.features.mcp import commands as mcp
from engine.features.policy import commands as policy
from engine.features.redis_cluster import commands as redis_cluster
from engine.features.rules import commands as rules
from engine.features.snapshots import commands as snapshots
from engine.features.sources import commands as sources
from engine.features.token_revocation import commands as token_revocation
from engine.features.user_data import commands as user_data
from engine.features.verification import commands as verification

FEATURES: Final[Sequence[Callable[[typer.Typer], None]]] = (
    snapshots.register,
    redis_cluster.register,
    mcp.register,
    token_revocation.register,
    digest.register,
    inbox.register,
    policy.register,
    rules.register,
    dead_letters.register,
    history.register,
    audit.register,
    user_data.register,
    verification.register,
    sources.register,
)

for add_commands in FEATURES:
    add_commands(app)
flow_help(app)

if __name__ == "__main__":
    main()
