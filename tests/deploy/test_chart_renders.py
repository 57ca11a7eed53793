"""Every set of values in ci/ passes lint, renders, and is valid for Kubernetes; wrong values are refused."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

kubernetes_validate = pytest.importorskip("kubernetes_validate")

from gateway.auth.keys import key_from  # noqa: E402
from gateway.auth.source import read_key_file  # noqa: E402
from gateway.errors import ConfigError  # noqa: E402
from gateway.settings import Settings  # noqa: E402
from tests.deploy.charts import CHART, MATRIX, refusal, render  # noqa: E402
from tests.deploy.custom_kinds import faults, is_custom  # noqa: E402
from tests.deploy.tools import ROOT, Tools, tools  # noqa: E402


@pytest.mark.parametrize("values", MATRIX, ids=lambda path: path.stem)
def test_lint_is_quiet(helm: Tools, values: Path) -> None:
    done = helm.run(helm.helm, "lint", "--strict", str(CHART), "-f", str(values))
    assert "0 chart(s) failed" in done.stdout, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout
    assert "[ERROR]" not in done.stdout


@pytest.mark.parametrize("values", [None, *MATRIX], ids=lambda path: path.stem if path else "defaults")
def test_all_that_is_rendered_is_valid(helm4: Tools, values: Path | None) -> None:
    objects = render(helm4, values).objects
    assert len(objects) > 5
    for item in objects:
        if is_custom(item):
            assert faults(item) == []
        else:
            for version in ("1.29", "1.36"):
                kubernetes_validate.validate(item, version, strict=True)
    names = [(o["apiVersion"], o["kind"], o["metadata"]["name"]) for o in objects]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("values", [None, *MATRIX], ids=lambda path: path.stem if path else "defaults")
def test_both_helms_render_the_same(values: Path | None) -> None:
    four, three = (render(tools(k), values).objects for k in (36, 32))
    assert [o for o in four if o["kind"] != "Secret"] == [o for o in three if o["kind"] != "Secret"]
    assert [o["metadata"] for o in four] == [o["metadata"] for o in three]


def test_the_sets_have_every_kind_of_other_projects_that_the_chart_knows(helm4: Tools) -> None:
    kinds = {o["kind"] for values in MATRIX for o in render(helm4, values).objects if is_custom(o)}
    assert kinds == {
        "ServiceMonitor",
        "PodMonitor",
        "PrometheusRule",
        "ScaledObject",
        "HTTPRoute",
        "BackendTLSPolicy",
    }


def test_the_schemas_of_other_projects_refuse_what_their_servers_do(helm4: Tools) -> None:
    rendered = render(helm4, CHART / "ci" / "everything.yaml")
    monitor = rendered.get("ServiceMonitor", "chat-prefix-gateway")
    monitor["spec"]["endpoints"][0]["intervall"] = "15s"
    monitor["spec"]["endpoints"][0]["interval"] = "often"
    del monitor["spec"]["selector"]
    assert sorted(fault.split(":")[0] for fault in faults(monitor)) == [
        "$.spec", "$.spec.endpoints[0]", "$.spec.endpoints[0].interval",
    ]  # fmt: skip
    route = rendered.get("HTTPRoute", "chat-prefix-gateway")
    route["spec"]["rules"][0]["timeouts"]["request"] = "forever"
    (fault,) = faults(route)
    assert fault.startswith("$.spec.rules[0].timeouts.request: 'forever' does not match")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("gateway.replcas=3", "replcas"),
        ("gateway.replicas=0", "replicas"),
        ("gateway.replicas=two", "replicas"),
        ("engine.type=tgi", "type"),
        ("engine.modelCache.type=nfs", "modelCache"),
        ("engine.resources.limits.memory=lots", "memory"),
        ("discovery.type=consul", "discovery"),
        ("discovery.port=70000", "port"),
        ("redis.mode=cluster", "mode"),
        ("redis.external.url=http://redis", "url"),
        ("redis.internal.maxMemory=1Gi", "maxMemory"),
        ("image.digest=sha256:12", "digest"),
        ("workers={10.0.0.7:8000}", "workers"),
        ("gateway.autoscaling.targetCPU=130", "targetCPU"),
        ("engine.autoscaling.minReplicas=0", "minReplicas"),
        ("gateway.podDisruptionBudget.minAvailable=some", "minAvailable"),
        ("gateway.podDisruptionBudget.maxUnavailable=-1", "maxUnavailable"),
        ("engine.podDisruptionBudget.minAvailable=101%", "minAvailable"),
        ("engine.podDisruptionBudget.atMost=1", "atMost"),
        ("engine.strategy.type=OnDelete", "strategy"),
        ("extraEngines.Large.model=m", "Large"),
        *((f"extraEngines.{own}.model=m", own) for own in ("engine", "admin", "gateway", "redis", "test")),
        ("httpRoute.requestTimeout=forever", "requestTimeout"),
        ("monitoring.interval=often", "interval"),
        ("apiKeys.keys[0].id=a", "hash"),
        ("metrics.enabled=true", "metrics"),
        ("gateway.config.polcy=kv", "polcy"),
        ("discovery.replayPort=65536x-", "replayPort"),
        ("fullnameOverride=Chat", "fullnameOverride"),
        ("nameOverride=1a", "nameOverride"),
        ("discovery.namespace=a.b", "namespace"),
        ("workers={http:///x}", "workers"),
        ("gateway.config.tries=many", "tries"),
        ("gateway.config.tries=11", "tries"),
        ("gateway.config.policy=best", "policy"),
        ("gateway.config.shadow_policy=best", "shadow_policy"),
        ("gateway.config.model_policies.m=best", "model_policies"),
        ("gateway.config.access_log=maybe", "access_log"),
        ("gateway.env[0].value=5", "name"),
        ("gateway.env[0].name=A B", "env"),
        ("gateway.env[0].nme=A", "nme"),
        ("redis.external.url=redis://", "url"),
        ("redis.external.url=redis://a\\,/0", "url"),
        ("ingress.tls[0].secret=s", "secret"),
        ("ingress.hosts={https://chat.example.com}", "hosts"),
        ("ingress.hosts={Chat_1}", "hosts"),
        ("httpRoute.hostnames={chat.example.com:443}", "hostnames"),
        ("networkPolicy.clients[0].namespace=x", "namespace"),
        ("networkPolicy.clients[0].ipBlock.cidr=10.0.0.0", "cidr"),
        ("networkPolicy.admins[0].podSelector.app=x", "app"),
        ("engine.tolerations[0].operator=Exist", "operator"),
        ("engine.tolerations[0].effect=Never", "effect"),
        ("engine.resources.limits.nvidia\\.com/gpu=1.5", "nvidia"),
        ("engine.resources.limits.nvidia\\.com/gpu=500m", "nvidia"),
        ("engine.resources.limits.memory=1.2.3Gi", "memory"),
        ("gateway.topologySpread[0].maxSkew=0", "maxSkew"),
        ("engine.strategy.rollingUpdate.maxSurge=some", "maxSurge"),
        ("commonLabels.team=a b", "team"),
        ("gateway.podLabels.a_=b", "a_"),
        ("gateway.nodeSelector.pool=-x", "pool"),
        ("apiKeys.keys[0].hash=pgw_plain", "hash"),
        ("apiKeys.keys[0].rate=5", "rate"),
        ("discovery.dnsNames={vllm.example.com}", "dnsNames"),
        ("engine.dataParallelSize=0", "dataParallelSize"),
        ("gateway=null", "gateway"),
        ("gateway.service=null", "service"),
        ("engine.strategy=null", "strategy"),
    ],
)
def test_the_schema_refuses_what_is_misspelt_or_wrong(helm4: Tools, wrong: str, said: str) -> None:
    message = refusal(helm4, None, wrong)
    assert "schema" in message or "don't meet the specifications" in message
    assert said in message


def _scaled(name: str) -> tuple[str, ...]:
    return tuple(f"{name}.autoscaling.{each}" for each in ("enabled=true", "minReplicas=9", "maxReplicas=8"))


def _external(url: str, *more: str) -> tuple[str, ...]:
    return ("redis.mode=external", f"redis.external.url={url}", *(f"redis.external.{each}" for each in more))


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("redis.mode=none",), "gateway.replicas > 1 needs Redis"),
        (("redis.mode=external",), "set redis.external.url or redis.external.urlSecret"),
        (("redis.external.url=redis://r",), "redis.mode is internal: set it to external"),
        (_external("redis://r", "urlSecret=u"), "give one of them"),
        (_external("redis://:$(REDIS_PASSWORD)@r"), "leave the password out"),
        (_external("rediss://chat:s3cret@r/0"), "leave the password out"),
        (_external("redis+cluster://:s3cret@a:7000\\,b:7000"), "leave the password out"),
        (_external("redis+sentinel://a:26379/main?sentinel_password=s3cret"), "leave the password out"),
        (_external("redis://r/main"), "a database's number"),
        (_external("redis+cluster://a:7000/1"), "no numbered databases"),
        (_external("redis+sentinel://a:26379"), "the master's name"),
        (_external("rediss+sentinel://a:26379/?ca=/x"), "the master's name"),
        (_external("rediss://r", "tlsSecret=t"), "its files are named in the URL"),
        (_external("rediss://r?ca=/etc/prefix-gateway/redis-tls/ca.crt"), "set redis.external.tlsSecret"),
        (("discovery.type=dns",), "set discovery.dnsNames"),
        (("discovery.type=static",), "set workers"),
        (("discovery.type=redis", "redis.mode=none", "gateway.replicas=1"), "needs redis.mode"),
        (("httpRoute.enabled=true",), "set httpRoute.parentRefs"),
        (("engine.type=reference",), "smollm2 and tiny"),
        (("gateway.config.port=8000",), "gateway.service.port is what clients use"),
        (("gateway.config.admin_host=::",), "a pod's own addresses are fixed"),
        (("tls.requireClientCertificate=true",), "set tls.existingSecret"),
        (
            ("apiKeys.existingSecret=s", "apiKeys.keys[0].id=a", f"apiKeys.keys[0].hash=sha256:{'0' * 64}"),
            "give one",
        ),
        (("ingress.enabled=true", "ingress.hosts=null"), "set ingress.hosts"),
        (_scaled("gateway"), "gateway.autoscaling: minReplicas 9 is above maxReplicas 8"),
        (_scaled("engine"), "engine.autoscaling: minReplicas 9 is above maxReplicas 8"),
        (
            ("extraEngines.b.model=m", *_scaled("extraEngines.b")),
            "extraEngines.b.autoscaling: minReplicas 9 is above maxReplicas 8",
        ),
        (("redis.internal.maxMemory=2gb",), "above the pod's memory limit 1536Mi"),
        (("redis.internal.resources.limits.memory=1000000000",), "above the pod's memory limit 1000000000"),
        (("engine.type=none", "extraEngines.a.model=m"), "give it a type"),
        (("extraEngines.b.type=none",), "extraEngines.b: a pool of type none runs nothing"),
        (
            ("redis.mode=none", "gateway.replicas=1", "gateway.autoscaling.enabled=true"),
            "gateway.autoscaling needs Redis",
        ),
    ],
)
def test_what_cannot_work_together_is_refused_in_words(
    helm4: Tools, sets: tuple[str, ...], said: str
) -> None:
    assert said in refusal(helm4, None, *sets)


def chart_sync() -> Any:
    """What `make chart` runs."""
    spec = importlib.util.spec_from_file_location("chart_sync", ROOT / "deploy/helm/sync.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_says_what_every_value_is() -> None:
    module = chart_sync()
    assert (CHART / "README.md").read_text() == module.readme(), "run: make chart"
    told = {name for name, _ in module.described((CHART / "values.yaml").read_text())}

    def untold(values: object, path: str) -> list[str]:
        if path in told and not (isinstance(values, dict) and any(t.startswith(path + ".") for t in told)):
            return []
        if not isinstance(values, dict):
            return [path]
        return [name for key, value in values.items() for name in untold(value, f"{path}.{key}".lstrip("."))]

    assert untold(yaml.safe_load((CHART / "values.yaml").read_text()), "") == []


def test_the_chart_ships_the_dashboards_and_alerts_of_the_repository() -> None:
    def files(folder: Path) -> dict[str, str]:
        return {path.name: path.read_text() for path in folder.glob("*.json")}

    assert files(CHART / "files" / "dashboards") == files(ROOT / "grafana" / "dashboards"), "run: make chart"
    ours, theirs = CHART / "files" / "rules.yaml", ROOT / "deploy" / "prometheus" / "rules.yaml"
    assert ours.exists() == theirs.exists()
    if theirs.exists():
        assert ours.read_text() == theirs.read_text(), "run: make chart"
    assert not any(path.is_symlink() for path in CHART.rglob("*"))


def test_the_schema_knows_the_settings_of_the_gateway() -> None:
    text = (CHART / "values.schema.json").read_text()
    assert text == chart_sync().schema(), "run: make chart"
    assert (CHART / "files" / "settings.json").read_text() == chart_sync().checks(), "run: make chart"
    config = json.loads(text)["$defs"]["settings"]["properties"]
    assert sorted(config) == sorted(Settings.model_fields)
    assert config["tries"] == {"type": "integer", "minimum": 1, "maximum": 10}
    assert config["worker_max_requests"] == {"type": ["integer", "null"], "minimum": 1, "maximum": 10**9}
    assert config["max_ttft"] == {"type": "number", "minimum": 0, "maximum": 1e9}
    assert "estimated_ttft" in config["policy"]["enum"]
    # what the chart makes itself is refused by its templates, which say what to set instead
    assert config["settle"] is True


def test_the_schema_knows_the_fields_of_a_key_file(helm4: Tools, tmp_path: Path) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    fields = schema["properties"]["apiKeys"]["properties"]["keys"]["items"]["properties"]
    entry: dict[str, object] = {
        "id": "team-a", "hash": "sha256:" + "0" * 64, "hashes": ["sha256:" + "1" * 64], "models": ["qwen*"],
        "priority": 1, "weight": 0.5, "requests_per_minute": 60, "tokens_per_minute": 1000, "max_parallel": 2,
        "cache_salt": "auto", "allow": ["cache_salt"], "expires": "2031-01-01", "disabled": False,
    }  # fmt: skip
    assert fields.keys() == entry.keys()
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({"apiKeys": {"keys": [entry]}}))
    secret = render(helm4, values).get("Secret", "chat-prefix-gateway-api-keys")["stringData"]["keys.yaml"]
    path = tmp_path / "keys.yaml"
    path.write_text(secret)
    (key,) = read_key_file(path)
    assert (key.id, key.models, key.priority, key.limits.max_parallel) == ("team-a", ("qwen*",), 1, 2)
    for field in entry:
        with pytest.raises(ConfigError, match="unknown field"):
            key_from({**entry, field + "s_": 1})


@pytest.mark.parametrize(
    ("port", "good"),
    [("65535", True), ("8000", True), ("http", True), ("65536", False), ("70000", False), ("0", False)],
)
def test_a_port_may_be_text_but_no_more_than_there_are(
    helm4: Tools, tmp_path: Path, port: str, good: bool
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({"discovery": {"port": port}}))
    if good:
        assert f'discovery_port: "{port}"' in render(helm4, values).text.replace("port: http", 'port: "http"')
    else:
        assert "port" in refusal(helm4, values)


@pytest.mark.parametrize("limit", ["1Gi", "1.5G", "1073741824"])
def test_redis_may_fill_its_pod(helm4: Tools, limit: str) -> None:
    rendered = render(helm4, None, f"redis.internal.resources.limits.memory={limit}")
    command = rendered.container("chat-prefix-gateway-redis", "redis")["command"][2]
    assert "--maxmemory 1gb " in command
