"""nginx and HAProxy with the configurations of deploy/proxies, changed where a test needs other ports, other files and a log.

A line of the log is a request as the proxy understood it: `METHOD PATH STATUS`, of those that the server behind it answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

from engine.store.embedded_redis import dying_with_parent
from tests.support.free_port import free_port
from tests.support.waiting import until

FOLDER = Path(__file__).parents[2] / "deploy" / "proxies"


class Listening(NamedTuple):
    """A proxy that runs; `forwarded` reads what it has forwarded."""

    port: int
    forwarded: Callable[[], list[str]]


def changed(text: str, changes: dict[str, str]) -> str:
    """The text with each line of these replaced, which must be there."""
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def _nginx(folder: Path, port: int, engine_port: int, tls: Path | None) -> tuple[list[str], str]:
    changes = {
        "http {": f"pid {folder}/pid;\nerror_log {folder}/errors;\nhttp {{\n"
        + "".join(f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        + "log_format seen '$request_method $request_uri $upstream_status';",
        "access_log off;": f"access_log {folder}/log seen;",
        "server 127.0.0.1:8000;": f"server 127.0.0.1:{engine_port};",
        "listen 443 ssl http2;": f"listen 127.0.0.1:{port} ssl http2;" if tls else f"listen 127.0.0.1:{port};",
        "ssl_certificate /etc/nginx/tls/certificate.pem;": f"ssl_certificate {tls};" if tls else "",
        "ssl_certificate_key /etc/nginx/tls/key.pem;": f"ssl_certificate_key {tls};" if tls else "",
    }
    return ["nginx", "-p", str(folder), "-e", f"{folder}/errors", "-g", "daemon off;", "-c"], changed(
        (FOLDER / "nginx.conf").read_text(), changes
    )


def _haproxy(folder: Path, port: int, engine_port: int, tls: Path | None) -> tuple[list[str], str]:
    changes = {
        "global\n": "global\n    log stdout format raw local0\n",
        "maxconn 20000": "maxconn 500",  # each takes two of the file descriptors that a test may have
        "defaults\n": 'defaults\n    log global\n    log-format "%HM %HPO %s:%ST"\n',
        "bind :443 ssl crt /etc/haproxy/tls/engine.pem": f"bind 127.0.0.1:{port} ssl crt {tls}" if tls else f"bind 127.0.0.1:{port} #",
        "server edge-0 127.0.0.1:8000 check": f"server edge-0 127.0.0.1:{engine_port}",
    }
    return ["haproxy", "-db", "-f"], changed((FOLDER / "haproxy.cfg").read_text(), changes)


PROXIES = {"nginx": _nginx, "haproxy": _haproxy}


@contextlib.asynccontextmanager
async def front_proxy(name: str, folder: Path, engine_port: int, tls: Path | None = None) -> AsyncIterator[Listening]:
    """Run one. `tls`: certificate and key; without them HTTP/1.1 in clear text."""
    port = free_port()
    command, text = PROXIES[name](folder, port, engine_port, tls)
    (folder / name).write_text(text)
    log = folder / "log"

    def forwarded() -> list[str]:
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return [line.replace(" edge-0:", " ") for line in lines if " <NOSRV>:" not in line and not line.endswith(" -")]

    with (folder / "printed").open("wb") if name == "nginx" else log.open("wb") as output:
        process = subprocess.Popen(dying_with_parent([*command, folder / name]), stdout=output, stderr=subprocess.STDOUT)
    try:
        await until(lambda: _listens(port) or process.poll() is not None)
        assert process.poll() is None, "".join(path.read_text() for path in (folder / "printed", log) if path.exists())
        yield Listening(port, forwarded)
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 30)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def installed(name: str) -> bool:
    return shutil.which(name) is not None
