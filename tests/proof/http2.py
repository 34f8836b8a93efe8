"""h2spec (https://github.com/summerwind/h2spec), which tests HTTP/2 servers, against the proxies of deploy/proxies in front of an edge."""

from __future__ import annotations

import asyncio
import datetime as dt
import re
import shutil
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.edge_world import edge_world
from tests.support.front_proxies import front_proxy

_TOTAL: Final = re.compile(r"(\d+) tests, (\d+) passed, \d+ skipped, \d+ failed")


def program() -> Path | None:
    """h2spec, which `make proof` builds where Go is installed."""
    found = shutil.which("h2spec", path=str(Path(__file__).parents[2] / ".venv" / "go"))
    return Path(found) if found else None


async def judge(name: str, h2spec: Path, folder: Path) -> tuple[int, int]:
    """All cases against one proxy, over TLS: how many pass, of how many."""
    pem = folder / "certificate.pem"
    pem.write_bytes(_certificate())
    async with edge_world() as world, front_proxy(name, folder, world.port, pem) as proxy:
        process = await asyncio.create_subprocess_exec(
            h2spec, "--host", "127.0.0.1", "--port", str(proxy.port), "--path", "/healthz", "--tls", "--insecure", "--timeout", "2",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, _ = await process.communicate()
    total = _TOTAL.search(output.decode())
    assert total is not None, output.decode()
    return int(total[2]), int(total[1])


def _certificate() -> bytes:
    """Its own key and itself."""
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return secret + made.public_bytes(serialization.Encoding.PEM)
