"""What the chart's objects say, against what the gateway, its discovery and the engines really read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from gateway.fleet.discovery.objects import read_pod, read_slice
from gateway.fleet.discovery.ports import PortRules
from gateway.fleet.worker import WorkerSpec
from gateway.planning import Catalog, PlanRequest, plan
from tests.deploy.charts import MATRIX, Object, Rendered, refusal, render
from tests.deploy.content import NAME, named, settings
from tests.deploy.tools import Tools
from workers.__main__ import main as workers_cli


@pytest.mark.parametrize("values", [None, *MATRIX], ids=lambda path: path.stem if path else "defaults")
def test_the_gateway_takes_the_settings_that_are_rendered(
    helm4: Tools, values: Path | None, tmp_path: Path
) -> None:
    found = settings(render(helm4, values), tmp_path)
    assert (found.host, found.port, found.admin_port) == ("0.0.0.0", 8080, 8081)


def test_settings_of_the_sets(helm4: Tools, tmp_path: Path) -> None:
    default = settings(render(helm4), tmp_path)
    assert (default.discovery, default.kubernetes_resource) == ("kubernetes", "pods")
    assert default.kubernetes_selector == f"prefix-gateway.io/fleet={NAME}"
    assert (default.kubernetes_namespace, default.redis_prefix, default.open_metrics) == ("llm", NAME, True)
    existing = settings(render(helm4, named("existing")), tmp_path)
    assert (existing.kubernetes_selector, existing.kubernetes_namespace) == ("app=vllm", "models")
    assert (existing.discovery_port, existing.discovery_events_port) == ("8000", "none")
    external = settings(render(helm4, named("external")), tmp_path)
    assert (external.dns_names, len(external.workers)) == (("_http._tcp.vllm.example.com",), 1)
    everything = settings(render(helm4, named("everything")), tmp_path)
    assert everything.api_keys_file == Path("/etc/prefix-gateway/keys/keys.yaml")
    assert everything.tls_client_ca is None
    mtls = settings(render(helm4, named("mtls")), tmp_path)
    assert mtls.tls_client_ca == Path("/etc/prefix-gateway/tls/ca.crt")
    assert everything.admin_tls_cert == Path("/etc/prefix-gateway/admin-tls/tls.crt")
    assert everything.worker_api_key_file == Path("/etc/prefix-gateway/engine-key/api-key")
    assert (everything.aliases, everything.tries) == ({"default": "Qwen/Qwen2.5-7B-Instruct"}, 4)
    # every file that settings name is mounted
    mounts = {
        m["mountPath"] for m in render(helm4, named("everything")).container(NAME, "gateway")["volumeMounts"]
    }
    for path in (everything.api_keys_file, everything.tls_cert, everything.admin_tls_cert,
                 everything.worker_api_key_file, everything.admin_token_file):  # fmt: skip
        assert path is not None
        assert str(path.parent) in mounts


def test_several_processes_a_pod(helm4: Tools, tmp_path: Path) -> None:
    one, four = render(helm4), render(helm4, None, "gateway.processes=4")
    assert "processes" not in one.get("ConfigMap", NAME)["data"]["gateway.yaml"]
    assert settings(four, tmp_path).processes == 4
    assert one.container(NAME, "gateway")["resources"] == {
        "requests": {"cpu": "1", "memory": "512Mi"}, "limits": {"memory": "2Gi"},
    }  # fmt: skip
    assert four.container(NAME, "gateway")["resources"] == {
        "requests": {"cpu": "4", "memory": "2048Mi"}, "limits": {"memory": "8Gi"},
    }  # fmt: skip
    # numbers, parts of a core, sizes without a unit, and none at all
    odd = ["requests.cpu=500m", "requests.memory=1.5Gi", "limits.cpu=2", "limits.memory=2000000000"]
    sets = [f"gateway.resources.{each}" for each in odd]
    assert render(helm4, None, "gateway.processes=3", *sets).container(NAME, "gateway")["resources"] == {
        "requests": {"cpu": "1500m", "memory": "4.5Gi"}, "limits": {"cpu": "6", "memory": "6000000000"},
    }  # fmt: skip
    none = render(helm4, None, "gateway.processes=3", "gateway.resources=null")
    assert none.container(NAME, "gateway")["resources"] == {}


def test_processes_want_redis_and_are_said_in_one_place(helm4: Tools) -> None:
    alone = ["gateway.processes=2", "gateway.replicas=1", "redis.mode=none"]
    assert "gateway.processes > 1 needs Redis" in refusal(helm4, None, *alone)
    assert "processes" in refusal(helm4, None, "gateway.processes=0")


def pods(rendered: Rendered, deployment: str) -> Object:
    """A pod as the cluster would make it of a Deployment's template."""
    template = rendered.get("Deployment", deployment)["spec"]["template"]
    return {
        "metadata": {"name": "p-0", "namespace": "llm", "uid": "u", **template["metadata"]},
        "spec": template["spec"],
        "status": {
            "phase": "Running",
            "podIP": "10.1.2.3",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


@pytest.mark.parametrize(
    ("values", "deployment", "weight"),
    [("trial", f"{NAME}-engine", 1.0), ("everything", f"{NAME}-engine", 2.0), ("keda", f"{NAME}-engine", 1.0),
     ("everything", f"{NAME}-large", 2.0)],
)  # fmt: skip
def test_discovery_finds_the_chart_s_own_engines(
    helm4: Tools, values: str, deployment: str, weight: float, tmp_path: Path
) -> None:
    rendered = render(helm4, named(values))
    pod = pods(rendered, deployment)
    key, _, value = settings(rendered, tmp_path).kubernetes_selector.partition("=")
    assert pod["metadata"]["labels"][key] == value
    (member,) = read_pod(pod, PortRules()).members
    assert member.spec == WorkerSpec(
        "http://10.1.2.3:8000", events="tcp://10.1.2.3:5557", replay="tcp://10.1.2.3:5558", weight=weight
    )
    assert member.not_ready is None


@pytest.mark.parametrize("values", ["trial", "everything"])
def test_discovery_finds_them_in_slices_too(helm4: Tools, values: str, tmp_path: Path) -> None:
    rendered = render(helm4, named(values), "discovery.resource=endpointslices")
    found = settings(rendered, tmp_path)
    assert found.kubernetes_resource == "endpointslices"
    key, _, value = found.kubernetes_selector.partition("=")
    pools = [n for n in rendered.names("Deployment") if n not in (NAME, f"{NAME}-redis")]
    for pool in pools:
        service = rendered.get("Service", pool)
        pod = rendered.get("Deployment", pool)["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= pod.items()
        # the cluster copies a Service's labels to its slices, and the names of its ports
        labels = {**service["metadata"]["labels"], "kubernetes.io/service-name": pool}
        assert labels[key] == value
        ports = [{"name": p["name"], "port": p["port"]} for p in service["spec"]["ports"]]
        ends = [{"addresses": ["10.1.2.3"], "conditions": {"ready": True, "serving": True}}]
        piece = {
            "metadata": {"name": f"{pool}-x", "namespace": "llm", "uid": "u", "labels": labels},
            "addressType": "IPv4", "ports": ports, "endpoints": ends,
        }  # fmt: skip
        (member,) = read_slice(piece, PortRules()).members
        assert member.spec == WorkerSpec(
            "http://10.1.2.3:8000", events="tcp://10.1.2.3:5557", replay="tcp://10.1.2.3:5558"
        )
    others = [n for n in rendered.names("Service") if n not in pools]
    assert not any(key in rendered.get("Service", n)["metadata"]["labels"] for n in others)


def flags(args: list[str]) -> dict[str, str]:
    """Of `--name=value` and `--name`; twice the same is a fault."""
    found: dict[str, str] = {}
    for arg in args:
        name, _, value = arg.partition("=")
        assert name not in found, f"{name} is given twice"
        found[name] = value
    return found


def test_vllm_gets_what_the_gateway_lives_on(helm4: Tools) -> None:
    engine = render(helm4).container(f"{NAME}-engine", "engine")
    assert engine["command"] == ["vllm", "serve"]
    assert engine["args"][0] == "Qwen/Qwen2.5-7B-Instruct"
    given = flags(engine["args"][1:])
    assert {"--enable-prefix-caching", "--enable-prompt-tokens-details"} <= given.keys()
    events = json.loads(given["--kv-events-config"])
    assert events["enable_kv_cache_events"] is True
    assert (events["endpoint"], events["replay_endpoint"]) == ("tcp://*:5557", "tcp://*:5558")
    assert engine["resources"] == {"limits": {"nvidia.com/gpu": 1}}


def test_sglang_gets_it_too_with_an_agent_where_agents_register(helm4: Tools) -> None:
    rendered = render(helm4, named("sglang"))
    engine = rendered.container(f"{NAME}-engine", "engine")
    given = flags(engine["args"])
    assert given["--model-path"] == "Qwen/Qwen2.5-14B-Instruct"
    assert given["--page-size"] == "16"
    assert json.loads(given["--kv-events-config"])["replay_endpoint"] == "tcp://*:5558"
    assert {"--enable-cache-report", "--enable-metrics"} <= given.keys()
    assert engine["resources"] == {"limits": {"amd.com/gpu": 1}}
    agent = rendered.container(f"{NAME}-engine", "agent")
    assert (
        "--engine=http://$(POD_IP):8000,events=tcp://$(POD_IP):5557,replay=tcp://$(POD_IP):5558"
        in agent["args"]
    )
    assert [e["name"] for e in agent["env"]] == ["POD_IP", "GATEWAY_REDIS_PASSWORD", "GATEWAY_REDIS_URL"]


@pytest.mark.parametrize("engine_type", ["vllm", "sglang", "reference"])
def test_one_key_for_engine_gateway_and_agent(helm4: Tools, tmp_path: Path, engine_type: str) -> None:
    engine = {"type": engine_type, "model": "tiny", "apiKey": {"existingSecret": "s", "key": "k"}}
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({"engine": engine, "discovery": {"type": "redis"}}))
    rendered = render(helm4, values)
    found = rendered.container(f"{NAME}-engine", "engine")
    of_key = [
        e["name"] for e in found["env"] if e.get("valueFrom") == {"secretKeyRef": {"name": "s", "key": "k"}}
    ]
    assert of_key == {"vllm": ["VLLM_API_KEY"], "sglang": ["ENGINE_API_KEY"], "reference": []}[engine_type]
    # vLLM reads the variable itself; Kubernetes puts it into SGLang's arguments
    assert ("--api-key=$(ENGINE_API_KEY)" in found["args"]) == (engine_type == "sglang")
    path = Path("/etc/prefix-gateway/engine-key/api-key")
    assert settings(rendered, tmp_path).worker_api_key_file == path
    agent = rendered.container(f"{NAME}-engine", "agent")
    assert flags(agent["args"][1:])["--worker-api-key-file"] == str(path)
    for deployment, name in ((NAME, "gateway"), (f"{NAME}-engine", "agent")):
        (mount,) = [
            m for m in rendered.container(deployment, name)["volumeMounts"] if m["name"] == "engine-key"
        ]
        assert mount["mountPath"] == str(path.parent)
        volumes = rendered.get("Deployment", deployment)["spec"]["template"]["spec"]["volumes"]
        (volume,) = [each for each in volumes if each["name"] == "engine-key"]
        assert volume["secret"] == {"secretName": "s", "items": [{"key": "k", "path": path.name}]}


def test_a_pool_with_a_key_of_its_own_is_refused(helm4: Tools) -> None:
    for sets in (
        ("extraEngines.b.apiKey.existingSecret=t",),
        ("engine.apiKey.existingSecret=s", "extraEngines.b.apiKey.key=other"),
    ):
        assert "extraEngines.b.apiKey: the gateway shows all engines one key" in refusal(helm4, None, *sets)
    without = render(helm4, None, "engine.apiKey.existingSecret=s", "extraEngines.b.apiKey.existingSecret=")
    env = without.container(f"{NAME}-b", "engine")["env"]
    assert not any("API_KEY" in e["name"] for e in env)


def test_agents_understand_their_arguments(helm4: Tools) -> None:
    from gateway.cli.main import cli

    args = render(helm4, named("sglang")).container(f"{NAME}-engine", "agent")["args"]
    command = cli.get_command(click.Context(cli), args[0])
    assert command is not None
    given = [a.replace("$(POD_IP)", "10.0.0.1") for a in args[1:]]
    context = command.make_context("agent", [*given, "--redis-url=redis://r"])
    assert context.params["redis_prefix"] == NAME


def test_large_numbers_stay_whole(helm: Tools, tmp_path: Path) -> None:
    pool = {
        "args": ["--max-model-len", 1048576, "--gpu-memory-utilization", 0.92, "--seed", 7],
        "sharedMemory": 8589934592, "modelCache": {"type": "pvc", "size": 107374182400},
        "autoscaling": {"enabled": True, "targetInflight": 2000000}, "servedModelName": "a",
    }  # fmt: skip
    gateway = {
        "config": {"max_body_bytes": 104857600}, "processes": 2,
        "resources": {"limits": {"memory": 3000000000}, "requests": {"cpu": 1}},
    }  # fmt: skip
    values = tmp_path / "values.yaml"
    other = {"servedModelName": "b", "autoscaling": {"type": "hpa"}}
    values.write_text(yaml.safe_dump({"engine": pool, "gateway": gateway, "extraEngines": {"b": other}}))
    rendered = render(helm, values)
    args = rendered.container(f"{NAME}-engine", "engine")["args"]
    assert args[3:9] == ["--max-model-len", "1048576", "--gpu-memory-utilization", "0.92", "--seed", "7"]
    config = rendered.get("ConfigMap", NAME)["data"]["gateway.yaml"]
    assert "max_body_bytes: 104857600\n" in config + "\n"
    assert rendered.container(NAME, "gateway")["resources"] == {
        "limits": {"memory": "6000000000"}, "requests": {"cpu": "2", "memory": "1024Mi"},
    }  # fmt: skip
    claim = rendered.get("PersistentVolumeClaim", f"{NAME}-engine-models")["spec"]
    assert claim["resources"]["requests"] == {"storage": 107374182400}
    volumes = rendered.get("Deployment", f"{NAME}-engine")["spec"]["template"]["spec"]["volumes"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": 8589934592}} in volumes
    (trigger,) = rendered.get("ScaledObject", f"{NAME}-engine")["spec"]["triggers"]
    assert trigger["metadata"]["threshold"] == "2000000"
    (metric,) = rendered.get("HorizontalPodAutoscaler", f"{NAME}-b")["spec"]["metrics"]
    assert metric["object"]["target"]["averageValue"] == "2000000"
    assert "e+0" not in rendered.text.split("kind: ConfigMap")[0]


def test_the_longest_names_stay_apart(helm4: Tools) -> None:
    full, pools = "a" * 40, ("b" * 19 + "1", "b" * 19 + "2")
    sets = [f"extraEngines.{pool}.replicas=1" for pool in pools]
    rendered = render(helm4, None, f"fullnameOverride={full}", *sets)
    made = {f"{full}-{pool}" for pool in pools}
    assert made <= set(rendered.names("Deployment"))
    assert made <= set(rendered.names("Service"))
    assert all(len(name) <= 63 for name in rendered.names("Service"))


def test_the_reference_worker_understands_its_arguments(helm4: Tools) -> None:
    args = render(helm4, named("trial")).container(f"{NAME}-engine", "engine")["args"]
    command = workers_cli.commands["serve"]
    assert isinstance(command, click.Command)
    context = command.make_context("serve", list(args))
    given = {k: context.params[k] for k in ("model", "host", "port", "kv_events_port", "kv_replay_port")}
    assert given == {
        "model": "tiny", "host": "0.0.0.0", "port": 8000, "kv_events_port": 5557, "kv_replay_port": 5558,
    }  # fmt: skip


@pytest.mark.parametrize(("engine_type", "first"), [("vllm", ""), ("sglang", "--model-path=")])
def test_the_plan_s_chart_values_are_taken_as_they_are(
    helm4: Tools, tmp_path: Path, engine_type: str, first: str
) -> None:
    made = plan(PlanRequest(model="llama-3.1-70b", gpu="h100", gpus=8, kv="fp8"), Catalog.builtin())
    values = tmp_path / "plan.yaml"
    text = made.flags.values if engine_type == "vllm" else made.flags.sglang_values
    values.write_text(text)
    wanted: dict[str, Any] = yaml.safe_load(text)["engine"]
    rendered = render(helm4, values)
    spec = rendered.get("Deployment", f"{NAME}-engine")["spec"]
    engine = rendered.container(f"{NAME}-engine", "engine")
    assert spec["replicas"] == wanted["replicas"]
    assert spec["template"]["spec"]["nodeSelector"] == wanted["nodeSelector"]
    assert engine["resources"]["limits"] == wanted["resources"]["limits"]
    assert engine["args"] == [first + wanted["model"], "--host=0.0.0.0", "--port=8000", *wanted["args"]]
    flags(engine["args"][1:])
