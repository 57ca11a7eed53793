"""The routers that are measured: how each is started in front of the same mock engines."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from benchmarks.stores import server_binary
from benchmarks.wire.engine import MODEL

PEERS = Path(os.environ.get("BENCH_PEERS", ".cache/peers"))
"""Where `make bench-peers` puts each peer's own virtual environment."""


PYTHON = os.environ.get("BENCH_PYTHON", sys.executable)
"""What our gateway runs on: users have their system's Python, which may be built otherwise than this one."""
TOKENIZER = Path("tests/data/tokenizers/vllm-tiny")
BLOCKS = 1_000_000
"""In the index of the variant whose engines publish events."""
TWO_PROCESSES = "ours, two processes"
"""Share one core, and a Redis."""
TWO_CORES = "ours, bytes, two processes on two cores"
EVENT_RATE = 10_000
"""Blocks that they store a second then, and as many they remove."""


class Part(StrEnum):
    """What can be asked of a router by itself."""

    CHUNK = "chunk"
    """CPU, of streams that are paced."""
    JSON = "json"
    FIRST = "first byte"
    """Of streams; at half load, which is reckoned from the two before."""
    RATE = "rate"
    """As many answers as it manages."""


@dataclass(frozen=True, slots=True)
class Router:
    name: str
    command: list[str]
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of every request to it."""
    beside: tuple[list[str], ...] = ()
    """What has to run for it, on the other core."""
    blocks: int = 0
    """To wait for, in its index, before it is measured."""
    cores: str = ""
    """Of its own; empty: those of all routers."""
    parts: tuple[Part, ...] = tuple(Part)
    """What it is asked for; two of one name are one row."""


@dataclass(frozen=True, slots=True)
class Ports:
    engines: Sequence[int]
    events: Sequence[int]
    """One of each engine's, where it publishes."""
    public: int
    redis: int

    @property
    def admin(self) -> int:
        return self.public + 1


def ours(ports: Ports, scratch: Path, two_cores: str = "") -> list[Router]:
    """Our gateway in the forms whose costs differ, cheapest first. `two_cores` are those of two processes
    that share none; empty where there are not enough."""
    key = "pgw-" + "k" * 40
    hashed = hashlib.sha256(key.encode()).hexdigest()
    tokens = ("--tokenizer", f"{MODEL}={TOKENIZER}")
    quiet = "--no-access-log"
    publish = [sys.executable, "-m", "benchmarks.wire.events", "--ports", ",".join(map(str, ports.events))]
    publish += ["--blocks", str(BLOCKS), "--rate", str(EVENT_RATE)]
    made = [
        Router("ours, bytes", _serve(ports, quiet, "--tokenizer", f"{MODEL}=bytes")),
        Router("ours, tokenising", _serve(ports, quiet, *tokens)),
        Router(
            "ours, keys and access log",
            _serve(ports, *tokens, "--api-key", f"bench=sha256:{hashed}"),
            headers={"authorization": f"Bearer {key}"},
        ),
        Router(
            "ours, a million blocks, events",
            _serve(ports, quiet, *tokens, events=True),
            beside=(publish,),
            blocks=BLOCKS,
        ),
    ]
    if redis := _redis(ports.redis, scratch):
        shared = ("--processes", "2", "--redis-url", f"redis://127.0.0.1:{ports.redis}")
        made.append(Router(TWO_PROCESSES, _serve(ports, quiet, *tokens, *shared), beside=(redis,)))
        if two_cores:
            command = _serve(ports, quiet, "--tokenizer", f"{MODEL}=bytes", *shared)
            made.append(Router(TWO_CORES, command, beside=(redis,), cores=two_cores))
    return made


