"""deploy/Dockerfile and deploy/compose.yaml: what they copy, run and mount exists, and their settings are the engine's."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from packaging.requirements import Requirement

from engine.auth.tokens import mint
from engine.cli.settings import load
from engine.config import Config
from engine.core.model.duration import parse_duration_ms

ROOT = Path(__file__).parents[2]
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile: each with its arguments."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "deploy" / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1].strip()) for line in text.splitlines() if line.strip()]


def arguments(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def test_every_instruction_exists_and_every_stage_begins_with_the_pinned_base() -> None:
    known = {"ARG", "FROM", "WORKDIR", "RUN", "COPY", "ENV", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in instructions()} <= known
    (base,) = arguments("ARG")
    assert re.fullmatch(r"PYTHON=3\.\d+-slim-[a-z]+", base)
    assert all(image.split()[0] == "python:${PYTHON}" for image in arguments("FROM"))


def test_what_it_copies_exists_and_reaches_the_builder() -> None:
    ignored = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in ignored
    for copied in arguments("COPY"):
        sources = [word for word in shlex.split(copied)[:-1] if not word.startswith("--")]
        if "--from=build" not in copied:
            for source in sources:
                assert (ROOT / source).exists()
                assert f"!{source}" in ignored


def test_it_installs_the_lock_and_a_wheel_and_runs_as_somebody_else_than_root() -> None:
    runs = " ".join(arguments("RUN"))
    assert "--require-hashes -r requirements/image.txt" in runs
    assert "pip wheel" in runs
    assert "--editable" not in runs
    user = arguments("USER")[-1]
    assert f"useradd --uid {user} " in runs
    assert int(user) > 0


def test_its_lock_has_every_extra_of_users_in_the_versions_of_the_engines_lock() -> None:
    def pins(name: str) -> dict[str, str]:
        text = (ROOT / "requirements" / name).read_text()
        return {found[1]: found[2] for found in re.finditer(r"^([a-z0-9.-]+)==(\S+)", text, re.MULTILINE)}

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {Requirement(text).name for extra in extras.keys() - {"bench", "test"} for text in extras[extra]}
    assert wanted >= {"psycopg", "opentelemetry-sdk", "wordllama"}
    assert wanted <= pins("image.txt").keys()
    assert pins("engine.txt").items() <= pins("image.txt").items()


def test_it_starts_the_engine_below_an_init_with_settings_that_exist() -> None:
    settings = dict(re.findall(r"(ENGINE_\w+)=(\S+)", arguments("ENV")[0]))
    config = load(env=settings, toml_path="none")
    assert (config.host, config.port) == ("0.0.0.0", Config().port)
    assert config.data_dir in arguments("VOLUME")
    assert str(config.port) in arguments("EXPOSE")
    assert json.loads(arguments("ENTRYPOINT")[0])[0] == "tini"
    assert json.loads(arguments("CMD")[-1]) == ["engine", "up"]


def test_its_health_is_what_the_engine_says_of_itself() -> None:
    (check,) = arguments("HEALTHCHECK")
    words = json.loads(check.partition("CMD ")[2])
    compile(words[2], "healthcheck", "exec")
    assert "/readyz" in words[2]


@pytest.mark.parametrize("service", COMPOSE["services"].values(), ids=COMPOSE["services"].keys())
def test_files_secrets_and_volumes_of_a_service_are_there(service: dict[str, Any]) -> None:
    for volume in service.get("volumes", ()):
        source = volume.split(":")[0]
        assert (ROOT / "deploy" / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
    assert set(service["secrets"]) <= COMPOSE["secrets"].keys()
    mounted = [ROOT / "deploy" / volume.split(":")[0] for volume in service.get("volumes", ()) if volume.startswith("./")]
    files = [path.read_text() for path in mounted if path.is_file()]
    words = " ".join([*service.get("command", ()), json.dumps([service.get("healthcheck"), service.get("environment")]), *files])
    assert set(re.findall(r"/run/secrets/([\w-]+)", words)) == set(service["secrets"])
    assert service["restart"] == "unless-stopped"


def test_its_engine_has_settings_that_exist_and_waits_for_redis() -> None:
    engine = COMPOSE["services"]["engine"]
    assert (ROOT / "deploy" / engine["build"]["context"] / engine["build"]["dockerfile"]).is_file()
    assert load(env=engine["environment"], toml_path="none").shards
    assert set(re.findall(r"(ENGINE_\w+)=", engine["command"][-1])) == {"ENGINE_REDIS_URL", "ENGINE_JWT_SECRET"}
    assert engine["depends_on"] == {"redis": {"condition": "service_healthy"}}


def test_what_only_watches_the_engine_is_started_when_asked_for_and_reached_from_this_machine_only() -> None:
    watching = {name for name, service in COMPOSE["services"].items() if service.get("profiles") == ["monitoring"]}
    assert watching == {"prometheus", "grafana"}
    for service in COMPOSE["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_the_commands_at_its_head_make_tokens_that_the_engine_makes() -> None:
    text = (ROOT / "deploy" / "compose.yaml").read_text()
    calls = re.findall(r"^#   token (\S+) --scope (\S+)(?: --ttl (\S+))?", text, re.MULTILINE)
    assert {scope for _, scope, _ in calls} == {"publish", "metrics"}
    for user, scope, ttl in calls:
        lifetime_s = parse_duration_ms(ttl or "1h") / 1000
        assert mint("x" * 32, user, [scope], lifetime_s, now_s=0, lifetime_s_max=Config().token_lifetime_s_max)


def test_every_secret_of_it_is_made_by_the_commands_at_its_head_and_kept_out_of_git() -> None:
    text = (ROOT / "deploy" / "compose.yaml").read_text()
    for secret in COMPOSE["secrets"].values():
        assert f"> deploy/{secret['file'].removeprefix('./')}\n" in text
    assert "deploy/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
