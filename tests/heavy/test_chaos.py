"""Everything that can die, killed again and again with load on. `make chaos`; CHAOS_ROUNDS says how often.

Beside the two replicas that share stands a control: a gateway without Redis, before the same engines, under
the same load at the same time. What else the machine does meets all three alike, so what a loss adds is the
change of the replicas' p99 less the change of the control's. Nobody asks a gateway anything while that is
measured: what happened is read from its log.

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
import psutil
import pytest

from tests.e2e.conftest import Fleet
from tests.e2e.proxy import stalling_proxy
from tests.e2e.replicas import Engine, Site, site
from tests.heavy.said import AGENT_SILENT, WRITES, Said
from tests.heavy.steady import Sample, Steady, steady
from tests.servers import cluster, sentinel_group, standalone

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "5"))
RECOVERY_S = 30.0
"""Patience; what it really took is measured."""
CALM_S, ROUGH_S = 5.0, 5.0
"""How long is measured before a loss, and from it on at least."""
SHARED, CONTROL = 0, 1
WORST = 10
"""One in so many times of a window is kept, the slowest: they tell the p99 of all rounds together."""


def wait_until(condition: Callable[[], bool], timeout: float, what: str) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {timeout} s"
        time.sleep(0.05)


@dataclass
class Window:
    """What was sent to one group of gateways in some seconds."""

    samples: list[Sample]
    cpu: float
    """Of one gateway of the group, in seconds a second."""

    def row(self) -> dict[str, object]:
        slowest = sorted((sample.seconds for sample in self.samples), reverse=True)
        kept = slowest[: len(slowest) // WORST + 1]
        return {
            "n": len(slowest),
            "cpu": round(self.cpu, 3),
            "worst_ms": [round(1000 * seconds, 1) for seconds in kept],
        }


class Stopwatch:
    """CPU that processes use from now on."""

    def __init__(self, *processes: int) -> None:
        self._processes = [psutil.Process(pid) for pid in processes]
        self._used, self.began = self._now(), time.time()

    def _now(self) -> list[float]:
        return [times.user + times.system for times in (p.cpu_times() for p in self._processes)]

    def stop(self) -> list[float]:
        """Seconds a second, of each."""
        took = time.time() - self.began
        return [(now - used) / took for now, used in zip(self._now(), self._used, strict=True)]


@dataclass
class Field:
    """Two replicas and their control, four engines, and traffic."""

    site: Site
    engines: list[Engine]
    replicas: list[Fleet]
    control: Fleet
    said: list[Said]
    """What each replica says."""
    traffic: Steady
    scenario: str
    watch: Stopwatch = field(init=False)
    calm: list[Window] = field(init=False)

    def share(self) -> bool:
        """All hear each other."""
        return all(said.shares(len(self.replicas) - 1) for said in self.said)

    def cut_off(self) -> bool:
        """None hears any other."""
        return all(said.cut_off() for said in self.said)

    def breathe(self) -> float:
        """Some seconds without trouble, measured; then a loss may come, and the time is now."""
        self.watch = self._stopwatch()
        time.sleep(CALM_S)
        self.calm = self._measured()
        self.watch = self._stopwatch()
        return self.watch.began

    def note(self, **measured: float) -> tuple[list[Sample], list[Sample]]:
        """All that was sent to the replicas in calm and since, once that is long enough."""
        time.sleep(max(0.0, self.watch.began + ROUGH_S - time.time()))
        rough = self._measured()
        calm_ones, rough_ones = self.calm[SHARED].samples, rough[SHARED].samples
        answers = Counter(sample.status for sample in calm_ones + rough_ones)
        line: dict[str, object] = {
            "scenario": self.scenario,
            "requests": len(calm_ones) + len(rough_ones),
            "answers": {str(status): count for status, count in answers.items()},
            "calm": self.calm[SHARED].row(),
            "rough": rough[SHARED].row(),
            "control_calm": self.calm[CONTROL].row(),
            "control_rough": rough[CONTROL].row(),
            **{name: round(max(0.0, value), 2) for name, value in measured.items()},
        }
        if path := os.environ.get("CHAOS_RESULTS"):
            with Path(path).open("a") as out:
                out.write(json.dumps(line) + "\n")
        assert {s.status for s in self.calm[CONTROL].samples} == {200}
        return calm_ones, rough_ones

    def _stopwatch(self) -> Stopwatch:
        return Stopwatch(self.replicas[0].process.pid, self.control.process.pid)

    def _measured(self) -> list[Window]:
        began, end, cpu = self.watch.began, time.time(), self.watch.stop()
        time.sleep(0.5)  # for the last of them to end; one that takes longer is not counted
        return [Window(self.traffic.between(began, end, group), cpu[group]) for group in (SHARED, CONTROL)]

    def verify(self) -> None:
        """Without traffic, both replicas' indexes and Redis come to the same, block by block."""
        self.traffic.stop()
        wait_until(lambda: all(map(_clean, self.replicas)), 60, "`index verify` clean")


