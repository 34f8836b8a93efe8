"""Which processes of a node stand ready for an actor."""

from __future__ import annotations

from pathlib import Path

from engine.actors.warm_processes import is_idle, warm


def running(proc: Path, pid: int, name: str) -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "cmdline").write_text(f"{name}\0")


def test_idle_processes_of_this_job_and_of_none_are_counted_and_the_marks_of_others_that_are_gone_removed(tmp_path: Path) -> None:
    proc, folder = tmp_path / "proc", tmp_path / "marks"
    folder.mkdir()
    for pid, name in ((1, "ray::IDLE"), (2, "ray::IDLE"), (3, "ray::IDLE"), (4, "ray::Shard")):
        running(proc, pid, name)
    for mark in ("01000000-1", "ffffffff-2", "02000000-3", "01000000-4", "01000000-5"):
        (folder / mark).touch()
    assert warm(folder, "01000000", proc) == {1, 2}
    assert {mark.name for mark in folder.iterdir()} == {"01000000-1", "ffffffff-2", "02000000-3"}


def test_there_are_none_where_none_has_announced_itself(tmp_path: Path) -> None:
    assert warm(tmp_path / "nothing", "01000000") == set()


def test_a_process_that_does_something_is_not_idle() -> None:
    assert not is_idle()
