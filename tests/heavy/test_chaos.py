"""Everything that can die, killed again and again with load on. `make chaos`; CHAOS_ROUNDS says how often.

What was measured is added, a line of JSON a round, to the file that CHAOS_RESULTS names.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import Fleet
from tests.e2e.proxy import stalling_proxy
from tests.e2e.replicas import Engine, Site, site
from tests.e2e.traffic import Sample, Traffic, p99, traffic
from tests.servers import cluster, sentinel_group, standalone

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "5"))
RECOVERY_S = 30.0
"""Patience; what it really took is measured."""


def wait_until(condition: Callable[[], bool], timeout: float, what: str) -> None:
    """Asks five times a second: who watches must not be the load."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {timeout} s"
        time.sleep(0.2)


@dataclass
class Field:
    """Two replicas, four engines, and traffic."""

    site: Site
    engines: list[Engine]
    replicas: list[Fleet]
    traffic: Traffic
    scenario: str
    rounds: list[dict[str, object]] = field(default_factory=list)

    def sharing(self, value: int) -> Callable[[], bool]:
        return lambda: all(replica.metric("gateway_sharing_up") == value for replica in self.replicas)

    def peers(self, count: int = 1) -> Callable[[], bool]:
        return lambda: all(replica.metric("gateway_peers") == count for replica in self.replicas)

    def breathe(self, requests: int = 100) -> float:
        """Some traffic without trouble; when it began."""
        began, count = time.monotonic(), len(self.traffic.samples) + requests

        def enough() -> bool:
            # watched in calm times as in rough ones, for their figures to compare
            self.replicas[0].metric("gateway_sharing_up")
            return len(self.traffic.samples) >= count

        wait_until(enough, 120, "traffic")
        return began

    def note(self, calm: list[Sample], rough: list[Sample], **measured: float) -> None:
        line: dict[str, object] = {
            "scenario": self.scenario,
            "requests": len(calm) + len(rough),
            "answers": {str(code): count for code, count in Counter(s.status for s in calm + rough).items()},
            "calm_p99_ms": round(1000 * p99(calm), 1),
            "rough_p99_ms": round(1000 * p99(rough), 1),
            **{name: round(value, 2) for name, value in measured.items()},
        }
        self.rounds.append(line)
        if path := os.environ.get("CHAOS_RESULTS"):
            with Path(path).open("a") as out:
                out.write(json.dumps(line) + "\n")

    def verify(self) -> None:
        """Without traffic, both replicas' indexes and Redis come to the same, block by block."""
        self.traffic.halt.set()
        wait_until(lambda: all(map(_clean, self.replicas)), 60, "`index verify` clean")


def _clean(replica: Fleet) -> bool:
    answer = httpx.post(replica.admin + "/admin/index/shared/verify", trust_env=False, timeout=60).json()
    return bool(answer["clean"]) and len(answer["workers"]) == 4


def writers(replica: Fleet) -> int:
    """Workers whose blocks this replica writes to Redis."""
    return sum(row["role"] == "writer" for row in replica.get("/admin/index/shared")["workers"])


@contextmanager
def battlefield(
    folder: Path, scenario: str, redis_url: str, *, second_url: str | None = None, agents: bool = False
) -> Iterator[Field]:
    """`second_url` is the second replica's way to the same Redis."""
    with site(folder, redis_url) as here:
        engines = [here.engine("sim:20us-per-token,1ms-per-step") for _ in range(4)]
        here.wait(*engines)
        known = [] if agents else engines
        more = ["--discovery", "redis"] if agents else []
        replicas = [
            here.gateway(*more, engines=known),
            here.gateway(*more, engines=known, redis_url=second_url),
        ]
        if agents:
            for engine in engines:
                here.agent(engine=engine)
        here.wait(*replicas, workers=4)
        with traffic(replicas) as load:
            field = Field(here, engines, replicas, load, scenario)
            wait_until(field.peers(), 60, "peers")
            yield field


def clean(samples: list[Sample]) -> None:
    """Every client got its answer."""
    assert {sample.status for sample in samples} == {200}


