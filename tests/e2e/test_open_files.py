"""A shell's 1,024 open files would be 500 streams: the gateway allows itself what the system allows."""

from __future__ import annotations

import json
import resource
import socket
import sys
from collections.abc import Callable

import httpx
import psutil

from tests.conftest import Spawn


def test_the_limit_of_open_files_is_raised(spawn: Spawn, free_port: Callable[[], int]) -> None:
    port = free_port()
    serve = f"{sys.executable} -m gateway serve --port {port} --admin-port {free_port()} --worker http://127.0.0.1:1"
    process = spawn(argv=["bash", "-c", f"set -e; ulimit -Sn 256; ulimit -Hn 1000; exec {serve}"])
    process.wait_http(f"http://127.0.0.1:{port}/health", timeout=100)
    assert psutil.Process(process.pid).rlimit(resource.RLIMIT_NOFILE) == (1000, 1000)
    said = [json.loads(line) for line in process.output().splitlines() if "open files" in line]
    # two a client, and 256 for all else
    assert [(line["level"], line["allowed"], line["needed"], line["connections"]) for line in said] == [
        ("WARNING", 1000, 2 * 8192 + 256, 372)
    ]


def test_a_crowd_does_not_take_the_admin_ports_files(spawn: Spawn, free_port: Callable[[], int]) -> None:
    port, admin = free_port(), free_port()
    serve = (
        f"{sys.executable} -m gateway serve --port {port} --admin-port {admin} --worker http://127.0.0.1:1"
    )
    process = spawn(argv=["bash", "-c", f"set -e; ulimit -n 300; exec {serve} --head-timeout 3600"])
    process.wait_http(f"http://127.0.0.1:{port}/health", timeout=100)
    crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
    with httpx.Client(trust_env=False, timeout=60) as operator:
        assert operator.get(f"http://127.0.0.1:{admin}/health").status_code == 200
        metrics = operator.get(f"http://127.0.0.1:{admin}/metrics").text
    assert "gateway_accepts_failed_total 0.0" in metrics
    with socket.create_connection(("127.0.0.1", port)) as late:
        late.settimeout(60)
        # (300 - 150) / 2 have a place
        assert b"too_many_connections" in late.makefile("rb").read()
    for one in crowd:
        one.close()
