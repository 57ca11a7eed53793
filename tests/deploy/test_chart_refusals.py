"""What would contradict the chart's own objects is refused, with the value to set instead."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from gateway.settings import PREFIX, Settings
from tests.deploy.charts import CHART, refusal, render
from tests.deploy.content import NAME, named, settings
from tests.deploy.tools import Tools

OF_CHART = {
    "host": "gateway.service.port is what clients use",
    "port": "gateway.service.port is what clients use",
    "admin_host": "a pod's own addresses are fixed",
    "admin_port": "a pod's own addresses are fixed",
    "processes": "say it as gateway.processes",
    "settle": "say it as gateway.settleSeconds",
    "shutdown_grace": "say it as gateway.drainSeconds",
    "discovery": "say it as discovery.type",
    "discovery_port": "say it as discovery.port",
    "discovery_events_port": "say it as discovery.eventsPort",
    "discovery_replay_port": "say it as discovery.replayPort",
    "kubernetes_selector": "say it as discovery.selector",
    "kubernetes_resource": "say it as discovery.resource",
    "kubernetes_namespace": "say it as discovery.namespace",
    "kubeconfig": "service account",
    "dns_names": "say it as discovery.dnsNames",
    "workers": "say it as workers",
    "tokenizers": "say it as gateway.tokenizers",
    "aliases": "say it as gateway.aliases",
    "redis_url": "say it as redis.mode",
    "redis_password": "a Secret has it, redis.external.existingSecret",
    "redis_prefix": "say it as redis.prefix",
    "api_keys": "say it as apiKeys.keys",
    "api_keys_file": "say it as apiKeys.existingSecret",
    "admin_token": "a Secret has it, admin.existingSecret",
    "admin_token_file": "a Secret has it, admin.existingSecret",
    "open_metrics": "say it as admin.openMetrics",
    "tls_cert": "say it as tls.existingSecret",
    "tls_key": "say it as tls.existingSecret",
    "tls_client_ca": "say it as tls.requireClientCertificate",
    "admin_tls_cert": "say it as tls.adminSecret",
    "admin_tls_key": "say it as tls.adminSecret",
    "admin_tls_client_ca": "the kubelet's probes show no certificate",
    "worker_api_key_file": "say it as engine.apiKey",
}


@pytest.mark.parametrize(("name", "said"), OF_CHART.items())
def test_a_setting_of_the_chart_s_own_is_said_as_a_value(
    helm4: Tools, tmp_path: Path, name: str, said: str
) -> None:
    kinds = {"tokenizers": {"m": "bytes"}, "aliases": {"a": "m"}, "settle": 600, "shutdown_grace": 600}
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({"gateway": {"config": {name: kinds.get(name, "x")}}}))
    assert f"gateway.config.{name}: " in (message := refusal(helm4, values))
    assert said in message
    variable = PREFIX + name.upper()
    values.write_text(json.dumps({"gateway": {"env": [{"name": variable, "value": "x"}]}}))
    assert f"gateway.env: {variable}: " in (message := refusal(helm4, values))
    assert said in message


def test_every_setting_that_the_chart_writes_is_among_them(helm4: Tools) -> None:
    written: set[str] = set()
    for path in [None, *sorted((CHART / "ci").glob("*.yaml"))]:
        given = {} if path is None else yaml.safe_load(path.read_text()).get("gateway", {}).get("config", {})
        config = yaml.safe_load(render(helm4, path).get("ConfigMap", NAME)["data"]["gateway.yaml"])
        written |= config.keys() - given.keys()
    assert {"settle", "discovery", "redis_prefix", "tls_cert"} <= written <= OF_CHART.keys()
    assert OF_CHART.keys() <= Settings.model_fields.keys()


def test_the_grace_period_follows_what_is_said(helm4: Tools, tmp_path: Path) -> None:
    sets = ("gateway.drainSeconds=600", "gateway.settleSeconds=30", "gateway.preStopSeconds=7")
    rendered = render(helm4, None, *sets)
    assert (found := settings(rendered, tmp_path)).shutdown_grace == 600
    assert found.settle == 30
    pod = rendered.get("Deployment", NAME)["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 7 + 30 + 600 + 10


def test_other_settings_pass(helm4: Tools, tmp_path: Path) -> None:
    config = {"tries": 5, "redis_timeout": 0.5, "dns_interval": 2.5, "policy_params": {"work_weight": 2}}
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({"gateway": {"config": config}}))
    found = settings(render(helm4, values), tmp_path)
    assert found.model_dump(include=set(config)) == config
    empty = tmp_path / "empty.yaml"
    empty.write_text("gateway:\n  config:\n    # tries: 4\n")
    assert settings(render(helm4, empty), tmp_path).tries == Settings().tries


@pytest.mark.parametrize(
    ("key", "where"),
    [
        *((key, where) for key in ("app.kubernetes.io/name", "app.kubernetes.io/component",
                                   "prefix-gateway.io/fleet")
          for where in ("commonLabels", "gateway.podLabels", "engine.podLabels", "monitoring.labels")),
        ("helm.sh/chart", "commonLabels"), ("helm.sh/chart", "monitoring.dashboardLabel"),
        ("checksum/config", "gateway.podAnnotations"),
        ("prefix-gateway.io/dp-ranks", "engine.podAnnotations"),
        ("app.kubernetes.io/instance", "extraEngines.b.podLabels"),
    ],
)  # fmt: skip
def test_labels_and_annotations_of_the_chart_are_not_said_again(helm4: Tools, key: str, where: str) -> None:
    escaped = key.replace(".", "\\.")
    message = refusal(helm4, None, f"{where}.{escaped}=x")
    assert f"{where}: {key} is set by " in message


def test_one_label_in_two_places_is_refused(helm4: Tools) -> None:
    message = refusal(helm4, None, "commonLabels.team=a", "monitoring.labels.team=b")
    assert "monitoring.labels: team is set by commonLabels" in message
    # a chart that says of pods what it does not say of others' selectors
    part = "gateway.podLabels.app\\.kubernetes\\.io/part-of=x"
    labels = render(helm4, None, part).get("Deployment", NAME)["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/part-of"] == "x"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"gateway": {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}},
         "gateway.env: A is given twice"),
        ({"engine": {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}},
         "engine.env: A is given twice"),
        ({"engine": {"env": [{"name": "HF_TOKEN", "value": "x"}], "huggingFace": {"existingSecret": "s"}}},
         "engine.env: HF_TOKEN is given twice: this chart sets it, too"),
        ({"engine": {"env": [{"name": "VLLM_API_KEY", "value": "x"}]}}, "say it as apiKey.existingSecret"),
        ({"gateway": {"extraVolumes": [{"name": "tmp", "emptyDir": {}}]}},
         "gateway.extraVolumes: a pod has one volume called tmp already"),
        ({"engine": {"extraVolumes": [{"name": "m", "emptyDir": {}}, {"name": "m", "emptyDir": {}}]}},
         "engine.extraVolumes: a pod has one volume called m already"),
    ],
)  # fmt: skip
def test_names_are_given_once(helm4: Tools, tmp_path: Path, values: object, said: str) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps(values))
    assert said in refusal(helm4, path)


def test_variables_are_text_and_may_replace_two_of_the_chart_s(helm: Tools, tmp_path: Path) -> None:
    given = {"A": 5, "B": 0.25, "C": True, "D": 4294967296, "E": "05", "F": "", "HF_HOME": "/weights"}
    env = [{"name": name, "value": value} for name, value in given.items()]
    env.append({"name": "G", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump({"gateway": {"env": env}, "engine": {"env": env}}))
    rendered = render(helm, path)
    for deployment, container in ((NAME, "gateway"), (f"{NAME}-engine", "engine")):
        made = [e for e in rendered.container(deployment, container)["env"] if e["name"] in given]
        assert {e["name"]: e["value"] for e in made} == {
            "A": "5", "B": "0.25", "C": "true", "D": "4294967296", "E": "05", "F": "", "HF_HOME": "/weights",
        }  # fmt: skip
        assert len(made) == len(given)


@pytest.mark.parametrize(
    ("engine_type", "args", "said"),
    [
        ("vllm", ["--port=9000"], "listen on port 8000"),
        ("vllm", ["--host", "::"], "listen on port 8000"),
        ("vllm", ["--model=x"], "say it as model"),
        ("sglang", ["--model_path", "x"], "say it as model"),
        ("vllm", ["--api-key", "k"], "say it as apiKey.existingSecret"),
        ("sglang", ["--api-key=k"], "say it as apiKey.existingSecret"),
        ("vllm", ["--no-enable-prefix-caching"], "nothing to route to"),
        ("sglang", ["--disable-radix-cache"], "nothing to route to"),
        ("reference", ["--no-prefix-caching"], "nothing to route to"),
        ("reference", ["--kv-events-port=6000"], "publish on port 5557"),
        ("vllm", ["--ssl-keyfile=k"], "plain HTTP"),
        ("vllm", ["--headless"], "no API server"),
        ("vllm", ["--grpc"], "speaks HTTP"),
        ("vllm", ["--config=/etc/vllm.yaml"], "give its flags here"),
        ("sglang", ["--config", "/etc/sglang.yaml"], "give its flags here"),
        ("vllm", ["--skip_tokenizer_init"], "takes no text"),
        ("sglang", ["--skip-tokenizer-init"], "takes no text"),
        ("vllm", ["--enable-prefix-caching=false"], "takes no value"),
        ("vllm", ["--enable_prefix_caching", "false"], "takes no value"),
        ("vllm", ["--enable-prompt-tokens-details False"], "takes no value"),
        ("vllm", ["--no-enable-prompt-tokens-details"], "report as cached"),
        ("sglang", ["--enable-cache-report=0"], "takes no value"),
        ("vllm", ["--data-parallel-size=4"], "say it as dataParallelSize"),
        ("vllm", ["-dp", 4], "say it as dataParallelSize"),
        ("sglang", ["--dp-size", "4"], "more replicas in place of ranks"),
        ("vllm", ["--kv-events-config.topic=x"], "in one JSON object"),
        ("vllm", ['--kv-events-config={"publisher": "null"}'], "or make it a JSON object"),
        ("vllm", ["--kv-events-config", "nonsense"], "or make it a JSON object"),
        ("sglang", ['--kv-events-config={"publisher": "zmq", "endpoint": "tcp://*:5557", '
                    '"replay_endpoint": "tcp://*:5600"}'], "replay_endpoint tcp://*:5558"),
    ],
)  # fmt: skip
def test_flags_that_undo_the_chart(
    helm4: Tools, tmp_path: Path, engine_type: str, args: list[object], said: str
) -> None:
    path = tmp_path / "values.yaml"
    for values, where in (
        ({"engine": {"type": engine_type, "model": "tiny", "args": args}}, "engine"),
        ({"extraEngines": {"b": {"type": engine_type, "model": "tiny", "args": args}}}, "extraEngines.b"),
    ):
        path.write_text(json.dumps(values))
        assert f"{where}.args: {re.split('[= ]', str(args[0]))[0].replace('_', '-')}: " in (
            message := refusal(helm4, path)
        )
        assert said in message


def test_switches_pass_as_they_are(helm: Tools, tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    given = ["--enable-prefix-caching", "--max-model-len", 8192, "--enable_prompt_tokens_details"]
    path.write_text(json.dumps({"engine": {"args": given}}))
    args = render(helm, path).container(f"{NAME}-engine", "engine")["args"]
    assert args[3:7] == [str(each) for each in given]
    assert not any(arg.startswith("--enable-") for arg in args[7:])


def test_an_events_config_may_say_more(helm4: Tools, tmp_path: Path) -> None:
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:5557",
              "replay_endpoint": "tcp://*:5558", "buffer_steps": 50000}  # fmt: skip
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps({"engine": {"args": ["--kv-events-config", json.dumps(config)]}}))
    args = render(helm4, path).container(f"{NAME}-engine", "engine")["args"]
    (at,) = [n for n, arg in enumerate(args) if arg.startswith("--kv-events-config")]
    assert json.loads(args[at + 1]) == config


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("httpRoute.backendTLS.hostname=",), "set httpRoute.backendTLS.hostname, a name"),
        (("tls.requireClientCertificate=true", "ingress.enabled=false"), "clientCertificateRef"),
        (("tls.requireClientCertificate=true", "httpRoute.enabled=false"), "proxy-ssl-secret"),
        (("httpRoute.requestTimeout=1m", "httpRoute.backendRequestTimeout=1h"),
         "backendRequestTimeout 1h is above requestTimeout 1m"),
        (("httpRoute.requestTimeout=1500ms", "httpRoute.backendRequestTimeout=2s"),
         "2s is above requestTimeout 1500ms"),
    ],
)  # fmt: skip
def test_ways_in_that_end_at_a_closed_door(helm4: Tools, sets: tuple[str, ...], said: str) -> None:
    message = refusal(helm4, named("everything"), *sets)
    assert said.lower() in message.lower()


def test_ways_in_that_show_a_certificate_are_open(helm4: Tools) -> None:
    sets = ("tls.requireClientCertificate=true", "ingress.enabled=false")
    rendered = render(helm4, named("everything"), *sets, "httpRoute.backendTLS.clientCertificate=true")
    assert rendered.names("BackendTLSPolicy") == [NAME]
    # no deadline for the whole is none to be above; as long as the whole is no longer
    for times in ("0s 1h", "1m 60s", "1m30s 90s"):
        whole, one = times.split()
        route = render(helm4, named("everything"), f"httpRoute.requestTimeout={whole}",
                       f"httpRoute.backendRequestTimeout={one}").get("HTTPRoute", NAME)  # fmt: skip
        assert route["spec"]["rules"][0]["timeouts"] == {"request": whole, "backendRequest": one}


@pytest.mark.parametrize("zero", ["0", "0%"])
def test_a_rollout_that_replaces_nobody_is_refused(helm4: Tools, zero: str) -> None:
    sets = (
        "engine.strategy.rollingUpdate.maxSurge=0",
        f"engine.strategy.rollingUpdate.maxUnavailable={zero}",
    )
    assert "engine.strategy: maxSurge and maxUnavailable are both 0" in refusal(helm4, None, *sets)


def test_a_password_in_a_url_is_not_repeated(helm4: Tools) -> None:
    sets = ("redis.mode=external", "redis.external.url=redis://:s3cret@r:6379/0")
    assert "s3cret" not in refusal(helm4, None, *sets)