def _clean(replica: Fleet) -> bool:
    answer = httpx.post(replica.admin + "/admin/index/shared/verify", trust_env=False, timeout=60).json()
    return bool(answer["clean"]) and len(answer["workers"]) == 4


def ports(*gateways: Fleet) -> list[int]:
    return [int(gateway.url.rpartition(":")[2]) for gateway in gateways]


@contextmanager
def battlefield(
    folder: Path,
    scenario: str,
    redis_url: str,
    *,
    second_url: str | None = None,
    agents: bool = False,
    silent: int = 0,
) -> Iterator[Field]:
    """`second_url` is the second replica's way to the same Redis. So many engines are `silent`: they repeat
    nothing."""
    with ExitStack() as stack:
        here = stack.enter_context(site(folder, redis_url))
        alone = stack.enter_context(site(folder / "control", None))
        engines = [here.engine("sim:20us-per-token,1ms-per-step") for _ in range(4)]
        for engine in engines[:silent]:
            engine.repeats = False
        here.wait(*engines)
        known = [] if agents else engines
        more = ["--discovery", "redis"] if agents else []
        replicas = [
            here.gateway(*more, engines=known),
            here.gateway(*more, engines=known, redis_url=second_url),
        ]
        control = alone.gateway(engines=engines)
        if agents:
            for engine in engines:
                here.agent(engine=engine)
        here.wait(*replicas, control, workers=4)
        groups = [ports(*replicas), ports(control)]
        load = stack.enter_context(steady(folder / "traffic", groups))
        said = [Said(replica.log) for replica in replicas]
        field = Field(here, engines, replicas, control, said, load, scenario)
        wait_until(field.share, 60, "peers")
        time.sleep(3.0)  # first times of everything: connections, duties handed over
        yield field


def clean(*samples: list[Sample]) -> None:
    """Every client got its answer."""
    assert {sample.status for part in samples for sample in part} == {200}


def outage(field: Field, lose: Callable[[], object], regain: Callable[[], object]) -> None:
    """Redis is lost and comes back: no request fails, and the replicas hear each other again."""
    for _ in range(ROUNDS):
        field.breathe()
        lose()
        wait_until(field.cut_off, RECOVERY_S, "the loss noticed")
        time.sleep(2.0)
        regain()
        back = time.time()
        wait_until(field.share, RECOVERY_S, "sharing again")
        again = max(said.changed_at for said in field.said)
        clean(*field.note(converged_s=again - back))
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
            emptied = field.breathe()
            client.flushall()
            wait_until(lambda: len(client.keys("pgw:*:registration")) == 4, RECOVERY_S, "agents back")
            clean(*field.note(registered_again_s=time.time() - emptied))
            assert all(len(replica.workers()) == 4 for replica in field.replicas)
        field.verify()


def test_redis_emptied_before_engines_that_repeat_nothing(tmp_path: Path) -> None:
    """With load on, and then again and again with none: no block is lost at either replica, of no worker."""
    with (
        standalone(tmp_path / "redis") as redis,
        battlefield(tmp_path / "site", "FLUSHALL, half without replay", redis.url, silent=2) as field,
        redis.client() as client,
    ):
        field.breathe()
        client.flushall()
        wait_until(lambda: len(client.keys("pgw:*:held")) == 4, RECOVERY_S, "refilled")
        clean(*field.note())
        field.verify()
        before = [blocks(replica) for replica in field.replicas]
        assert before[0] == before[1]
        assert min(before[0].values()) > 0
        for _ in range(ROUNDS):
            client.flushall()
            time.sleep(8.0)  # a lease, and the looks of those who would take it
            assert [blocks(replica) for replica in field.replicas] == before
            field.verify()


def blocks(replica: Fleet) -> dict[str, int]:
    return {worker["id"]: worker["indexed_blocks"] for worker in replica.workers()}


