"""The image and the compose file, as far as a machine without a container engine can prove them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from gateway.settings_load import load
from tests.deploy.tools import ROOT

DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "Dockerfile"


def tool(name: str) -> str:
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_hadolint_finds_nothing() -> None:
    done = subprocess.run([tool("hadolint"), str(DOCKERFILE)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_build_context_has_what_the_dockerfile_copies_and_nothing_else() -> None:
    copied = [
        source
        for line in DOCKERFILE.read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    ]
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(copied) == allowed
    for source in copied:
        assert (ROOT / source).exists(), source


def test_the_base_is_pinned_and_of_the_python_that_is_tested() -> None:
    (base,) = re.findall(r"^ARG BASE=(\S+)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+", base)
    assert re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE) == ["${BASE}", "${BASE}"]
    assert "USER 10001:10001" in DOCKERFILE.read_text()


def test_the_compose_file_fits_its_schema() -> None:
    check = tool("check-jsonschema")
    done = subprocess.run(
        [check, "--builtin-schema", "vendor.compose-spec", str(DEPLOY / "compose.yaml")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return document


def test_compose_mounts_files_that_exist_and_hardens_what_is_ours() -> None:
    services = compose()["services"]
    assert set(services) == {
        "gateway-1", "gateway-2", "worker-1", "worker-2", "redis", "prometheus", "grafana",
    }  # fmt: skip
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert re.search(r":[^/]*\d", service["image"]) or service["image"].startswith("prefix-gateway:")
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), f"{name}: {source}"
        for published in service.get("ports", []):
            assert published.startswith("127.0.0.1:"), f"{name}: {published} is open to the network"


def test_compose_and_its_configuration_speak_of_the_same_things() -> None:
    services = compose()["services"]
    settings = load({"admin_token": "x" * 32}, DEPLOY / "compose" / "gateway.yaml")
    assert [w.split(",")[0] for w in settings.workers] == ["http://worker-1:8000", "http://worker-2:8000"]
    assert settings.redis_url == "redis://redis:6379/0"
    grace = int(services["gateway-1"]["stop_grace_period"].removesuffix("s"))
    assert grace > settings.settle + settings.shutdown_grace
    scraped = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text())["scrape_configs"]
    targets = [t for job in scraped for c in job["static_configs"] for t in c["targets"]]
    assert targets == ["gateway-1:8081", "gateway-2:8081", "worker-1:8000", "worker-2:8000"]


def test_commands_of_compose_are_understood() -> None:
    from gateway.cli.main import cli
    from workers.__main__ import main as workers

    services = compose()["services"]
    for name, group in (("gateway-1", cli), ("worker-1", workers)):
        command, *args = services[name]["command"]
        found = group.get_command(click.Context(group), command)
        assert found is not None
        found.make_context(command, list(args))