def python_of(executable: str) -> str:
    """Version of an interpreter and how fast it is: builds of one version differ by a fifth and more."""
    ask = (
        "import json, platform, timeit; "
        "steps = timeit.repeat('for i in range(100000): d[i & 63] = d.get(i & 31, 0) ^ i', 'd = {}', "
        "number=1, repeat=20); "
        "print(json.dumps([platform.python_version(), min(steps)]))"
    )
    answer = subprocess.run([executable, "-c", ask], capture_output=True, text=True, check=True).stdout
    version, seconds = json.loads(answer)
    return f"{version} ({1e3 * seconds:.1f} ms for a loop of 100,000 dictionary steps)"


def bare(ports: Ports) -> Router:
    """The floor of what our interpreter takes."""
    engines = [word for port in ports.engines for word in ("--engine", str(port))]
    command = [PYTHON, "-m", "benchmarks.wire.bare", "--port", str(ports.public), *engines]
    return Router("bare Python", command)


def _serve(ports: Ports, *flags: str, events: bool = False) -> list[str]:
    command = [PYTHON, "-m", "gateway", "serve"]
    command += ["--port", str(ports.public), "--admin-port", str(ports.admin)]
    for engine, publisher in zip(ports.engines, ports.events, strict=True):
        where = f",events=tcp://127.0.0.1:{publisher}" if events else ""
        command += ["--worker", f"http://127.0.0.1:{engine}{where}"]
    return [*command, *flags]


def _redis(port: int, scratch: Path) -> list[str] | None:
    binary = server_binary()
    if binary is None:
        return None
    save = ("--save", "", "--appendonly", "no", "--dir", str(scratch))
    return [binary, "--port", str(port), "--bind", "127.0.0.1", *save]


def installed_peers(engines: Sequence[int], port: int, scratch: Path) -> list[Router]:
    """Those that are there; what is missing is told by `missing`."""
    urls = [f"http://127.0.0.1:{engine}" for engine in engines]
    routers: list[Router] = []
    nginx = shutil.which("nginx") or "/usr/sbin/nginx"
    if Path(nginx).exists():
        routers.append(Router("nginx", [nginx, "-c", str(_nginx(scratch, engines, port))]))
    policy = ["--policy", "cache_aware"]
    where = ["--host", "127.0.0.1", "--port", str(port)]
    python = PEERS / "sglang-router/bin/python"
    if python.exists():
        command = [str(python), "-m", "sglang_router.launch_router", *where, *policy, "--log-level", "error"]
        command += ["--prometheus-port", str(port + 2), "--worker-urls", *urls]
        routers.append(Router("sglang-router", command))
    smg = PEERS / "smg/bin/smg"
    if smg.exists():
        command = [str(smg), "launch", *where, *policy, "--log-level", "error"]
        command += ["--prometheus-port", str(port + 3), "--worker-urls", *urls]
        routers.append(Router("smg", command))
    vllm = PEERS / "vllm-router/bin/vllm-router"
    if vllm.exists():
        command = [str(vllm), *where, *policy, "--log-level", "error"]
        command += ["--prometheus-port", str(port + 4), "--worker-urls", *urls]
        routers.append(Router("vllm-router", command))
    return routers


def missing(found: Sequence[Router]) -> list[str]:
    """What is not measured for want of something on this machine."""
    needs = {TWO_PROCESSES: f"{TWO_PROCESSES} (they need redis-server or valkey-server)"}
    return [
        needs.get(name, name)
        for name in (TWO_PROCESSES, "nginx", "sglang-router", "smg", "vllm-router", "dynamo")
        if not any(router.name.startswith(name) for router in found)
    ]


def _nginx(scratch: Path, engines: Sequence[int], port: int) -> Path:
    servers = "\n".join(f"    server 127.0.0.1:{engine};" for engine in engines)
    config = scratch / "nginx.conf"
    config.write_text(
        f"""daemon off; worker_processes 1; pid {scratch}/nginx.pid; error_log {scratch}/nginx.err;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {scratch}; proxy_temp_path {scratch}; fastcgi_temp_path {scratch};
  uwsgi_temp_path {scratch}; scgi_temp_path {scratch}; client_body_buffer_size 1m;
  upstream engines {{
{servers}
    keepalive 256;
  }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""
    )
    return config
