"""The books of the chaos runs notice what they are there for, and their table says it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.chaos_report import BEGIN, END, HOSTS_BEGIN, HOSTS_END, write_tables
from tests.support.chaos.movable_clock import MovableClock
from tests.support.chaos.traffic import Traffic


@pytest.mark.parametrize(
    ("published", "came", "lost", "wrong"),
    [
        ("ab", "ab", 0, []),
        ("ab", "a", 1, []),
        ("a", "ax", 0, ["invented: t-0: x"]),
        ("ab", "aba", 0, ["number: t-0: a is both 1 and 3"]),
    ],
)
async def test_the_books_tell_what_is_missing_invented_and_doubled(published: str, came: str, lost: int, wrong: list[str]) -> None:
    traffic = Traffic("http://127.0.0.1:9", lambda _user, _scopes: "", "t", online=1, away=0)
    device, recorder = traffic.online[0], traffic.recorder
    traffic.accepted = {device.user: set(published)}
    for seq, id in enumerate(published, 1):
        recorder.answered(recorder.published(device.user, id, {"sent": 0}), 202, {"status": "accepted", "seq": seq})
    connection = recorder.connected(device.user, None, {"epoch": "7", "resumed": "new"})
    for seq, id in enumerate(came, 1):
        message = {"seq": seq, "id": id, "event_id": f"7-{seq}", "attempt": 1, "data": {"sent": 0}}
        recorder.received(connection, {"type": "messages", "messages": [message]})
        device._take(message)
    books = await traffic.finish(within_s=0.01)
    assert (books["lost"], books["out_of_order"]) == (lost, 0)
    assert [sentence for sentence in books["wrong"] if not sentence.startswith("answer")] == wrong


def test_a_number_again_is_a_repeat() -> None:
    device = Traffic("http://127.0.0.1:9", lambda _user, _scopes: "", "t", online=1, away=0).online[0]
    for seq in (1, 2, 2, 4):
        device._take({"seq": seq, "id": f"m{seq}", "event_id": f"e-{seq}", "data": {"sent": time.monotonic()}})
    assert (device.newest, device.repeated, len(device.arrivals)) == (4, 1, 3)


def test_silence_is_the_longest_pause_of_the_worst_off_user() -> None:
    traffic = Traffic("http://127.0.0.1:9", lambda _user, _scopes: "", "t", online=2, away=0)
    traffic.online[0].arrivals = [(at, 0.01) for at in (1.0, 2.0, 3.0, 4.0)]
    traffic.online[1].arrivals = [(1.0, 0.01), (3.5, 2.0), (4.0, 0.01)]
    assert traffic.silence_s(1.0, 4.5) == 2.5
    assert traffic.latency_ms(3.4, 3.6) == 2000
    assert traffic.latency_ms(8, 9) == 0


def test_pauses_of_several_users_at_a_time_are_one_silence() -> None:
    traffic = Traffic("http://127.0.0.1:9", lambda _user, _scopes: "", "t", online=3, away=0)
    for receiver, moments in zip(
        traffic.online, ((1.0, 4.0, 5.0, 7.0), (1.5, 3.5, 5.5, 7.0), (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)), strict=True
    ):
        receiver.arrivals = [(at, 0.01) for at in moments]
    assert traffic.silences(1.0, 7.5, above_s=1.0) == [(1.0, 4.0, 2), (5.0, 7.0, 2)]


def test_pauses_while_the_own_store_is_touched_are_not_those_of_others() -> None:
    traffic = Traffic("http://127.0.0.1:9", lambda _user, _scopes: "", "t", online=2, away=0, store_of=lambda user: int(user[-1]))
    traffic.online[0].arrivals = [(at, 0.01) for at in (1.0, 4.0, 6.0)]
    traffic.online[1].arrivals = [(at, 0.01) for at in (1.0, 2.5, 3.0, 6.0)]
    assert traffic.silence_of_others_s(1.0, 6.0, [(1.5, 3.5, {0}), (4.5, 5.0, {0, 1})]) == 1.5


def test_rows_replace_those_of_the_same_fault_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nthe table of before\n{END}\nafter\n")
    result = {
        "case": {"scenario": "kill-shard"}, "what": "kill -9 a shard", "accepted": 5, "lost": 1, "out_of_order": 0, "repeated": 2,
        "back_s": 1.2, "silence_s": 1.3,
        "p99_before_ms": 9.0, "p99_during_ms": 1200.0, "publisher_retries": 3, "wrong": ["4 came after 2"],
    }  # fmt: skip
    write_tables([result], page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "the table of before" not in text
    assert "| kill -9 a shard | 5 | 1 | 0 | 2 | 1.2 | 1.3 |  | 9.0 | 1200.0 | 3 |" in text
    assert "- kill -9 a shard: 4 came after 2" in text
    write_tables([result | {"what": "kill -9 the edge", "wrong": []}], page)
    assert "- kill -9 a shard: 4 came after 2" in page.read_text()
    write_tables([result | {"wrong": []}], page)
    assert "Not as it should be" not in page.read_text()
    page.write_text("no markers")
    with pytest.raises(ValueError, match="lacks the markers"):
        write_tables([result], page)


def test_the_rows_of_scenarios_on_hosts_that_were_not_run_stay(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{HOSTS_BEGIN}\n\n{HOSTS_END}\nafter\n")
    result = {
        "case": {"scenario": "x", "hosts": 4}, "what": "a cable", "accepted": 5, "lost": 0, "out_of_order": 0, "repeated": 2,
        "fault_s": 3.0, "back_s": 1.2, "whole_s": None, "silence_b_s": 1.3, "silence_c_s": 0.4,
        "refused": 3, "publisher_retries": 4, "wrong": [],
        "once": {"accepted": 9, "refused": 2, "unanswered": 1, "false_answers": 0},
    }  # fmt: skip
    write_tables([result, result | {"what": "a node"}], page)
    write_tables([result | {"accepted": 7}], page)
    rows = [line.split(" |")[:12] for line in page.read_text().splitlines() if line.startswith("| a ")]
    assert rows == [
        ["| a cable", " 7", " 0", " 0", " 2", " 3.0", " 1.2", " -", " 1.3 / 0.4", " 3 / 1", " 9 / 2 / 1", " 0"],
        ["| a node", " 5", " 0", " 0", " 2", " 3.0", " 1.2", " -", " 1.3 / 0.4", " 3 / 1", " 9 / 2 / 1", " 0"],
    ]
    assert page.read_text().count("| fault |") == 1


def test_a_moved_clock_steps_for_running_processes_and_only_the_wall_clock_does(tmp_path: Path) -> None:
    clock = MovableClock(tmp_path)
    program = "import time\nfor _ in iter(input, ''): print(time.time_ns() / 1e9, time.time(), time.monotonic(), flush=True)"
    with clock.running():
        process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    for offset_s in (0, 3600, -3600):
        clock.step_to(offset_s)
        process.stdin.write("now\n")
        process.stdin.flush()
        wall_ns_s, wall_s, monotonic_s = map(float, process.stdout.readline().split())
        assert wall_ns_s - time.time() == pytest.approx(offset_s, abs=20)
        assert wall_s - time.time() == pytest.approx(offset_s, abs=20)
        assert monotonic_s == pytest.approx(time.monotonic(), abs=20)
    process.communicate("\n", timeout=20)
