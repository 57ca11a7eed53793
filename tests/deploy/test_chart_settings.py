"""What the gateway would refuse at its start, the chart refuses, and nothing else: both are asked."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gateway import parts
from gateway.api.endpoints import EndpointTable
from gateway.errors import ConfigError
from gateway.fleet.addresses import AddressRules
from gateway.routing.observer import NullObserver
from gateway.settings import PREFIX
from gateway.settings_load import load
from tests.deploy.charts import command, refusal
from tests.deploy.tools import Tools

OF_KUBERNETES = {"discovery": "kubernetes", "kubernetes_selector": "app=x", "redis_url": "redis://r"}


def gateway_says(env: dict[str, str], config: dict[str, Any], tmp_path: Path, patch: Any) -> str:
    """What a gateway in a pod of the chart's would say of these settings; empty where it would start."""
    for name, value in env.items():
        patch.setenv(name, value)
    file = tmp_path / "gateway.yaml"
    file.write_text(json.dumps(OF_KUBERNETES | config))
    try:
        settings = load({}, file)
        parts.policies(settings, Random(1), NullObserver())
        parts.door(settings)
        EndpointTable(settings.passthrough_paths)
        AddressRules.of(settings.worker_networks)
    except ConfigError as error:
        return error.message
    return ""


VARIABLES = [
    ("TRIES", "abc"), ("TRIES", "11"), ("TRIES", "0"), ("TRIES", "3"), ("TRIES", "3.0"), ("TRIES", "3.5"),
    ("TRIES", " 3 "), ("TRIES", ""), ("TYPO", "1"), ("TRY", "3"), ("ADMIN_URL", "http://127.0.0.1:8081"),
    ("ACCESS_LOG", "maybe"), ("ACCESS_LOG", "off"), ("ACCESS_LOG", "TRUE"), ("LOG_LEVEL", "loud"),
    ("LOG_LEVEL", "debug"), ("REDIS_TIMEOUT", "0"), ("REDIS_TIMEOUT", ".5"), ("REDIS_TIMEOUT", "1e-1"),
    ("REDIS_TIMEOUT", "soon"), ("REDIS_TIMEOUT", "inf"), ("TRACE_RATIO", "1.1"), ("SEED", "7"), ("SEED", "x"),
    ("WORKER_MAX_REQUESTS", "0"), ("POLICY", "best"), ("POLICY", "product"), ("SHADOW_POLICY", "best"),
    ("POLICY_PARAMS", '{"bogus": 1}'), ("POLICY_PARAMS", '{"work_weight": -1}'), ("POLICY_PARAMS", "work=1"),
    ("POLICY_PARAMS", '{"work_weight": 1.5}'), ("MODEL_POLICIES", '{"m": "best"}'),
    ("MODEL_POLICIES", '{"m": "product"}'), ("PASSTHROUGH_PATHS", "v1/x"), ("PASSTHROUGH_PATHS", "/x /y/*"),
    ("PASSTHROUGH_PATHS", "/v1/*/x"), ("PASSTHROUGH_PATHS", '["/x"]'), ("WORKER_NETWORKS", "10.0.0.0/99"),
    ("WORKER_NETWORKS", "10.0.0.1/8 fc00::/7 10.0.0.7"), ("CORS_ORIGINS", "example.com"),
    ("CORS_ORIGINS", "https://a,https://b"), ("CORS_ORIGINS", "https://a:443"), ("CORS_ORIGINS", "* https://a"),
    ("OTLP_ENDPOINT", "foo"), ("OTLP_ENDPOINT", "http://collector:4318/v1/traces"), ("DOOR_HEADERS", "x-* y"),
    ("DOOR_HEADERS", "x-*-y"), ("DOOR_HEADERS", "*"), ("DNS_SERVER", "10.0.0.10"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), VARIABLES)
def test_a_variable_that_the_gateway_refuses(
    helm4: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    variable = PREFIX + name
    refused = gateway_says({variable: value}, {}, tmp_path, monkeypatch)
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({"gateway": {"env": [{"name": variable, "value": value}]}}))
    done = helm4.run(helm4.helm, *command(values))
    assert (done.returncode != 0) == bool(refused), (refused, done.stderr)
    if refused:
        assert f"gateway.env: {variable}" in done.stderr


