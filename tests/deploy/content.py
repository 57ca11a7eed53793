"""Rendered charts read as the gateway reads them."""

from __future__ import annotations

from pathlib import Path

from gateway.settings import Settings
from gateway.settings_load import load
from tests.deploy.charts import CHART, Rendered

NAME = "chat-prefix-gateway"


def named(stem: str) -> Path:
    return CHART / "ci" / f"{stem}.yaml"


def settings(rendered: Rendered, tmp_path: Path) -> Settings:
    path = tmp_path / "gateway.yaml"
    path.write_text(rendered.get("ConfigMap", NAME)["data"]["gateway.yaml"])
    env = [e["name"] for e in rendered.container(NAME, "gateway").get("env") or []]
    return load({"redis_url": "redis://redis"} if "GATEWAY_REDIS_URL" in env else {}, path)
