"""Values with a grammar of their own (selectors, workers, hosts, peers, quantities) are refused where they
have none, and taken where they have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ConfigError
from gateway.fleet.discovery.annotations import worker_specs
from gateway.fleet.discovery.ports import PortRules
from gateway.fleet.spec import parse_worker
from tests.deploy.charts import refusal, render
from tests.deploy.content import NAME, settings
from tests.deploy.tools import Tools

REDIS = {"mode": "external"}
POD = {"podSelector": {"matchLabels": {"app": "x"}}}
NAMED = {"namespaceSelector": {"matchLabels": {"team": "x"}}}
GPU = "nvidia.com/gpu"
BLOCK = {"ipBlock": {"cidr": "10.0.0.0/8"}}

BAD_ENDPOINTS = (
    "events=10.0.0.7:5557", "events=tcp://10.0.0.7", "events=tcp://*:5557", "events=", "replay=http://10.0.0.7:5558",
    "replay=tcp://:5558", "events=ipc://", "replay=tcp://fd00::1:5558",
)  # fmt: skip
BAD_COUNTS = (
    "max_requests=0",
    "max_requests=-4",
    "max_requests=1000000000",
    "capacity=1e6",
    "block_size=16.0",
    "capacity=",
    "block_size=x",
)
BAD_WEIGHTS = (
    "weight=abc",
    "weight=0",
    "weight=-1",
    "weight=1e30",
    "weight=1000.1",
    "weight=0.00099",
    "weight=1e-30",
    "weight=inf",
    "weight=nan",
    "weight=",
    "weight=0.0",
    "weight=1x",
)
BAD_RANKS = ("dp_rank=-1", "dp_rank=a", "dp_rank=1.0")
BAD_URLS = ("http://a:1?x=1", "http://a:1/#b", "http://me:secret@a:1", "http://me@a:1")


def _written(folder: Path, values: object) -> Path:
    path = folder / "values.yaml"
    path.write_text(json.dumps(values))
    return path


@pytest.mark.parametrize(
    ("values", "said"),
    [
        *(({"discovery": {"selector": text}}, "discovery.selector: ")
          for text in ("app=a b", "app in (a", "app in a", "=vllm", "app=v,", "app=a=b", "a//b=c", "app: a")),
        *(({"workers": [f"http://10.0.0.7:8000,{text}"]}, f'workers: "{text}": behind the URL stands')
          for text in ("event=tcp://10.0.0.7:5557", "weight", "", "max-requests=4")),
        *(({"workers": [text]}, "workers: host or host:port is wanted")
          for text in ("http://a:99999", "http://a:0", "http://a:b", "http://::1:80",
                       "http://a:80,events=tcp://a:70000")),
        *(({"workers": [f"http://a:1,{text}"]}, f'workers: "{text}": {wanted} is wanted')
          for texts, wanted in (
              (BAD_ENDPOINTS, "an endpoint like tcp://10.0.0.7:5557"),
              (BAD_COUNTS, "a whole number from 1 to 999,999,999"),
              (BAD_WEIGHTS, "a number from 0.001 to 1,000"), (BAD_RANKS, "a whole number from 0"))
          for text in texts),
        *(({"workers": [text]}, "workers: a base URL has no query, no fragment and no credentials")
          for text in BAD_URLS),
        ({"workers": ["http://a:1,weight=1,weight=2"]}, 'workers: "weight=2": weight is said already'),
        *(({"workers": ["http://a:1", "http://b:1", *again]}, "is listed twice")
          for again in (["http://a:1/"], ["http://a:1/,weight=2"], ["http://c,dp_rank=1", "http://c,dp_rank=1"])),
        *(({"engine": {"podAnnotations": {f"prefix-gateway.io/{name}": value}}},
           f"engine.podAnnotations: prefix-gateway.io/{name}={value}: {said} is wanted")
          for name, value, said in (
              ("weight", "abc", "a number from 0.001 to 1,000"),
              ("max-requests", "0", "a whole number from 1 to 999,999,999"),
              ("block-size", "16.0", "a whole number from 1 to 999,999,999"),
              ("scheme", "tcp", "http or https"))),
        ({"discovery": {"type": "dns", "dnsNames": ["vllm.chat:99999"]}},
         "discovery.dnsNames: host or host:port is wanted"),
        *(({"redis": REDIS | {"external": {"url": url}}}, "redis.external.url: host or host:port is wanted")
          for url in ("redis://r:99999", "redis://r:0/1", "rediss://chat@r:65536", "redis+cluster://a:1,b:123456",
                      "redis+sentinel://a:1,b:99999/main", "redis://r:port", "redis://::1:6379")),
        *(({"networkPolicy": {who: [BLOCK | other]}}, f"networkPolicy.{who}: an ipBlock stands alone")
          for who in ("clients", "admins", "monitoring") for other in (POD, NAMED)),
        ({"gateway": {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1500m"}}}},
         "gateway.resources: requests.cpu 2 is above limits.cpu 1500m"),
        ({"engine": {"resources": {"requests": {"memory": "65Gi"}, "limits": {"memory": "64Gi"}}}},
         "engine.resources: requests.memory 65Gi is above limits.memory 64Gi"),
        ({"extraEngines": {"b": {"resources": {"requests": {GPU: 2}, "limits": {GPU: 1}}}}},
         "extraEngines.b.resources: requests.nvidia.com/gpu 2 is above"),
        ({"redis": {"internal": {"resources": {"requests": {"memory": "2G"}}}}},
         "redis.internal.resources: requests.memory 2G is above limits.memory 1536Mi"),
        ({"engine": {"podAnnotations": {"prefix-gateway.io/wieght": "2"}}},
         "engine.podAnnotations: prefix-gateway.io/wieght is none that the gateway reads"),
    ],
)  # fmt: skip
def test_a_text_that_is_none_is_refused_in_words(
    helm4: Tools, tmp_path: Path, values: object, said: str
) -> None:
    # helm's log escapes quotes in some messages
    assert said in refusal(helm4, _written(tmp_path, values)).replace('\\"', '"')


@pytest.mark.parametrize(
    ("values", "said"),
    [
        *(({"networkPolicy": {"clients": [{"ipBlock": {"cidr": cidr}}]}}, "cidr")
          for cidr in ("256.0.0.0/8", "10.0.0.999/8", "10.0.00.0/8", "10.0.0.0/33")),
        ({"engine": {"args": [""]}}, "args"),
        *(({where: {"extraVolumeMounts": [{"name": "m"} | path]}}, "extraVolumeMounts")
          for where in ("gateway", "engine")
          for path in ({"mountPath": "models"}, {"mountPath": "/a:b"}, {})),
    ],
)  # fmt: skip
def test_what_the_schema_refuses(helm4: Tools, tmp_path: Path, values: object, said: str) -> None:
    message = refusal(helm4, _written(tmp_path, values))
    assert "don't meet the specifications" in message
    assert said in message


@pytest.mark.parametrize(
    "selector",
    [
        "app=vllm",
        "app==vllm,tier!=test",
        "app in (a, b),tier notin (c)",
        "example.com/app",
        "!app , b=",
        "n>4,m < 5",
    ],
)
def test_selectors_of_every_form_pass(helm: Tools, tmp_path: Path, selector: str) -> None:
    rendered = render(helm, _written(tmp_path, {"discovery": {"selector": selector}}))
    assert settings(rendered, tmp_path).kubernetes_selector == selector


def test_hosts_and_peers_of_every_form_pass(helm: Tools, tmp_path: Path) -> None:
    workers = [
        "http://10.0.0.7:8000, events=tcp://10.0.0.7:5557,replay=tcp://10.0.0.7:5558,topic=kv,dp_rank=1",
        "https://[fe80::0:1]:65535/v,model=org/m,weight=2.5,capacity=10,block_size=16,max_requests=4",
        "http://vllm,events=ipc:///tmp/e",
        "http://10.0.0.9:8000,dp_rank=0,weight=.5,events=tcp://[fd00::1]:5557,max_requests=010",
        "http://10.0.0.9:8000,dp_rank=01,weight=1e-2,topic=,events=tcp://engine-0.engines.chat:5557",
        "http://10.0.0.9:8000/a,weight=+2.,capacity=1000000",
    ]
    peers = [POD | NAMED, {"ipBlock": {"cidr": "255.249.199.99/32"}}, {"ipBlock": {"cidr": "fd00::/8"}}]
    url = "redis+sentinel://[::1]:26379,b,c:65535/main"
    values: dict[str, Any] = {
        "workers": workers, "networkPolicy": {"clients": peers}, "redis": REDIS | {"external": {"url": url}},
        "gateway": {"resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"cpu": 1.5}}},
    }  # fmt: skip
    rendered = render(helm, _written(tmp_path, values))
    assert settings(rendered, tmp_path).workers == tuple(workers)
    rules = rendered.get("NetworkPolicy", NAME)["spec"]["ingress"]
    # `helm test` is let in, too
    assert peers in [rule["from"][:3] for rule in rules]
    env = rendered.container(NAME, "gateway")["env"]
    assert {"name": "GATEWAY_REDIS_URL", "value": url} in env


def test_the_chart_knows_the_fields_of_a_worker_and_the_annotations(helm4: Tools, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="known: url, ") as no_field:
        parse_worker("http://a:1,x=1")
    fields = str(no_field.value).partition("known: url, ")[2]
    message = refusal(helm4, _written(tmp_path, {"workers": ["http://a:1,x=1"]}))
    assert f"with a name of {fields}\n" in message
    with pytest.raises(ConfigError, match="known: ") as no_annotation:
        worker_specs("10.0.0.1", {}, {"prefix-gateway.io/x": "1"}, PortRules())
    known = str(no_annotation.value).partition("known: ")[2].split(", ")
    # the ranks' number is the chart's own to say
    others = ", ".join(name for name in known if name != "dp-ranks")
    annotated = {"engine": {"podAnnotations": {"prefix-gateway.io/x": "1"}}}
    assert f"none that the gateway reads: {others}\n" in refusal(helm4, _written(tmp_path, annotated))
    annotations = {
        f"prefix-gateway.io/{name}": "https" if name == "scheme" else "1" for name in others.split(", ")
    }
    rendered = render(helm4, _written(tmp_path, {"engine": {"podAnnotations": annotations}}))
    made = rendered.get("Deployment", f"{NAME}-engine")["spec"]["template"]["metadata"]["annotations"]
    assert annotations.items() <= made.items()


def test_what_the_chart_refuses_the_gateway_would_refuse() -> None:
    options = (*BAD_ENDPOINTS, *BAD_COUNTS, *BAD_WEIGHTS, *BAD_RANKS, "weight=1,weight=2")
    for line in (*(f"http://10.0.0.7:8000,{text}" for text in options), *BAD_URLS):
        with pytest.raises(ConfigError):
            parse_worker(line)