def outage(field: Field, lose: Callable[[], object], regain: Callable[[], object]) -> None:
    """Redis is lost and comes back: no request fails, and the replicas hear each other again."""
    for _ in range(ROUNDS):
        began = field.breathe()
        lost = time.monotonic()
        calm = field.traffic.between(began, lost)
        lose()
        field.breathe(60)
        wait_until(field.sharing(0), RECOVERY_S, "the loss noticed")
        regain()
        back = time.monotonic()
        wait_until(lambda: field.sharing(1)() and field.peers()(), RECOVERY_S, "sharing again")
        again = time.monotonic()
        rough = field.traffic.between(lost, again)
        clean(calm + rough)
        field.note(calm, rough, converged_s=again - back)
    field.verify()


def test_redis_killed(tmp_path: Path) -> None:
    with (
        standalone(tmp_path / "redis") as redis,
        battlefield(tmp_path / "site", "Redis killed", redis.url) as field,
    ):
        outage(field, redis.kill, redis.start)


def test_redis_stalled(tmp_path: Path) -> None:
    with (
        standalone(tmp_path / "redis") as redis,
        battlefield(tmp_path / "site", "Redis stalled", redis.url) as field,
    ):
        outage(field, redis.pause, redis.resume)


def test_redis_emptied(tmp_path: Path) -> None:
    with (
        standalone(tmp_path / "redis") as redis,
        battlefield(tmp_path / "site", "FLUSHALL, workers by agents", redis.url, agents=True) as field,
        redis.client() as client,
    ):
        for _ in range(ROUNDS):
            began = field.breathe()
            emptied = time.monotonic()
            client.flushall()
            wait_until(lambda: len(client.keys("pgw:*:registration")) == 4, RECOVERY_S, "agents back")
            back = time.monotonic()
            field.breathe(60)
            samples = field.traffic.between(began, time.monotonic())
            clean(samples)
            calm, rough = (
                field.traffic.between(began, emptied),
                field.traffic.between(emptied, time.monotonic()),
            )
            field.note(calm, rough, registered_again_s=back - emptied)
            assert all(len(replica.workers()) == 4 for replica in field.replicas)
        field.verify()


def test_replica_killed(tmp_path: Path) -> None:
    with (
        standalone(tmp_path / "redis") as redis,
        battlefield(tmp_path / "site", "replica killed", redis.url) as field,
    ):
        for _ in range(ROUNDS):
            began = field.breathe()
            killed = time.monotonic()
            calm = field.traffic.between(began, killed)
            field.site.kill(field.replicas[1].process)
            one = field.replicas[0]
            wait_until(lambda: one.metric("gateway_peers") == 0, RECOVERY_S, "the death noticed")  # noqa: B023
            noticed = time.monotonic()
            wait_until(lambda: writers(one) == 4, RECOVERY_S, "its duties taken over")  # noqa: B023
            taken = time.monotonic()
            assert one.metric("gateway_peer_inflight_requests") == 0
            field.breathe(40)
            rough = field.traffic.between(killed, time.monotonic())
            # those that it was answering break off; a client sees no error of the survivor's
            assert {sample.status for sample in rough} <= {200, 0}
            assert sum(sample.status == 0 for sample in rough) <= 2
            field.note(calm, rough, load_gone_s=noticed - killed, writers_again_s=taken - killed)
            # the same list: traffic goes to whoever is in it
            field.replicas[1] = field.site.gateway(engines=field.engines)
            field.site.wait(field.replicas[1], workers=4)
            wait_until(field.peers(), RECOVERY_S, "the new replica")
        field.verify()


def test_worker_killed(tmp_path: Path) -> None:
    with (
        standalone(tmp_path / "redis") as redis,
        battlefield(tmp_path / "site", "worker killed", redis.url) as field,
    ):
        for number in range(ROUNDS):
            victim = field.engines[number % 4]
            began = field.breathe()
            killed = time.monotonic()
            calm = field.traffic.between(began, killed)
            field.site.kill(victim.process)
            dead = time.monotonic()
            field.breathe(60)
            rough = field.traffic.between(killed, time.monotonic())
            # its own answers, two at most, may end in an error; nobody is sent there any more
            assert sum(sample.status != 200 for sample in rough) <= 2
            assert victim.url not in {s.worker for s in field.traffic.between(dead, time.monotonic())}
            field.site.restart(victim)
            field.site.wait(victim, *field.replicas, workers=4)
            field.note(calm, rough)
        field.verify()


