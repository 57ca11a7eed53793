"""A real Prometheus of Debian's that scrapes what it is told to, with our rules."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.debian import program
from tests.e2e.conftest import ROOT, wait_until
from tests.servers import free_tcp_port

RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"


@dataclass
class Prometheus:
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def query(self, expr: str) -> list[dict[str, Any]]:
        """An instant vector. Fails with Prometheus' own words where it is not one."""
        answer = self._get("query", query=expr)
        assert answer["resultType"] in ("vector", "scalar"), expr
        return list(answer["result"]) if answer["resultType"] == "vector" else []

    def range(self, expr: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        answer = self._get("query_range", query=expr, start=start, end=end, step=step)
        rows: list[dict[str, Any]] = answer["result"]
        return rows

    def metrics(self) -> set[str]:
        return set(self._get("label/__name__/values"))

    def firing(self) -> dict[str, list[dict[str, str]]]:
        """Labels of what fires, by alert."""
        out: dict[str, list[dict[str, str]]] = {}
        for alert in self._get("alerts")["alerts"]:
            if alert["state"] == "firing":
                out.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return out

    def _get(self, path: str, **params: Any) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=params, trust_env=False, timeout=30)
        body = answer.json()
        assert body["status"] == "success", f"{params}: {body}"
        return body["data"]


@contextmanager
def prometheus(folder: Path, jobs: dict[str, Sequence[str]], every: str = "1s") -> Iterator[Prometheus]:
    """`jobs`: job → targets as host:port. Scrapes and evaluates `every` second."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": list(targets)}]} for job, targets in jobs.items()
        ],
    }
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(config))  # JSON is YAML
    tool = program("prometheus", "prometheus", "promtool", alone=True)["prometheus"]
    port, log = free_tcp_port(), folder / "prometheus.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(tool.path), f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=1h",
             "--enable-feature=exemplar-storage"],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **tool.env},
            start_new_session=True,
        )  # fmt: skip
    made = Prometheus(f"http://127.0.0.1:{port}", process, log)

    def ready() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            return httpx.get(made.url + "/-/ready", trust_env=False, timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_until(ready, 60, "Prometheus")
        yield made
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
