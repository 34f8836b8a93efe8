"""Which transport is tried next."""

from __future__ import annotations

from typing import Any

import pytest

from engine.client.links.transport_ladder import UPGRADE_MAX_S, TransportLadder
from engine.client.links.transport_link import LinkEnded
from engine.client.protocol import TRANSPORTS, Transport

NO_SERVER = LinkEnded("connection refused", reached=False)
SILENT = LinkEnded("no answer", silent=True)
BUSY = LinkEnded("later", status=503, retry_after_s=2.0)
BAD_GATEWAY = LinkEnded("bad gateway", status=502)
NOT_FOUND = LinkEnded("not found", status=404)


def test_a_websocket_that_is_blocked_is_tried_twice_and_then_the_others_at_once_until_all_were_tried() -> None:
    ladder = TransportLadder()
    tried = [(ladder.current, ladder.failed(BAD_GATEWAY)) for _ in range(7)]
    blocked = [("websocket", True), ("sse", True), ("poll", False)]
    assert tried == [("websocket", False), *blocked, *blocked]


def test_a_path_that_swallows_websockets_is_not_waited_for_twice() -> None:
    ladder = TransportLadder()
    assert ladder.failed(SILENT)
    assert ladder.current == "sse"


@pytest.mark.parametrize("end", [SILENT, BAD_GATEWAY, LinkEnded("closed", code=1002), LinkEnded("a proxy's", status=503)])
def test_silence_a_reset_and_what_a_proxy_answers_are_blocked(end: LinkEnded) -> None:
    ladder = TransportLadder(("sse", "poll"))
    assert ladder.failed(end)
    assert ladder.current == "poll"


def test_a_refusal_steps_down_at_once_and_a_client_that_was_refused_everywhere_is_given_up() -> None:
    ladder = TransportLadder()
    for transport in ("websocket", "sse", "poll"):
        assert not ladder.exhausted
        assert ladder.current == transport
        ladder.failed(NOT_FOUND)
    assert ladder.exhausted


def test_what_was_refused_is_left_out_until_a_link_was_open() -> None:
    ladder = TransportLadder()
    ladder.failed(NOT_FOUND)
    assert ladder.failed(BAD_GATEWAY)
    assert not ladder.failed(BAD_GATEWAY)
    assert ladder.current == "sse"
    ladder.opened("sse")
    ladder.failed(BAD_GATEWAY)
    assert not ladder.failed(BAD_GATEWAY)
    assert ladder.current == "websocket"


@pytest.mark.parametrize("end", [BUSY, LinkEnded("too many", status=429)])
def test_an_engine_that_is_busy_is_not_asked_over_another_transport(end: LinkEnded) -> None:
    ladder = TransportLadder()
    assert not any(ladder.failed(end) for _ in range(5))
    assert ladder.current == "websocket"


def test_without_any_server_there_is_no_reason_to_step_down_and_a_reason_to_try_the_best_again() -> None:
    ladder = TransportLadder()
    assert not any(ladder.failed(NO_SERVER) for _ in range(5))
    assert ladder.current == "websocket"
    ladder.opened("poll")
    assert not ladder.failed(NO_SERVER)
    assert ladder.current == "websocket"
    assert ladder.failed(SILENT)  # once: it was blocked before
    assert ladder.current == "sse"


def test_a_transport_that_got_through_is_where_the_next_connection_begins() -> None:
    ladder = TransportLadder()
    ladder.opened("sse")
    assert ladder.current == "sse"
    assert ladder.better("sse") == ("websocket",)
    assert ladder.better("poll") == ("websocket", "sse")
    assert ladder.better("websocket") == ()


def intervals(ladder: TransportLadder, attempts: int) -> list[float]:
    waits = []
    for _ in range(attempts):
        waits.append(ladder.upgrade_in_s(0, 0.5))
        ladder.upgrade_tried()
    return waits


@pytest.mark.parametrize("transports", [TRANSPORTS, ("sse", "poll")])
def test_better_transports_are_tried_after_a_while_that_doubles_until_the_best_one_was_open(transports: tuple[Transport, ...]) -> None:
    ladder = TransportLadder(transports, upgrade_after_s=60)
    assert intervals(ladder, 6) == [60, 120, 240, 480, UPGRADE_MAX_S, UPGRADE_MAX_S]
    ladder.opened("poll")
    assert ladder.upgrade_in_s(0, 0.5) == UPGRADE_MAX_S
    ladder.opened(transports[0])
    assert ladder.upgrade_in_s(0, 0.0) == pytest.approx(60 * 0.7)


def test_the_ends_of_links_do_not_put_off_the_attempt_at_a_better_one() -> None:
    ladder = TransportLadder(upgrade_after_s=60)
    waits = []
    for now_s in (0, 25, 50, 75):
        ladder.opened("sse")
        waits.append(ladder.upgrade_in_s(now_s, 0.5))
        ladder.failed(BAD_GATEWAY)
    assert waits == [60, 35, 10, 0]


@pytest.mark.parametrize("transports", [(), ("sse", "sse"), ("carrier pigeon",), "sse"])
def test_transports_that_are_none_are_refused(transports: Any) -> None:
    with pytest.raises(ValueError, match="transports: some of websocket, sse, poll"):
        TransportLadder(transports)


@pytest.mark.parametrize("after_s", [0, -1, float("nan")])
def test_an_upgrade_that_is_always_due_is_refused(after_s: float) -> None:
    with pytest.raises(ValueError, match="upgrade_after_s"):
        TransportLadder(upgrade_after_s=after_s)
