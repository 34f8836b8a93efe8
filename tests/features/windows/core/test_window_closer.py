"""Tracked ends of windows, of mailboxes in memory and in storage."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from engine.config import Config
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.memory import Memory
from engine.core.model.routing import slot_of
from engine.features.windows.core.window_closer import ENTRY_BYTES, WindowCloser

ANN, BOB = "t:ann", "t:bob"


def with_window(key: str, closes_ms: int) -> Mailbox:
    mailbox = Mailbox(key, 0)
    windows: Any = SimpleNamespace(next_ms=closes_ms, open={})
    mailbox.judge_state = windows
    return mailbox


@pytest.fixture
def mailboxes() -> dict[str, Mailbox]:
    return {key: with_window(key, 10) for key in (ANN, BOB)}


@pytest.fixture
def closer(mailboxes: dict[str, Mailbox]) -> WindowCloser:
    made = WindowCloser(Config(), mailboxes, Memory())
    for mailbox in mailboxes.values():
        made.watch(mailbox)
    return made


def closed(closer: WindowCloser, now_ms: int) -> set[str]:
    closer.tick(now_ms)
    return {mailbox.key for mailbox in closer.take(now_ms)}


def test_ended_windows_are_closed(closer: WindowCloser) -> None:
    assert closed(closer, 9) == set()
    assert closed(closer, 10) == {ANN, BOB}


def test_windows_of_a_slot_that_goes_are_left_to_its_next_owner(closer: WindowCloser) -> None:
    closer.leave({slot_of(ANN)})
    assert closed(closer, 10) == {BOB}


def test_ended_windows_of_a_slot_that_goes_are_left_too(closer: WindowCloser) -> None:
    closer.tick(10)
    closer.leave({slot_of(ANN)})
    assert closed(closer, 11) == {BOB}
    assert not closer.due


def test_no_mailbox_of_a_slot_that_went_is_loaded(closer: WindowCloser, mailboxes: dict[str, Mailbox]) -> None:
    mailboxes.clear()
    closer.leave({slot_of(ANN)})
    closer.forget_slots({slot_of(ANN)})
    closer.leave(())
    assert closer.tick(10) == [BOB]


def test_a_slot_that_comes_back_has_the_windows_that_storage_has(closer: WindowCloser, mailboxes: dict[str, Mailbox]) -> None:
    mailboxes.clear()
    closer.forget_slots({slot_of(ANN)})
    closer.stored(slot_of(ANN), [(ANN, 12)])
    assert closer.tick(11) == [BOB]
    assert closer.tick(12) == [ANN]


def test_a_mailbox_in_memory_is_newer_than_storage(closer: WindowCloser) -> None:
    closer.stored(slot_of(ANN), [(ANN, 1)])
    assert not closer.tick(9)
    assert closer.next_ms == 10


def test_a_mailbox_that_is_forgotten_has_nothing_to_close(closer: WindowCloser, mailboxes: dict[str, Mailbox]) -> None:
    closer.tick(10)
    closer.forget(mailboxes[BOB])
    assert closed(closer, 11) == {ANN}


def test_the_memory_of_a_tracked_mailbox_is_what_was_measured() -> None:
    memory = Memory()
    closer = WindowCloser(Config(), {}, memory)
    tracemalloc.start()
    try:
        for number in range(20_000):
            key = f"default:user-{number:07d}"
            closer.stored(slot_of(key), [(key, 1_800_000_000_000 + number)])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert memory.bytes == 20_000 * ENTRY_BYTES
    assert 0.75 < held / memory.bytes < 1.25