def test_agent_killed(tmp_path: Path) -> None:
    with (
        standalone(tmp_path / "redis") as redis,
        battlefield(tmp_path / "site", "agent killed", redis.url, agents=True) as field,
    ):
        first = len(field.site.processes) - 4
        agents = field.site.processes[first:]
        for number in range(ROUNDS):
            began = field.breathe()
            killed = time.monotonic()
            calm = field.traffic.between(began, killed)
            field.site.kill(agents[number % 4])
            silent = [f'silent; its engine still answers", "worker": "{field.engines[number % 4].url}']
            one = field.replicas[0]
            wait_until(lambda: silent[0] in one.log.read_text(), RECOVERY_S, "the silence")  # noqa: B023
            field.breathe(40)
            rough = field.traffic.between(killed, time.monotonic())
            clean(calm + rough)
            assert len(one.workers()) == 4
            field.note(calm, rough)
            agents[number % 4] = field.site.agent(engine=field.engines[number % 4])
        field.verify()


def test_partition_of_one_replica(tmp_path: Path) -> None:
    with ExitStack() as stack:
        redis = stack.enter_context(standalone(tmp_path / "redis"))
        proxy = stack.enter_context(stalling_proxy(redis.port))
        field = stack.enter_context(
            battlefield(
                tmp_path / "site", "one replica cut off from Redis", redis.url,
                second_url=f"redis://127.0.0.1:{proxy.port}/0",
            )
        )  # fmt: skip
        one, two = field.replicas
        for _ in range(ROUNDS):
            began = field.breathe()
            cut = time.monotonic()
            calm = field.traffic.between(began, cut)
            proxy.stall()
            wait_until(lambda: one.metric("gateway_peers") == 0, RECOVERY_S, "the peer gone")
            gone = time.monotonic()
            wait_until(lambda: two.metric("gateway_sharing_up") == 0, RECOVERY_S, "the cut noticed")
            field.breathe(60)
            proxy.heal()
            healed = time.monotonic()
            wait_until(lambda: field.sharing(1)() and field.peers()(), RECOVERY_S, "sharing again")
            again = time.monotonic()
            rough = field.traffic.between(cut, again)
            clean(calm + rough)
            field.note(calm, rough, load_gone_s=gone - cut, converged_s=again - healed)
        field.verify()


def test_sentinel_master_killed(tmp_path: Path) -> None:
    with (
        sentinel_group(tmp_path / "redis") as group,
        battlefield(tmp_path / "site", "Sentinel: master killed", group.url) as field,
    ):
        servers = {group.master.port: group.master, group.replica.port: group.replica}
        for _ in range(ROUNDS):
            began = field.breathe()
            master = servers[group.master_port()]
            killed = time.monotonic()
            calm = field.traffic.between(began, killed)
            master.kill()
            wait_until(lambda: group.master_port() != master.port, 60, "the failover")  # noqa: B023
            elected = time.monotonic()
            wait_until(lambda: field.sharing(1)() and field.peers()(), RECOVERY_S, "sharing again")
            again = time.monotonic()
            field.breathe(40)
            rough = field.traffic.between(killed, time.monotonic())
            clean(calm + rough)
            field.note(calm, rough, failover_s=elected - killed, converged_s=again - elected)
            master.start()
            _becomes_replica(group.master_port(), servers)
        field.verify()


def _becomes_replica(master: int, servers: dict[int, object]) -> None:
    import redis

    (other,) = servers.keys() - {master}

    def linked() -> bool:
        with redis.Redis(port=other) as client:
            info = client.info("replication")
        return info["role"] == "slave" and info["master_link_status"] == "up"

    wait_until(linked, 60, "the old master as a replica")


def test_cluster_master_killed(tmp_path: Path) -> None:
    with (
        cluster(tmp_path / "redis") as nodes,
        battlefield(tmp_path / "site", "Cluster: a master killed and back", nodes.url) as field,
    ):
        for number in range(ROUNDS):
            master = nodes.masters[number % 3]
            began = field.breathe()
            killed = time.monotonic()
            calm = field.traffic.between(began, killed)
            master.kill()
            field.breathe(60)
            master.start()
            started = time.monotonic()
            wait_until(nodes.whole, 60, "a cluster that is whole")
            back = time.monotonic()
            wait_until(lambda: field.sharing(1)() and field.peers()(), RECOVERY_S, "sharing again")
            again = time.monotonic()
            rough = field.traffic.between(killed, again)
            clean(calm + rough)
            field.note(calm, rough, rejoined_s=back - started, converged_s=again - back)
        field.verify()
