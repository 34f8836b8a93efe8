"""A release: the wheel of a commit is the same whoever builds it and when, and the list of its parts is complete."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

from tests.support.missing_programs import untried

ROOT = Path(__file__).parents[2]


def release(folder: Path) -> Path:
    """What `make release` makes of a copy of the last commit."""
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", folder], check=True)
    tools = ROOT / ".venv"  # as they are: nothing is installed by the copy
    made = [option for marker in (".installed-test", "release/.installed") for option in ("-o", f"{tools}/{marker}")]
    subprocess.run(["make", "release", "AUDIT=", f"VENV={tools}", *made], cwd=folder, check=True, capture_output=True, timeout=300)
    return folder / "dist"


def test_two_releases_of_a_commit_are_the_same_byte_by_byte_and_list_every_locked_package(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        untried("releases: these files are no git repository")
    subprocess.run(["make", ".venv/release/.installed"], cwd=ROOT, check=True, capture_output=True, timeout=300)
    first, second = release(tmp_path / "one"), release(tmp_path / "two")
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in first.iterdir()}
    assert sums == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in second.iterdir()}
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=first, check=True, capture_output=True)
    listed = {(part["name"], part["version"]) for part in json.loads((first / "sbom.cdx.json").read_text())["components"]}
    locked = [
        line.split(";")[0].split() for line in (ROOT / "requirements/image.txt").read_text().splitlines() if "==" in line and line[0] != " "
    ]
    assert {tuple(name.split("[")[0] for name in entry[0].split("==")) for entry in locked} == listed
