"""A Redis server that speaks TLS only: the program, and the certificates that it shows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from tests.support.link_actors import certificates
from tests.support.missing_programs import missing

_PROGRAMS = ("redis-server", "valkey-server", "redis-check-rdb")  # Debian's redis-tools have the server under the last name


class RedisTls(NamedTuple):
    """A server program that has TLS, and PEM files: a CA, a certificate of 127.0.0.1 by it, its key. Both sides show that certificate."""

    program: Path
    ca: str
    certificate: str
    key: str

    @property
    def of_client(self) -> dict[str, str]:
        """Options of a client, in its URL too."""
        return {"ssl_ca_certs": self.ca, "ssl_certfile": self.certificate, "ssl_keyfile": self.key}

    def options(self, port: int) -> dict[str, object]:
        """Settings of a server that listens with TLS on this port, asks for certificates, and speaks TLS to other servers."""
        files = {"tls-ca-cert-file": self.ca, "tls-cert-file": self.certificate, "tls-key-file": self.key}
        return {"port": 0, "tls-port": port, "tls-replication": "yes", "tls-cluster": "yes", **files}


def redis_tls(folder: Path) -> RedisTls:
    """Makes the files in this folder. Ends the test where no installed server has TLS."""
    made = certificates(folder / "tls")
    found = next((path for name in _PROGRAMS if (path := shutil.which(name)) and b"libssl.so" in Path(path).read_bytes()), None)
    if found is None:
        missing("no Redis with TLS: apt install redis-tools")
    program = folder / "redis-server"  # it is the server when it is called so
    program.symlink_to(found)
    return RedisTls(program, made["link_tls_ca"], made["link_tls_cert"], made["link_tls_key"])
