"""A stand-in for systemd on hosts of the tests, which have none: runs services as their unit files say, as far as those in `deploy` go.

    systemctl daemon-reload | enable [--quiet] UNIT... | restart UNIT... | stop UNIT...

What a unit's processes print is appended to `<unit>.log` in the home directory. A process of this program stands for each unit that
runs; it is found by `<unit>.pid` there.
"""

from __future__ import annotations

import configparser
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

UNITS: Final = Path("/etc/systemd/system")


def main(words: list[str]) -> None:
    verb, *units = [word for word in words if not word.startswith("--")]
    for unit in units:
        assert _file(unit).is_file(), f"Unit {unit} not found"
        if verb in ("restart", "stop"):
            _stop(unit)
        if verb == "restart":
            with (Path.home() / f"{unit}.log").open("ab") as log:
                words = [sys.executable, __file__, "run", unit]
                subprocess.Popen(words, start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if verb == "run":
            _run(unit)
    assert verb in ("daemon-reload", "enable", "restart", "stop", "run"), f"not known here: {verb}"


def _file(unit: str) -> Path:
    """The unit file of an instance is that of its template."""
    name, _, _ = unit.partition("@")
    return UNITS / f"{name}@.service"


def _stop(unit: str) -> None:
    place = Path.home() / f"{unit}.pid"
    if place.exists():
        os.kill(int(place.read_text()), signal.SIGTERM)
        while place.exists():
            time.sleep(0.05)


def _run(unit: str) -> None:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(_file(unit))
    service = parser["Service"]
    assert service["WorkingDirectory"] == "~"
    place = Path.home() / f"{unit}.pid"
    place.write_text(str(os.getpid()))
    stopping = False

    def on_term(*_: object) -> None:
        nonlocal stopping
        stopping = True
        process.terminate()

    while True:
        process = subprocess.Popen(shlex.split(service["ExecStart"]), cwd=Path.home(), start_new_session=True)
        signal.signal(signal.SIGTERM, on_term)
        code = process.wait()
        if stopping or (service["Restart"] == "on-failure" and code == 0):
            break
        time.sleep(float(service["RestartSec"]))
    place.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
