"""The engine without any feature delivers: in this process in every run, and as a whole engine whose code has no features."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.connections import Server
from tests.conformance.without_features import check_at_once, config_of
from tests.support.engine_in_process import engine_in_process
from tests.support.feature_folders import FOLDERS
from tests.support.kernel_code import kernel_code
from tests.support.redis_server import RedisServer
from tests.support.running_engine import running_engine


@pytest.mark.usefixtures("redis_client")  # which empties the Redis of the session
async def test_edge_shard_and_scheduler_deliver_without_features(redis_server: RedisServer, tmp_path: Path) -> None:
    config = config_of(redis_server.url, tmp_path)
    async with engine_in_process(config, FOLDERS) as url:
        await check_delivery(url, config.jwt_secret)


async def test_an_engine_delivers_whose_code_has_no_features(tmp_path: Path) -> None:
    with running_engine(env=kernel_code(tmp_path)) as engine:
        await check_delivery(engine.url, (engine.data_dir / "jwt-secret").read_text().strip())
        assert engine.status()["ready"]


async def check_delivery(url: str, secret: str) -> None:
    server = Server(url, secret)
    async with server.http:
        assert (await server.ask("GET", "/v1/dead-letters", scope="admin")).status_code == 404, "a feature is there"
        assert (await server.ask("DELETE", "/v1/scheduled?user=ann", scope="publish")).json() == {"cancelled": 0}
        await check_at_once(server, FOLDERS)
