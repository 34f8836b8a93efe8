"""Services of Compose files without Docker: merged and started in the order of their dependencies, as `docker compose up` does."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.containers import Container
from tests.support.hosts import Network

_WITHIN_S: Final = 90.0
_REPLACED: Final = frozenset({"command", "test"})


def merged(files: Sequence[Path]) -> dict[str, Any]:
    """Several Compose files as one, by Compose's rules: mappings by key, volumes by target, commands replaced, other lists joined."""
    whole: dict[str, Any] = {}
    for file in files:
        whole = _merge(whole, yaml.safe_load(file.read_text()))
    return whole


def _merge(base: Any, more: Any, name: str = "") -> Any:
    if isinstance(base, dict) and isinstance(more, dict):
        return base | {key: _merge(base[key], value, key) if key in base else value for key, value in more.items()}
    if isinstance(base, list) and isinstance(more, list) and name not in _REPLACED:
        target = {text.split(":")[1] if name == "volumes" else text: text for text in (*base, *more)}
        assert name == "volumes" or len(target) == len(base) + len(more), f"{name}: Compose refuses what is there twice"
        return list(target.values())
    return more


class Composition:
    """Services, each in a container with a fixed or another address.

    Args:
        files: Compose files, the first one first; what they mount is beside them.
        names: of the services.
        secrets: the directory in place of `./secrets`.
        environment: of all services, as their image has it.
    """

    def __init__(
        self, network: Network, files: Sequence[Path], names: Sequence[str], secrets: Path, environment: Mapping[str, str]
    ) -> None:
        whole = merged(files)
        self.services: dict[str, dict[str, Any]] = {name: whole["services"][name] for name in names}
        self.containers = {name: Container(network, name) for name in names}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = environment
        self._addresses = {
            service["networks"]["default"]["ipv4_address"]: self.containers[name].host.address
            for name, service in self.services.items()
            if "networks" in service
        }
        for name, service in self.services.items():
            container = self.containers[name]
            container.name({other: found.host.address for other, found in self.containers.items()})
            for volume in service.get("volumes", ()):
                source, target, *_ = volume.split(":")
                if source.startswith("."):
                    container.write(target, (files[0].parent / source).read_text())
                else:
                    assert source in whole["volumes"]
            for secret in service.get("secrets", ()):
                container.write(f"/run/secrets/{secret}", (secrets / Path(whole["secrets"][secret]["file"]).name).read_text())

    def up(self) -> None:
        """Start each service when those that it depends on are as it wants them; does not wait for the last."""
        waiting = dict(self.services)
        while waiting:
            name = next(name for name, service in waiting.items() if not waiting.keys() & service.get("depends_on", {}).keys())
            for other, wanted in waiting.pop(name).get("depends_on", {}).items():
                self._wait(other, wanted["condition"])
            self.start(name)

    def start(self, name: str) -> None:
        """Start the command of a service, whatever others do."""
        service = self.services[name]
        self.running[name] = self.containers[name].start(
            [self._text(word) for word in service["command"]], {**self._environment, **service.get("environment", {})}
        )

    def kill(self, name: str) -> None:
        """kill -9 of a service; its data stay."""
        self.containers[name].host.kill_processes()
        self.running.pop(name).wait(_WITHIN_S)

    def _wait(self, name: str, condition: str) -> None:
        container, process = self.containers[name], self.running[name]
        deadline = time.monotonic() + _WITHIN_S
        if condition == "service_completed_successfully":
            assert process.wait(_WITHIN_S) == 0, container.host.output()
            return
        assert condition == "service_healthy"
        kind, command = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD-SHELL"
        while not container.succeeds(["sh", "-c", self._text(command)], self._environment):
            assert process.poll() is None, container.host.output()
            assert time.monotonic() < deadline, f"{name} is not healthy: {container.host.output()}"
            time.sleep(0.1)

    def _text(self, text: str) -> str:
        """As the container gets it: addresses of the file's network are those of the hosts here."""
        given = text.replace("$$", "$")
        return re.sub(r"\d+\.\d+\.\d+\.\d+", lambda found: self._addresses.get(found[0], found[0]), given)