def test_replica_killed(tmp_path: Path) -> None:
    with (
        standalone(tmp_path / "redis") as redis,
        battlefield(tmp_path / "site", "replica killed", redis.url) as field,
    ):
        for _ in range(ROUNDS):
            one, survivor, doomed = field.replicas[0], field.said[0], field.replicas[1]
            killed = field.breathe()
            field.site.kill(doomed.process)
            wait_until(lambda: not survivor.look().peers, RECOVERY_S, "the death noticed")  # noqa: B023
            wait_until(lambda: len(survivor.look().writes) == 4, RECOVERY_S, "its duties taken over")  # noqa: B023
            taken = max(survivor.told(WRITES, killed), default=killed)
            calm, rough = field.note(load_gone_s=survivor.dropped_at - killed, writers_again_s=taken - killed)
            # those that it was answering break off; a client sees no error of the survivor's
            (port,) = ports(doomed)
            clean(calm, [sample for sample in rough if not (sample.status == 0 and sample.port == port)])
            assert one.metric("gateway_peer_inflight_requests") == 0
            field.replicas[1] = field.site.gateway(engines=field.engines, at=doomed)
            field.said[1] = Said(field.replicas[1].log)
            field.site.wait(field.replicas[1], workers=4)
            wait_until(field.share, RECOVERY_S, "the new replica")
        field.verify()


def test_worker_killed(tmp_path: Path) -> None:
    with (
        standalone(tmp_path / "redis") as redis,
        battlefield(tmp_path / "site", "worker killed", redis.url) as field,
    ):
        for number in range(ROUNDS):
            victim = field.engines[number % 4]
            field.breathe()
            field.site.kill(victim.process)
            dead = time.time()
            calm, rough = field.note()
            # its own answers may end in an error; nobody is sent there any more
            later = [sample for sample in rough if sample.at >= dead]
            clean(calm, later)
            assert victim.url not in {sample.worker for sample in later}
            field.site.restart(victim)
            field.site.wait(victim, *field.replicas, field.control, workers=4)
        field.verify()


def test_agent_killed(tmp_path: Path) -> None:
    with (
        standalone(tmp_path / "redis") as redis,
        battlefield(tmp_path / "site", "agent killed", redis.url, agents=True) as field,
    ):
        first = len(field.site.processes) - 4
        agents = field.site.processes[first:]
        for number in range(ROUNDS):
            url = field.engines[number % 4].url
            killed = field.breathe()
            field.site.kill(agents[number % 4])
            wait_until(
                lambda: bool(field.said[0].told(AGENT_SILENT, killed, worker=url)),  # noqa: B023
                RECOVERY_S,
                "the silence",
            )
            clean(*field.note())
            assert len(field.replicas[0].workers()) == 4
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
        one, two = field.said
        for _ in range(ROUNDS):
            cut = field.breathe()
            proxy.stall()
            wait_until(lambda: not one.look().peers and two.cut_off(), RECOVERY_S, "the cut noticed")
            gone = one.dropped_at
            time.sleep(2.0)
            proxy.heal()
            healed = time.time()
            wait_until(field.share, RECOVERY_S, "sharing again")
            again = max(said.changed_at for said in field.said)
            clean(*field.note(load_gone_s=gone - cut, converged_s=again - healed))
        field.verify()


def test_sentinel_master_killed(tmp_path: Path) -> None:
    with (
        sentinel_group(tmp_path / "redis") as group,
        battlefield(tmp_path / "site", "Sentinel: master killed", group.url) as field,
    ):
        servers = {group.master.port: group.master, group.replica.port: group.replica}
        for _ in range(ROUNDS):
            master = servers[group.master_port()]
            killed = field.breathe()
            master.kill()
            wait_until(lambda: group.master_port() != master.port, 60, "the failover")  # noqa: B023
            elected = time.time()
            # not noticed yet, or noticed and over: long enough after, the last word counts
            wait_until(lambda: field.share() and time.time() > elected + 2.0, RECOVERY_S, "sharing again")  # noqa: B023
            again = max(said.changed_at for said in field.said)
            clean(*field.note(failover_s=elected - killed, converged_s=again - elected))
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
            field.breathe()
            master.kill()
            time.sleep(3.0)
            master.start()
            started = time.time()
            wait_until(nodes.whole, 60, "a cluster that is whole")
            back = time.time()
            wait_until(lambda: field.share() and time.time() > back + 2.0, RECOVERY_S, "sharing again")  # noqa: B023
            again = max(said.changed_at for said in field.said)
            clean(*field.note(rejoined_s=back - started, converged_s=again - back))
        field.verify()
