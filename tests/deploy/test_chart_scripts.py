"""What the chart's pods run beside our own programs, run for real."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import redis
import trustme

from gateway.auth.hashing import sha256_of
from gateway.fleet.discovery.objects import read_pod
from gateway.fleet.discovery.ports import PortRules
from tests.conftest import Spawn
from tests.deploy.charts import CHART, render
from tests.deploy.tools import Tools
from tests.gateway.discovery.apiserver import pod
from tests.servers import server_binaries

NAME = "chat-prefix-gateway"
DRAIN = CHART / "files" / "drain.py"


@contextmanager
def metrics(*answers: str) -> Iterator[tuple[str, list[str]]]:
    """An engine whose /metrics says one thing after the other; the last one stays."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = answers[min(len(asked), len(answers)) - 1].encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def drain(url: str, seconds: str) -> None:
    done = subprocess.run([sys.executable, str(DRAIN), url, seconds, "0"], timeout=60, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_engine_is_let_go_when_it_answers_nobody() -> None:
    # as vLLM 0.28 and 0.32 write them
    running = 'vllm:num_requests_running{engine="0",model_name="m"} 2.0\n'
    waiting = 'vllm:num_requests_running{engine="0"} 0.0\nvllm:num_requests_waiting{engine="0"} 1.0\n'
    idle = 'vllm:num_requests_running{engine="0"} 0.0\nvllm:num_requests_waiting{engine="0"} 0.0\n'
    with metrics(running, waiting, idle) as (url, asked):
        drain(url, "50")
    assert asked == ["/metrics"] * 3


def test_sglang_s_names_count_too() -> None:
    with metrics('sglang:num_running_reqs{x="y"} 1\n', "sglang:num_running_reqs 0\n") as (url, asked):
        drain(url, "50")
    assert len(asked) == 2


def test_a_drain_ends_in_time_and_where_nobody_answers(free_port: Callable[[], int]) -> None:
    with metrics("vllm:num_requests_running 1.0\n") as (url, asked):
        drain(url, "1")
    assert asked
    drain(f"http://127.0.0.1:{free_port()}/metrics", "50")


@pytest.mark.parametrize("binary", server_binaries(), ids=lambda path: Path(path).name)
@pytest.mark.parametrize(
    "password",
    [
        "s3cret",
        """ it's "a b"\\ $HOME `id` #x \t""",
        "".join(map(chr, range(32, 127))),
        "ümlaut€",
        "line\n",
        "EOF",
    ],
    ids=["plain", "quotes", "printable", "utf-8", "newline", "marker"],
)
def test_redis_starts_with_the_chart_s_command(
    helm4: Tools, spawn: Spawn, free_port: Callable[[], int], tmp_path: Path, password: str, binary: str
) -> None:
    script = render(helm4).container(f"{NAME}-redis", "redis")["command"][2]
    (tmp_path / "valkey-server").symlink_to(binary)
    port = free_port()
    script = script.replace("--dir /tmp", f"--dir {tmp_path} --port {port} --bind 127.0.0.1")
    server = spawn(
        argv=["sh", "-c", script],
        env={"REDIS_PASSWORD": password, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    with redis.Redis(port=port, password=password, socket_timeout=10) as client:
        while True:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                assert server.popen.poll() is None, server.output()
        wanted = {"maxmemory": "1073741824", "maxmemory-policy": "noeviction", "save": ""}
        assert {name: client.config_get(name)[name] for name in wanted} == wanted
    with (
        redis.Redis(port=port, socket_timeout=10) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()
    # it is the process itself that gets the signal, no shell before it
    assert server.stop() == 0
    assert password.strip() not in server.output()


def test_redis_without_a_password_does_not_start(helm4: Tools) -> None:
    script = render(helm4).container(f"{NAME}-redis", "redis")["command"][2]
    done = subprocess.run(
        ["sh", "-c", script], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (1, "the password is empty\n")


def test_helm_s_test_asks_a_real_gateway(spawn: Spawn, free_port: Callable[[], int], tmp_path: Path) -> None:
    port, admin = free_port(), free_port()
    fleet = spawn(
        "-m", "gateway", "up", "--model", "tiny", "--workers", "1", "--port", str(port),
        "--admin-port", str(admin), "--run-dir", str(tmp_path / "run"),
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    fleet.wait_http(url + "/ready", timeout=100)
    done = subprocess.run(
        [sys.executable, str(CHART / "files" / "chat.py"), url], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert " at http://127.0.0.1:" in done.stdout


def test_helm_s_test_where_clients_show_keys(
    spawn: Spawn, free_port: Callable[[], int], tmp_path: Path
) -> None:
    port, admin, engine = free_port(), free_port(), free_port()
    worker = spawn("-m", "workers", "serve", "--model", "sim:fast", "--port", str(engine))
    worker.wait_http(f"http://127.0.0.1:{engine}/health", timeout=60)
    gateway = spawn(
        "-m", "gateway", "serve", "--port", str(port), "--admin-port", str(admin),
        "--worker", f"http://127.0.0.1:{engine}",
        env={"GATEWAY_API_KEYS": f"tester={sha256_of('pgw_tester')}"},
    )  # fmt: skip
    gateway.wait_http(f"http://127.0.0.1:{admin}/ready", timeout=60)

    def ask(key: str) -> tuple[int, str]:
        argv = [sys.executable, str(CHART / "files" / "chat.py"), f"http://127.0.0.1:{port}"]
        env = {**os.environ, "API_KEY": key}
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env)
        return done.returncode, done.stdout + done.stderr

    code, said = ask("pgw_tester")
    assert code == 0, said
    assert f" at http://127.0.0.1:{engine}: " in said
    # without one there is nothing to chat with; a wrong one is a fault
    assert ask("") == (
        0, "the gateway asks for an API key, as it should; tests.apiKeySecret has one for a chat\n",
    )  # fmt: skip
    code, said = ask("pgw_other")
    assert (code, said[:5]) == (1, "401: ")


def test_helm_s_test_where_clients_show_certificates(
    spawn: Spawn, free_port: Callable[[], int], tmp_path: Path
) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.crt")
    for name, leaf in (("server", ca.issue_cert("localhost")), ("client", ca.issue_cert("t@example.org"))):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tls.crt").write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(folder / "tls.key")
    port, admin = free_port(), free_port()
    gateway = spawn(
        "-m", "gateway", "serve", "--port", str(port), "--admin-port", str(admin),
        "--tls-cert", str(tmp_path / "server" / "tls.crt"), "--tls-key", str(tmp_path / "server" / "tls.key"),
        "--tls-client-ca", str(tmp_path / "ca.crt"), "--worker", f"http://127.0.0.1:{free_port()}",
    )  # fmt: skip
    gateway.wait_http(f"http://127.0.0.1:{admin}/health", timeout=60)
    deadline = time.monotonic() + 60
    with socket.socket() as probe:
        while probe.connect_ex(("127.0.0.1", port)) != 0:
            assert time.monotonic() < deadline, gateway.output()
            time.sleep(0.05)
    asked = [sys.executable, str(CHART / "files" / "chat.py"), f"https://localhost:{port}"]
    without = subprocess.run([*asked, "refused"], capture_output=True, text=True, timeout=60)
    assert (without.returncode, without.stdout) == (0, "the gateway asks for a certificate, as it should\n")
    shown = subprocess.run([*asked, str(tmp_path / "client")], capture_output=True, text=True, timeout=60)
    # it is let in, and told the truth: there is no engine
    assert (shown.returncode, shown.stderr.splitlines()[-1][:19]) == (1, "it serves no model:")


def test_kubectl_s_annotations_are_what_discovery_reads(helm4: Tools, tmp_path: Path) -> None:
    path = tmp_path / "pod.json"
    path.write_text(json.dumps(pod("vllm-0", "10.0.0.1", ports={})))
    done = helm4.run(
        helm4.kubectl, "annotate", "--local", "-o", "json", "-f", str(path),
        "prefix-gateway.io/port=8000", "prefix-gateway.io/events-port=5557", "prefix-gateway.io/weight=2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (member,) = read_pod(json.loads(done.stdout), PortRules()).members
    assert (member.spec.url, member.spec.events, member.spec.weight) == (
        "http://10.0.0.1:8000", "tcp://10.0.0.1:5557", 2.0,
    )  # fmt: skip
