"""The engine that these tests break parts of: one for the folder, because starting one takes seconds."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.support.background_loop import in_background
from tests.support.chaos.disk import CannotMount, small_disk
from tests.support.chaos.movable_clock import MovableClock
from tests.support.chaos.poison import POISONED_SHARDS
from tests.support.mail_server import MailServer, mail_server
from tests.support.push_service import PushService, push_service
from tests.support.redis_server import RedisServer
from tests.support.running_engine import RunningEngine, running_engine
from tests.support.webhook_target import SECRET, WebhookServer, webhook_server

RULES = """
[[rule]]
name = "download"
event = "file.downloaded"
recipients = ["user"]
type = "touch.download"
delay = "20s"
fire = { unless_active = true }

[[rule]]
name = "order-paid"
event = "order.paid"
recipients = ["user"]
type = "touch.order_paid"
delay = "19500ms"
fire = { unless_event = ["order.cancelled"] }

[[rule]]
name = "service-done"
event = "service.done"
recipients = ["user"]
type = "touch.service_done"
delay = "20500ms"

[[rule]]
name = "inactive"
event = "*"
recipients = ["user"]
type = "touch.inactive"
inactive = "40s"
delay = "500ms"

[category.alert]
steps = [
  { channel = "push", after = "120s", unless = "read" },
  { channel = "email", after = "120s", unless = "read" },
]

[category.approval]
steps = [
  { channel = "push", after = "120s", unless = "acted" },
  { channel = "email", after = "120s", unless = "acted" },
  { channel = "apprise", to = "oncall", after = "240s", unless = "acted" },
]
"""
"""Only test_conditions.py publishes events, only test_steps.py in these categories."""


DISK_BYTES = 256 << 20
"""Of the disk of `victim`, several times what its tests write."""


@pytest.fixture(scope="package")
def clock() -> Iterator[MovableClock]:
    """The wall clock of `victim`, whose shards are also ended by one message (test_poison.py).

    A step ahead is undone by nobody: going back would end its shards and schedulers.
    """
    with tempfile.TemporaryDirectory(prefix="engine-clock-") as folder:
        yield MovableClock(Path(folder), also=POISONED_SHARDS)


@pytest.fixture(scope="package")
def mails() -> Iterator[MailServer]:
    with mail_server() as server:
        yield server


@pytest.fixture(scope="package")
def pushes() -> Iterator[PushService]:
    with in_background(push_service()) as service:
        yield service


@pytest.fixture(scope="package")
def oncall() -> Iterator[WebhookServer]:
    """The service of those who are on call."""
    with in_background(webhook_server()) as service:
        yield service


@pytest.fixture(scope="package")
def victim(
    redis_server: RedisServer, clock: MovableClock, mails: MailServer, oncall: WebhookServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningEngine]:
    """An engine whose parts may be killed, and whose disk may be filled. It must be whole again when a test ends."""
    rules = tmp_path_factory.mktemp("rules") / "rules.toml"
    rules.write_text(RULES)
    env = {"ENGINE_RULES_PATH": str(rules), "ENGINE_RAY_PUBLISH": "default", "ENGINE_RAY_LISTEN": "default"}
    env["ENGINE_INTERNAL_GROWING_IDLE_S"] = "25"  # publishers send something each 20 s
    env |= {"ENGINE_WEBHOOK_HOSTS": "127.0.0.1", "ENGINE_WEBHOOK_NETWORKS": "127.0.0.0/8", "ENGINE_WEBHOOK_SECRET": SECRET}
    env |= {"ENGINE_SMTP_URL": mails.url, "ENGINE_MAIL_FROM": "ops@example.com", "ENGINE_PUSH_HOSTS": "127.0.0.1"}
    env["ENGINE_APPRISE_RECIPIENTS"] = f"oncall=json://127.0.0.1:{oncall.port}/"
    env["ENGINE_QUESTION_TARGETS"] = "http://127.0.0.1:*"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="engine-victim-", ignore_cleanup_errors=True)))
        with suppress(CannotMount):
            stack.enter_context(small_disk(folder / "data", DISK_BYTES))
        yield stack.enter_context(running_engine(folder=folder, env={**env, **clock.environment()}))
