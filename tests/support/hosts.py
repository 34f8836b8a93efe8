"""Hosts on one machine: Linux namespaces joined by a switch, each with an address, processes, shared memory and a cable of its own.

    root namespace: the tests, as clients          switch: a bridge in a network namespace of its own
        <prefix>.254 ---- enh<n> ======= client ---[ ]--- host-1 ======= eth0  <prefix>.1   host a
                                                   [ ]--- host-2 ======= eth0  <prefix>.2   host b

A host is a network, PID, mount, UTS and IPC namespace. Its first process ignores the end of its children, so that none is left as a
zombie; when it is killed, the kernel kills all others in the same moment, as a power cut does. The host's folder, which is its home and
its disk, survives that.

Cleaning up is the kernel's: `setpriv` has the first process of every namespace killed when this process ends, however it ends, and a
namespace without processes takes its interfaces with it. Only folders of killed test runs are left; the next run removes them.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.support.missing_programs import missing, untried
from tests.support.process_tree import tree

CHECKOUT: Final = Path(__file__).resolve().parents[2]
_PROGRAMS: Final = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux"}
_FOLDERS: Final = "engine-hosts-"  # and the pid of the test run and the number of the network; short: a socket path has 107 bytes
_NETWORKS: Final = 256  # of test runs at the same time on this machine: 198.18.0.0/16, reserved for tests of networks (RFC 2544)
_NOBODY: Final = "02:00:00:00:00:00"  # a link-layer address that no host has
_WITHIN_S: Final = 60.0


def require_namespaces() -> None:
    """End the test unless this process may make namespaces: a program that is missing can be installed, a permission cannot."""
    if absent := missing_program():
        missing(f"{absent}: the tests on several hosts did not run")
    if refusal := namespaces_refused():
        untried(
            f"namespaces are not permitted ({refusal}): the tests on several hosts did not run. They need root with "
            "CAP_SYS_ADMIN and CAP_NET_ADMIN, or `unshare --user --map-root-user --net --mount .venv/bin/python -m pytest tests/hosts`"
        )


def missing_program() -> str:
    """A program that making hosts needs and this machine lacks, and how to get it; "" when it has them all."""
    return next((f"no {name} (apt install {package})" for name, package in _PROGRAMS.items() if shutil.which(name) is None), "")


def namespaces_refused() -> str:
    """Why this process may not make namespaces; "" when it may."""
    words = ("unshare", "--net", "--pid", "--mount", "--fork", "ip", "link", "add", "switch", "type", "bridge")
    tried = subprocess.run(words, check=False, capture_output=True, text=True)
    return tried.stderr.strip() if tried.returncode else ""


def _ip(*words: str, inside: int | None = None) -> str:
    """Run `ip`, in the network namespace of a process."""
    enter = [] if inside is None else ["nsenter", f"--target={inside}", "--net"]
    return subprocess.run([*enter, "ip", *words], check=True, capture_output=True, text=True, timeout=_WITHIN_S).stdout


def _wait_until_gone(interface: str) -> None:
    """The kernel removes the interfaces of a namespace some time after its last process, and the next network may have the same names."""
    end_s = time.monotonic() + _WITHIN_S
    while Path("/sys/class/net", interface).exists():
        assert time.monotonic() < end_s, f"{interface} stays"
        time.sleep(0.02)


class _Namespace:
    """Namespaces that live as long as their first process."""

    def __init__(self, kinds: Sequence[str], prepare: str) -> None:
        assert threading.current_thread() is threading.main_thread(), "it would end with this thread"
        self._process = subprocess.Popen(
            [
                "setpriv", "--pdeathsig=KILL", "unshare", "--fork", "--kill-child", *(f"--{kind}" for kind in kinds),
                "sh", "-c", f"set -e; {prepare}; echo made; exec env --ignore-signal=CHLD sleep infinity",
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None
        with self._process.stdout as made:
            assert made.readline() == b"made\n", "no namespace"
        self.parent = self._process.pid
        (self.pid,) = (pid for pid in tree(self._process.pid) if pid != self._process.pid)
        self._first = os.pidfd_open(self.pid)

    def kill(self) -> None:
        """Kill everything in it; returns when the first process is gone, and with it every other."""
        self._process.kill()  # `unshare`, with which the first process ends
        self._process.wait(_WITHIN_S)
        assert select.select([self._first], [], [], _WITHIN_S)[0], "a namespace does not end"
        os.close(self._first)


class Network:
    """A switch and the hosts at it. Use it with `with`, from the main thread; `host` adds one."""

    def __init__(self) -> None:
        self.folder = Path()
        self.hosts: list[Host] = []
        self._prefix = ""
        self._claim = socket.socket(socket.AF_UNIX)
        self._switch: _Namespace
        self._parts: contextlib.ExitStack

    def __enter__(self) -> Network:
        with contextlib.ExitStack() as parts:
            parts.enter_context(self._claim)
            number = self._claim_number()
            self._prefix = f"198.18.{number}"
            self.folder = parts.enter_context(_own_folder(number))
            (self.folder / "home").mkdir()
            parts.callback(_wait_until_gone, f"enh{number}")
            self._switch = _Namespace(("net",), "ip link add switch type bridge; ip link set switch up")
            parts.callback(self._switch.kill)
            self._wire_clients(f"enh{number}")
            self._parts = parts.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            self._parts.callback(host.kill)
        self._parts.close()

    def _wire_clients(self, interface: str) -> None:
        """Lay a cable from the switch to this process's network namespace. It goes with the switch."""
        _ip("link", "add", interface, "type", "veth", "peer", "name", "client", "netns", str(self._switch.pid))
        _ip("address", "add", f"{self._prefix}.254/24", "dev", interface)
        _ip("link", "set", interface, "up")
        self.plug("client")

    def _claim_number(self) -> int:
        """A number that no other test run on this machine has: bound to an abstract address, which ends with this process."""
        for number in range(_NETWORKS):
            with contextlib.suppress(OSError):
                self._claim.bind(f"\0engine-hosts-{number}")
                return number
        raise AssertionError(f"{_NETWORKS} test runs have hosts on this machine")

    def host(self, name: str) -> Host:
        """One more host, running."""
        number = len(self.hosts) + 1
        host = Host(self, name, f"{self._prefix}.{number}", f"host-{number}")
        self.hosts.append(host)
        host.boot()
        return host

    def wire(self, port: str, pid: int, address: str) -> None:
        """Lay a cable from a new port of the switch to the network namespace of a process."""
        _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid), inside=self._switch.pid)
        _ip("address", "add", f"{address}/24", "dev", "eth0", inside=pid)
        _ip("link", "set", "eth0", "up", inside=pid)
        _ip("route", "add", "default", "via", f"{self._prefix}.254", inside=pid)  # hosts find their own address by it
        self.plug(port)

    def unwire(self, port: str) -> None:
        """Take the cable at this port away."""
        _ip("link", "delete", port, inside=self._switch.pid)

    def plug(self, port: str) -> None:
        """The cable at this port of the switch is in it."""
        _ip("link", "set", port, "master", "switch", "up", inside=self._switch.pid)

    def pull(self, port: str) -> None:
        """The cable at this port is pulled: nothing passes, and no end is told."""
        _ip("link", "set", port, "down", inside=self._switch.pid)