CONFIG: list[dict[str, Any]] = [
    {"policy_params": {"bogus": 1}}, {"policy_params": {"work_weight": 2}},
    {"policy_params": {"work_weight": "2"}}, {"policy_params": {"work_weight": "heavy"}},
    {"policy_params": {"work_weight": -0.5}}, {"policy": "product", "policy_params": {"work_weight": 2}},
    {"policy": "explore", "policy_params": {"exploit_above": 0.25}},
    {"policy": "prefix_gate", "policy_params": {"gate": 2.5}},
    {"policy": "prefix_gate", "policy_params": {"gate": 2, "deviations": -1}},
    {"policy": "round_robin", "policy_params": {"work_weight": 2}},
    {"policy": "additive", "policy_params": {"overlap_weight": 1e308}},
    {"policy": "additive", "policy_params": {"overlap_weight": 1000000}},
    {"policy": "consistent_hash", "policy_params": {"points": 257}},
    {"policy": "consistent_hash", "policy_params": {"points": 256}}, {"max_ttft": 1e308}, {"max_ttft": 1e9},
    {"slice_tokens": 10**12}, {"dns_interval": 5e-324},
    {"passthrough_paths": ["v1/x"]}, {"passthrough_paths": ["/x", "/y/*"]}, {"passthrough_paths": ["/a*b"]},
    {"worker_networks": ["10.0.0.0/99"]}, {"worker_networks": ["10.0.0.1/8", "fc00::/7", "10.0.0.7"]},
    {"worker_networks": ["somewhere"]}, {"cors_origins": ["example.com"]}, {"cors_origins": ["http://a:80"]},
    {"cors_origins": ["https://chat.example", "http://10.0.0.1:3000", "null"]}, {"otlp_endpoint": "foo"},
    {"otlp_endpoint": "https://collector/v1/traces"}, {"door_headers": ["x-*-y"]}, {"door_headers": ["x-*"]},
    {"dns_server": "10.0.0.10"}, {"tries": 0}, {"idle_timeout": 0},
    {"workers_file": ""}, {"otlp_endpoint": ""},
]  # fmt: skip


@pytest.mark.parametrize("config", CONFIG, ids=str)
def test_settings_that_the_gateway_refuses(
    helm4: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> None:
    refused = gateway_says({}, config, tmp_path, monkeypatch)
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({"gateway": {"config": config}}))
    done = helm4.run(helm4.helm, *command(values))
    assert (done.returncode != 0) == bool(refused), (refused, done.stderr)


def test_parameters_are_those_of_the_policy_that_a_variable_chooses(helm4: Tools, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    env = [{"name": "GATEWAY_POLICY", "value": "explore"}]
    config = {"policy_params": {"exploit_above": 0.3}}
    values.write_text(json.dumps({"gateway": {"env": env, "config": config}}))
    assert helm4.run(helm4.helm, *command(values)).returncode == 0
    said = refusal(helm4, values, "gateway.config.policy_params.work_weight=2")
    assert "policy explore has no parameter work_weight; it has: exploit_above" in said


def test_the_value_of_a_variable_is_not_repeated(helm4: Tools, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    env = [{"name": "GATEWAY_OTLP_ENDPOINT", "value": "collector/s3cret"}]
    values.write_text(json.dumps({"gateway": {"env": env}}))
    assert "s3cret" not in refusal(helm4, values)


def test_a_variable_out_of_a_secret_is_left_to_the_gateway(helm4: Tools, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    env = [{"name": "GATEWAY_TRIES", "valueFrom": source}, {"name": "GATEWAY_NO", "valueFrom": source}]
    values.write_text(json.dumps({"gateway": {"env": env[:1]}}))
    assert helm4.run(helm4.helm, *command(values)).returncode == 0
    values.write_text(json.dumps({"gateway": {"env": env}}))
    assert "gateway.env: GATEWAY_NO: the gateway has no such setting" in refusal(helm4, values)


@pytest.mark.parametrize("kind", ["static", "redis"])
@pytest.mark.parametrize("name", ["port", "eventsPort", "replayPort"])
def test_ports_that_this_discovery_does_not_look_for(helm4: Tools, kind: str, name: str) -> None:
    said = refusal(helm4, None, f"discovery.type={kind}", "workers={http://a:8000}", f"discovery.{name}=8000")
    assert f"discovery.{name} is for discovery.type kubernetes or dns, which is {kind}" in said


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ("image.tag=a b", "tag"), ("image.tag=-a", "tag"), ("image.repository=Bad Repo", "repository"),
        ("image.repository=", "repository"), ("image.repository=registry.example.com/Team/x", "repository"),
        ("image.repository=prefix-gateway:1.0", "repository"), ("redis.internal.image=", "image"),
        ("redis.internal.image=valkey:8:1", "image"), ("engine.image.tag=a/b", "tag"),
        ("engine.image.repository=vllm openai", "repository"), ("extraEngines.b.image.tag=a b", "tag"),
    ],
)  # fmt: skip
def test_no_image_has_such_a_name(helm4: Tools, wrong: str, where: str) -> None:
    said = refusal(helm4, None, wrong)
    assert "schema" in said or "don't meet the specifications" in said
    assert where in said


@pytest.mark.parametrize(
    "right",
    [
        "image.repository=registry.example.com:5000/team/prefix-gateway", "image.repository=localhost/a__b",
        "image.tag=v1.2_3-rc.1", "redis.internal.image=valkey/valkey:8.1-alpine",
        f"redis.internal.image=ghcr.io/valkey@sha256:{'0' * 64}", "redis.internal.image=valkey",
        "engine.image.repository=rocm/vllm-dev",
    ],
)  # fmt: skip
def test_images_that_there_may_be(helm4: Tools, right: str) -> None:
    done = helm4.run(helm4.helm, *command(None, right))
    assert done.returncode == 0, done.stderr
