"""A replica that joins late gets its share of the writers' duties, with load on, and nobody notices."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.e2e.conftest import Fleet, wait_until
from tests.e2e.replicas import site
from tests.e2e.traffic import traffic
from tests.servers import standalone


def written(replica: Fleet) -> list[str]:
    """Workers whose blocks this replica writes to Redis."""
    rows = replica.get("/admin/index/shared")["workers"]
    return sorted(row["worker"] for row in rows if row["role"] == "writer")


def held(replica: Fleet) -> dict[str, int]:
    """Blocks, by worker."""
    return dict(replica.get("/admin/index")["held"])


def clean(replica: Fleet) -> bool:
    answer = httpx.post(replica.admin + "/admin/index/shared/verify", trust_env=False, timeout=60).json()
    return bool(answer["clean"]) and len(answer["workers"]) == 4


def test_the_duties_are_shared_with_a_late_replica(tmp_path: Path) -> None:
    with standalone(tmp_path / "redis") as redis, site(tmp_path / "site", redis.url) as here:
        engines = [here.engine("sim:20us-per-token,1ms-per-step") for _ in range(4)]
        urls = sorted(engine.url for engine in engines)
        here.wait(*engines)
        first = here.gateway(engines=engines)
        here.wait(first, workers=4)
        wait_until(lambda: written(first) == urls and clean(first), 60, "one writer of all")
        with traffic([first]) as load:
            wait_until(lambda: len({sample.worker for sample in load.samples}) == 4, 60, "traffic on all")
            wait_until(lambda: min(held(first).values()) > 0, 60, "events of all")
            epochs = {row["worker"]: row["epoch"] for row in first.get("/admin/index/shared")["workers"]}
            late = here.gateway(engines=engines)
            here.wait(late, workers=4)
            wait_until(lambda: len(written(first)) == len(written(late)) == 2, 90, "two and two")
            assert sorted(written(first) + written(late)) == urls
            load.halt.set()
        assert {sample.status for sample in load.samples} == {200}
        wait_until(lambda: clean(first) and clean(late), 60, "`index verify` clean")
        rows = late.get("/admin/index/shared")["workers"]
        assert {row["worker"]: row["epoch"] for row in rows} == epochs, "nothing became void"
