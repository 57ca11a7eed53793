"""The routers that are measured: how each is started in front of the same mock engines."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PEERS = Path(os.environ.get("BENCH_PEERS", ".cache/peers"))
"""Where `make bench-peers` puts each peer's own virtual environment."""


@dataclass(frozen=True, slots=True)
class Router:
    name: str
    command: list[str]
    note: str = ""


def ours(name: str, engines: Sequence[int], port: int, admin: int, *flags: str, note: str = "") -> Router:
    command = [sys.executable, "-m", "gateway", "serve", "--port", str(port), "--admin-port", str(admin)]
    for engine in engines:
        command += ["--worker", f"http://127.0.0.1:{engine}"]
    return Router(name, [*command, *flags], note)


def installed_peers(engines: Sequence[int], port: int, scratch: Path) -> list[Router]:
    """Those that are there; what is missing is told by `missing_peers`."""
    urls = [f"http://127.0.0.1:{engine}" for engine in engines]
    routers: list[Router] = []
    nginx = shutil.which("nginx") or "/usr/sbin/nginx"
    if Path(nginx).exists():
        routers.append(Router("nginx", [nginx, "-c", str(_nginx(scratch, engines, port))], "round robin"))
    policy = ["--policy", "cache_aware"]
    where = ["--host", "127.0.0.1", "--port", str(port)]
    python = PEERS / "sglang-router/bin/python"
    if python.exists():
        command = [str(python), "-m", "sglang_router.launch_router", *where, *policy, "--log-level", "error"]
        command += ["--prometheus-port", str(port + 2), "--worker-urls", *urls]
        routers.append(Router("sglang-router", command, "cache_aware"))
    smg = PEERS / "smg/bin/smg"
    if smg.exists():
        command = [str(smg), "launch", *where, *policy, "--log-level", "error"]
        command += ["--prometheus-port", str(port + 3), "--worker-urls", *urls]
        routers.append(Router("smg", command, "cache_aware"))
    vllm = PEERS / "vllm-router/bin/vllm-router"
    if vllm.exists():
        command = [str(vllm), *where, *policy, "--log-level", "error"]
        command += ["--prometheus-port", str(port + 4), "--worker-urls", *urls]
        routers.append(Router("vllm-router", command, "cache_aware"))
    return routers


def missing_peers(found: Sequence[Router]) -> list[str]:
    return [
        name
        for name in ("nginx", "sglang-router", "smg", "vllm-router")
        if name not in {r.name for r in found}
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
