"""A shell's 1,024 open files would be 500 streams: the gateway allows itself what the system allows."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable

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
    assert [(line["level"], line["allowed"], line["needed"]) for line in said] == [
        ("WARNING", 1000, 2 * 8192 + 256)
    ]