class Host:
    """One host.

    Attributes:
        address: its address, for the other hosts and for the tests.
        home: its home directory, at the same path on every host.
        folder: where the tests find it.
    """

    def __init__(self, network: Network, name: str, address: str, port: str) -> None:
        self.name = name
        self.address = address
        self.home = network.folder / "home"
        self.folder = network.folder / name
        self.folder.mkdir()
        (self.folder / "output.txt").touch()
        self._network = network
        self._port = port
        self._namespace: _Namespace | None = None
        self._started: list[subprocess.Popen[bytes]] = []

    def boot(self) -> None:
        """Start it, with nothing running on it; also after `kill`."""
        self._namespace = _Namespace(
            ("net", "pid", "mount", "uts", "ipc"),
            f"mount -t proc proc /proc; mount -t tmpfs shm /dev/shm; mount --bind {self.folder} {self.home}; "
            f"hostname {self.name}; ip link set lo up",
        )
        self._network.wire(self._port, self._namespace.pid, self.address)

    def kill(self) -> None:
        """Power off: no process on it does another step, and no connection is closed. Idempotent."""
        if self._namespace is not None:
            self._network.unwire(self._port)
            self._namespace.kill()
            self._namespace = None
            for process in self._started:
                process.wait(_WITHIN_S)
            self._started = []

    def _pid(self) -> int:
        assert self._namespace is not None, f"host {self.name} is off"
        return self._namespace.pid

    def command(self, *words: str) -> list[str]:
        """The command that runs a command on this host, in its home directory."""
        kinds = ("--net", "--pid", "--mount", "--uts", "--ipc")
        return ["nsenter", f"--target={self._pid()}", *kinds, "--", "env", f"--chdir={self.home}", *words]

    def environment(self) -> dict[str, str]:
        """Of processes on it: this interpreter's programs, this checkout, Ray as on a node, and a home of its own."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        modules = f"{CHECKOUT / 'tests' / 'support' / 'ray_without_extras'}{os.pathsep}{CHECKOUT}"
        return os.environ | {"HOME": str(self.home), "TMPDIR": str(self.home), "PATH": path, "PYTHONPATH": modules}

    def start(self, command: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a shell command on it; its output is appended to `output.txt` in its home directory."""
        with (self.folder / "output.txt").open("ab") as output:
            process = subprocess.Popen(
                self.command("sh", "-c", command), env=self.environment() | environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        return process

    def pids(self) -> list[int]:
        """All processes on it, as this process's namespace numbers them."""
        return [pid for root in self.roots() for pid in tree(root)]

    def roots(self) -> list[int]:
        """Processes of which all others on it descend, those that were started on it among them."""
        return [self._pid(), *(process.pid for process in self._started if process.poll() is None)]

    def kill_processes(self, *kept: subprocess.Popen[bytes]) -> None:
        """kill -9 of all processes on it, but for those of these commands."""
        spared = {self._pid(), *(pid for process in kept for pid in tree(process.pid))}
        for pid in self.pids():
            if pid not in spared:
                _signal(pid, signal.SIGKILL)

    def output(self) -> str:
        """What its commands have printed."""
        return (self.folder / "output.txt").read_text(errors="replace")

    @contextlib.contextmanager
    def hung(self) -> Iterator[list[int]]:
        """No process on it does a step while the block runs, and its kernel goes on answering for their connections; yields their ids."""
        assert self._namespace is not None, f"host {self.name} is off"
        pids = self.pids()
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        try:
            yield pids
        finally:
            # `unshare` and `nsenter`, the parents of some, stop themselves when they see that a child did.
            while stopped := [pid for pid in (*pids, self._namespace.parent) if _is_stopped(pid)]:
                for pid in stopped:
                    _signal(pid, signal.SIGCONT)
                time.sleep(0.01)

    # -- The network between it and others. --------------------------------------------------------------------------------
    @contextlib.contextmanager
    def unplugged(self) -> Iterator[None]:
        """Its cable is pulled while the block runs: nobody reaches it, clients neither."""
        self._network.pull(self._port)
        try:
            yield
        finally:
            self._network.plug(self._port)

    @contextlib.contextmanager
    def not_reaching(self, other: Host) -> Iterator[None]:
        """What this host sends to the other is lost while the block runs; the other direction and clients are not concerned."""
        _ip("neighbour", "replace", other.address, "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent", inside=self._pid())
        try:
            yield
        finally:
            _ip("neighbour", "del", other.address, "dev", "eth0", inside=self._pid())


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")
    except OSError:
        return False  # it ended


@contextlib.contextmanager
def _own_folder(number: int) -> Iterator[Path]:
    """A folder named after this process and its network of this number, for the time of the block; those of processes that were killed, and
    what an earlier network of this number left, are removed."""
    place = Path(tempfile.gettempdir())
    folder = place / f"{_FOLDERS}{os.getpid()}-{number}"
    for left in place.glob(f"{_FOLDERS}*"):
        if left == folder or not Path(f"/proc/{left.name.split('-')[2]}").exists():
            shutil.rmtree(left, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
