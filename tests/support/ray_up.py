"""What `ray up` does with deploy/ray-cluster.yaml, done on hosts of the tests: its files are there, and its commands are run by the shell,
in the environment and with the quoting that Ray gives them.

Left out are the commands that need a package registry, and the provider: nobody starts a machine. `sudo` and systemd, which hosts have not,
are stand-ins (tests/support/systemctl.py); /etc is a copy that goes with the host.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

import yaml
from ray.autoscaler._private.command_runner import _with_environment_variables, _with_interactive
from ray.autoscaler._private.util import prepare_config, with_envs, with_head_node_ip

from tests.support.hosts import CHECKOUT, Host

FILE: Final = CHECKOUT / "deploy" / "ray-cluster.yaml"
_WITHIN_S: Final = 60
_STAND_INS: Final = {
    "sudo": '#!/bin/sh\nexec "$@"\n',
    "systemctl": f'#!/bin/sh\nexec {sys.executable} {CHECKOUT}/tests/support/systemctl.py "$@"\n',
    "sysctl": "#!/bin/sh\n",  # what it sets is the whole machine's
}


def cluster_file() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return loaded


class RayUp:
    """One cluster of these hosts; the first is the head."""

    def __init__(self, head: Host, settings: str, token: str) -> None:
        self.head = head
        self._file = cluster_file()
        self._mounts = {"~/engine.env": settings, "~/.ray/auth_token": token}
        assert {*self._mounts, "~/engine"} == self._file["file_mounts"].keys()

    def set_up(self, host: Host) -> None:
        """The machine's image, the file mounts, and the setup commands."""
        (host.folder / "bin").mkdir()
        for name, script in _STAND_INS.items():
            place = host.folder / "bin" / name
            place.write_text(script)
            place.chmod(0o755)
        (host.folder / ".bashrc").write_text('export PATH="$HOME/bin:$PATH"\n')
        (host.folder / "engine").symlink_to(CHECKOUT)
        (host.folder / "venv").symlink_to(sys.prefix)
        for path, text in self._mounts.items():
            place = host.folder / path.removeprefix("~/")
            place.parent.mkdir(exist_ok=True)
            place.write_text(text)
        self.run(
            host,
            "mkdir /dev/shm/etc && cp -a /etc/. /dev/shm/etc && mkdir -p /dev/shm/etc/systemd/system && mount --bind /dev/shm/etc /etc",
        )
        for command in self._file["setup_commands"]:
            if "apt-get" not in command and "pip install" not in command:
                self.run(host, command)

    def start_head(self) -> None:
        bootstrap = prepare_config(cluster_file()) | {"provider": {"type": "readonly"}, "cluster_synced_files": [], "file_mounts": {}}
        (self.head.folder / "ray_bootstrap_config.yaml").write_text(json.dumps(bootstrap))
        commands = with_envs(self._file["head_start_ray_commands"], {"RAY_HEAD_IP": self.head.address, "RAY_USAGE_STATS_ENABLED": "0"})
        self._start(self.head, commands, "head")

    def start_worker(self, host: Host, kind: str) -> None:
        """The commands that start a machine of this node type."""
        self._start(host, with_head_node_ip(self._file["worker_start_ray_commands"], self.head.address), kind)

    def _start(self, host: Host, commands: list[str], kind: str) -> None:
        resources = self._file["available_node_types"][kind]["resources"]
        for command in commands:
            self.run(host, _with_environment_variables(command, {"RAY_OVERRIDE_RESOURCES": resources}))

    def run(self, host: Host, command: str) -> str:
        """Run a command on a host as `ray exec` does; returns what it prints. Fails when it fails."""
        environment = {name: value for name, value in host.environment().items() if not name.startswith(("RAY_", "ENGINE_"))}
        words = host.command("sh", "-c", " ".join(_with_interactive(command)))
        environment["USER"] = "root"
        done = subprocess.run(
            words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_WITHIN_S, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    @staticmethod
    def log(host: Host, unit: str) -> str:
        """What a unit's processes have printed on a host."""
        place = host.folder / f"{unit}@root.log"
        return place.read_text(errors="replace") if place.exists() else ""
