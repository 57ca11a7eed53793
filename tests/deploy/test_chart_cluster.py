"""What the chart's objects ask of a cluster: pods, roles, networks, secrets, scaling, monitors, routes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click
import pytest
import yaml

from gateway.store.url import StoreKind, parse_store_url
from tests.deploy.charts import CHART, MATRIX, Object, Rendered, render
from tests.deploy.content import NAME, named, settings
from tests.deploy.tools import Tools
from workers.__main__ import main as workers_cli


@pytest.mark.parametrize("values", [None, *MATRIX], ids=lambda path: path.stem if path else "defaults")
def test_grace_periods_outlast_the_drain(helm4: Tools, values: Path | None, tmp_path: Path) -> None:
    rendered = render(helm4, values)
    pod = rendered.get("Deployment", NAME)["spec"]["template"]["spec"]
    found = settings(rendered, tmp_path)
    gateway = rendered.container(NAME, "gateway")
    pre_stop = int(gateway["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= pre_stop + found.settle + found.shutdown_grace + 5
    for name in rendered.names("Deployment"):
        spec = rendered.get("Deployment", name)["spec"]["template"]["spec"]
        for container in spec["containers"]:
            if container["name"] == "engine":
                drain = int(container["lifecycle"]["preStop"]["exec"]["command"][3])
                assert spec["terminationGracePeriodSeconds"] >= drain + 15


@pytest.mark.parametrize("values", [None, *MATRIX], ids=lambda path: path.stem if path else "defaults")
def test_pods_are_hardened(helm4: Tools, values: Path | None) -> None:
    rendered = render(helm4, values)
    for name in rendered.names("Deployment"):
        pod = rendered.get("Deployment", name)["spec"]["template"]["spec"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"], f"{name}: no resources"
            if container["name"] in ("gateway", "agent", "redis"):
                assert context["readOnlyRootFilesystem"] is True
                assert pod["securityContext"].get("runAsNonRoot") or context["runAsNonRoot"]
        if name != NAME:
            assert pod["automountServiceAccountToken"] is False


def test_the_role_allows_to_list_and_watch_and_nothing_else(helm4: Tools) -> None:
    assert render(helm4).get("Role", f"{NAME}-discovery")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    ]
    existing = render(helm4, named("existing"))
    role = existing.get("Role", f"{NAME}-discovery")
    assert role["metadata"]["namespace"] == "models"
    assert role["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    ]
    (subject,) = existing.get("RoleBinding", f"{NAME}-discovery")["subjects"]
    assert (subject["name"], subject["namespace"]) == (NAME, "llm")
    # who does not ask the API server gets no token for it
    external = render(helm4, named("external"))
    assert external.names("Role") == []
    pod = external.get("Deployment", NAME)["spec"]["template"]["spec"]
    assert (pod["automountServiceAccountToken"], pod["serviceAccountName"]) == (False, "gateway")


def peers(policy: Object, port: str) -> list[str]:
    """Components that may reach a port."""
    return [
        peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for rule in policy["spec"]["ingress"]
        if {"port": port} in rule["ports"]
        for peer in rule.get("from", [])
        if "podSelector" in peer
    ]


def test_engines_events_and_redis_are_reached_by_the_gateway_alone(helm4: Tools) -> None:
    rendered = render(helm4)
    engines = rendered.get("NetworkPolicy", f"{NAME}-engines")
    for port in ("http", "kv-events", "kv-replay"):
        assert peers(engines, port) == ["gateway"]
    assert peers(rendered.get("NetworkPolicy", f"{NAME}-redis"), "redis") == ["gateway"]
    with_agents = render(helm4, named("sglang")).get("NetworkPolicy", f"{NAME}-redis")
    assert peers(with_agents, "redis") == ["gateway", "engine"]
    front = rendered.get("NetworkPolicy", NAME)["spec"]["ingress"]
    assert front[0] == {"ports": [{"port": "http"}]}
    assert front[1]["ports"] == [{"port": "admin"}]
    assert front[1]["from"] == [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    ]


def test_secrets_stay_in_secrets(helm4: Tools) -> None:
    rendered = render(helm4, named("everything"))
    password = rendered.get("Secret", f"{NAME}-redis")["data"]["password"]
    token = rendered.get("Secret", f"{NAME}-admin")["data"]["token"]
    assert len(password) >= 40
    assert password != token
    others = [o for o in rendered.objects if o["kind"] != "Secret"]
    assert password not in json.dumps(others)
    keys = yaml.safe_load(rendered.get("Secret", f"{NAME}-api-keys")["stringData"]["keys.yaml"])
    assert keys[0]["id"] == "team-a"


def redis_env(container: Object) -> Object:
    return {e["name"]: e for e in container["env"] if e["name"].startswith("GATEWAY_REDIS")}


def test_redis_of_the_release(helm4: Tools) -> None:
    env = redis_env(render(helm4).container(NAME, "gateway"))
    url = parse_store_url(env["GATEWAY_REDIS_URL"]["value"], "s3cret")
    assert (url.kind, url.nodes, url.password) == (
        StoreKind.STANDALONE, ((f"{NAME}-redis", 6379),), "s3cret",
    )  # fmt: skip
    assert env["GATEWAY_REDIS_PASSWORD"]["valueFrom"] == {
        "secretKeyRef": {"name": f"{NAME}-redis", "key": "password"}
    }


@pytest.mark.parametrize("user", ["", "chat@"])
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize(
    ("scheme", "rest", "expected"),
    [
        ("", "r:7000/3", (StoreKind.STANDALONE, (("r", 7000),), "", 3)),
        ("+sentinel", "s-0:26379,s-1/main/2",
         (StoreKind.SENTINEL, (("s-0", 26379), ("s-1", 26379)), "main", 2)),
        ("+cluster", "c-0:7000,c-1,[fd00::7]:7001",
         (StoreKind.CLUSTER, (("c-0", 7000), ("c-1", 6379), ("fd00::7", 7001)), "", 0)),
    ],
)  # fmt: skip
def test_external_redis_in_every_form(
    helm4: Tools, tmp_path: Path, user: str, tls: bool, scheme: str, rest: str, expected: tuple[object, ...]
) -> None:
    ca = "/etc/prefix-gateway/redis-tls/ca.crt"
    url = f"{'rediss' if tls else 'redis'}{scheme}://{user}{rest}" + (f"?ca={ca}" if tls else "")
    external = {"url": url, "existingSecret": "s", "key": "k", **({"tlsSecret": "t"} if tls else {})}
    values = tmp_path / "values.yaml"
    values.write_text(
        json.dumps({"redis": {"mode": "external", "external": external}, "discovery": {"type": "redis"}})
    )
    rendered = render(helm4, values)
    for container in (rendered.container(NAME, "gateway"), rendered.container(f"{NAME}-engine", "agent")):
        env = redis_env(container)
        assert env["GATEWAY_REDIS_PASSWORD"]["valueFrom"]["secretKeyRef"] == {"name": "s", "key": "k"}
        # characters that a URL could not have
        found = parse_store_url(env["GATEWAY_REDIS_URL"]["value"], "a/b+c=?@#%41")
        assert (found.kind, found.nodes, found.service, found.database) == expected
        assert (found.username, found.password) == (user.rstrip("@") or None, "a/b+c=?@#%41")
        assert (found.tls and found.tls.ca) == (ca if tls else None)
        mounts = [m["mountPath"] for m in container["volumeMounts"]]
        assert (str(Path(ca).parent) in mounts) == tls


def test_external_redis_whose_url_is_a_secret(helm4: Tools) -> None:
    rendered = render(helm4, named("cluster"))
    for deployment, name in ((NAME, "gateway"), (f"{NAME}-engine", "agent")):
        container = rendered.container(deployment, name)
        assert {k: e["valueFrom"]["secretKeyRef"] for k, e in redis_env(container).items()} == {
            "GATEWAY_REDIS_URL": {"name": "redis-url", "key": "url"},
            "GATEWAY_REDIS_PASSWORD": {"name": "redis", "key": "auth-token"},
        }
        (mount,) = [m for m in container["volumeMounts"] if m["name"] == "redis-tls"]
        assert mount["mountPath"] == "/etc/prefix-gateway/redis-tls"
        volumes = rendered.get("Deployment", deployment)["spec"]["template"]["spec"]["volumes"]
        assert {"name": "redis-tls", "secret": {"secretName": "redis-tls"}} in volumes
    assert f"{NAME}-redis" not in rendered.names("Deployment")


def test_autoscaling_replaces_replicas_and_knows_our_metrics(helm4: Tools) -> None:
    rendered = render(helm4, named("everything"))
    assert "replicas" not in rendered.get("Deployment", NAME)["spec"]
    hpa = rendered.get("HorizontalPodAutoscaler", NAME)["spec"]
    assert hpa["scaleTargetRef"]["name"] == NAME
    assert hpa["metrics"][1]["pods"]["metric"] == {"name": "gateway_inflight_requests"}
    engines = rendered.get("HorizontalPodAutoscaler", f"{NAME}-engine")["spec"]["metrics"][0]["object"]
    assert engines["metric"]["selector"] == {"matchLabels": {"model": "qwen"}}
    keda = render(helm4, named("keda"))
    scaled = keda.get("ScaledObject", f"{NAME}-engine")["spec"]
    (trigger,) = scaled["triggers"]
    assert trigger["metadata"]["query"] == (
        'sum({__name__=~"gateway_inflight_requests|gateway_queue_requests",namespace="llm",'
        f'service="{NAME}-admin",model=~"Qwen/Qwen2\\\\.5-7B-Instruct(:.+)?"}})'
    )
    assert keda.names("HorizontalPodAutoscaler") == []


def test_monitors_select_what_there_is(helm4: Tools) -> None:
    rendered = render(helm4, named("everything"))
    monitor = rendered.get("ServiceMonitor", NAME)["spec"]
    service = rendered.get("Service", f"{NAME}-admin")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert monitor["endpoints"][0]["authorization"]["credentials"] == {
        "name": f"{NAME}-admin",
        "key": "token",
    }
    engines = rendered.get("PodMonitor", f"{NAME}-engines")["spec"]
    for pool in ("engine", "large", "cpu"):
        labels = rendered.get("Deployment", f"{NAME}-{pool}")["spec"]["template"]["metadata"]["labels"]
        assert engines["selector"]["matchLabels"].items() <= labels.items()
    rules = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
    assert rendered.get("PrometheusRule", NAME)["spec"] == rules
    boards = [n for n in rendered.names("ConfigMap") if "-dashboard-" in n]
    assert len(boards) == len(list((CHART / "files" / "dashboards").glob("*.json")))
    for name in boards:
        config = rendered.get("ConfigMap", name)
        assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
        (text,) = config["data"].values()
        assert json.loads(text)["panels"]


def test_streams_get_through_ingress_and_route(helm4: Tools) -> None:
    rendered = render(helm4, named("everything"))
    notes = rendered.get("Ingress", NAME)["metadata"]["annotations"]
    assert notes["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert int(notes["nginx.ingress.kubernetes.io/proxy-read-timeout"]) >= 3600
    assert notes["nginx.ingress.kubernetes.io/backend-protocol"] == "HTTPS"
    (rule,) = rendered.get("HTTPRoute", NAME)["spec"]["rules"]
    assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}
    assert rule["backendRefs"] == [{"name": NAME, "port": 80}]
    # behind the route the gateway's own port speaks TLS
    policy = rendered.get("BackendTLSPolicy", NAME)["spec"]
    assert policy["targetRefs"] == [{"group": "", "kind": "Service", "name": NAME, "sectionName": "http"}]
    assert [p["name"] for p in rendered.get("Service", NAME)["spec"]["ports"]] == ["http"]
    assert policy["validation"] == {
        "hostname": "chat.example.com",
        "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "gateway-ca"}],
    }
    system = render(helm4, named("everything"), "httpRoute.backendTLS.caConfigMap=")
    assert system.get("BackendTLSPolicy", NAME)["spec"]["validation"]["wellKnownCACertificates"] == "System"
    plain = render(helm4, named("everything"), "tls.existingSecret=")
    assert (plain.names("HTTPRoute"), plain.names("BackendTLSPolicy")) == ([NAME], [])
    # an annotation of one's own stands in place of the chart's
    own = "ingress.annotations.nginx\\.ingress\\.kubernetes\\.io/backend-protocol=GRPCS"
    notes = render(helm4, named("everything"), own).get("Ingress", NAME)["metadata"]["annotations"]
    assert notes["nginx.ingress.kubernetes.io/backend-protocol"] == "GRPCS"


def test_a_changed_setting_replaces_pods_and_nothing_else_does(helm4: Tools) -> None:
    def checksum(*sets: str) -> str:
        template = render(helm4, None, *sets).get("Deployment", NAME)["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert checksum() == checksum("engine.replicas=5")
    assert checksum() != checksum("gateway.config.tries=2")


@pytest.mark.parametrize("stem", ["trial", "sglang", "everything"])
def test_a_new_chart_replaces_no_pod(helm: Tools, tmp_path: Path, stem: str) -> None:
    newer = tmp_path / "chart"
    shutil.copytree(CHART, newer)
    about = newer / "Chart.yaml"
    about.write_text(about.read_text().replace("\nversion: 0.1.0\n", "\nversion: 0.9.9\n"))
    # labels of all objects are for people: what costs a cache says so itself
    sets = ("commonLabels.team=b",)
    before = render(helm, named(stem))
    after = render(helm, named(stem), *sets, chart=newer)
    assert before.names("Deployment") == after.names("Deployment")
    for name in before.names("Deployment"):
        one, two = before.get("Deployment", name), after.get("Deployment", name)
        assert two["metadata"]["labels"]["helm.sh/chart"] == "prefix-gateway-0.9.9"
        assert two["metadata"]["labels"]["team"] == "b"
        assert one["spec"]["template"] == two["spec"]["template"]
        assert one["spec"]["selector"] == two["spec"]["selector"]


def test_pools_share_what_they_do_not_say(helm4: Tools) -> None:
    rendered = render(helm4, named("everything"))
    assert rendered.names("Deployment") == [
        NAME, f"{NAME}-cpu", f"{NAME}-engine", f"{NAME}-large", f"{NAME}-redis",
    ]  # fmt: skip
    large = rendered.container(f"{NAME}-large", "engine")
    assert "--tensor-parallel-size=4" in large["args"]
    assert "--max-model-len=8192" not in large["args"]
    assert large["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert rendered.names("PersistentVolumeClaim") == [f"{NAME}-engine-models", f"{NAME}-large-models"]
    assert f"{NAME}-large" not in rendered.names("PodDisruptionBudget")


def test_alerts_pages_have_an_address(helm4: Tools) -> None:
    def pages(*sets: str) -> list[str]:
        rule = render(helm4, named("everything"), *sets).get("PrometheusRule", NAME)
        rules = [r for group in rule["spec"]["groups"] for r in group["rules"]]
        return [r["annotations"]["runbook_url"] for r in rules if "alert" in r]

    plain = pages()
    assert len(plain) > 10
    assert all(page.startswith("docs/runbooks/") for page in plain)
    based = pages("monitoring.runbookUrl=https://git.example.com/gateway/blob/main/")
    assert based == [f"https://git.example.com/gateway/blob/main/{page}" for page in plain]


def test_helm_s_test_gets_in(helm4: Tools) -> None:
    rendered = render(helm4, named("everything"), "tests.clientSecret=tester")
    pod = rendered.get("Pod", f"{NAME}-test")
    (container,) = pod["spec"]["containers"]
    assert container["command"][2:] == [f"https://{NAME}:80", "/certificates"]
    assert {"name": "certificates", "secret": {"secretName": "tester"}} in pod["spec"]["volumes"]
    # clients are named: it is one of them
    front = rendered.get("NetworkPolicy", NAME)
    (admitted,) = [p for p in front["spec"]["ingress"][0]["from"] if "podSelector" in p]
    assert admitted["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert peers(front, "http") == ["test"]
    refused = render(helm4, named("mtls"), "tests.clientSecret=")
    (alone,) = refused.get("Pod", f"{NAME}-test")["spec"]["containers"]
    assert alone["command"][2:] == [f"https://{NAME}:443", "refused"]
    (plain,) = render(helm4).get("Pod", f"{NAME}-test")["spec"]["containers"]
    assert plain["command"][2:] == [f"http://{NAME}:80"]


def test_helm_s_test_shows_a_key_where_it_has_one(helm4: Tools) -> None:
    sets = ("tests.apiKeySecret=tester", "tests.apiKeySecretKey=k")
    (container,) = render(helm4, None, *sets).get("Pod", f"{NAME}-test")["spec"]["containers"]
    key = {"secretKeyRef": {"name": "tester", "key": "k"}}
    assert container["env"] == [{"name": "API_KEY", "valueFrom": key}]
    (without,) = render(helm4).get("Pod", f"{NAME}-test")["spec"]["containers"]
    assert "env" not in without


def test_the_notes_say_who_may_scrape(helm4: Tools) -> None:
    def notes(*sets: str) -> str:
        given = [word for each in sets for word in ("--set", each)]
        done = helm4.run(helm4.helm, "install", "chat", str(CHART), "--dry-run=client", "-n", "llm", *given)
        assert done.returncode == 0, done.stderr
        return done.stdout.split("NOTES:")[1]

    said = "let out to: "
    default = '[{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"monitoring"}}}].'
    assert said + default in notes()
    assert said + "nobody." in notes("networkPolicy.monitoring=null")
    assert said not in notes("networkPolicy.enabled=false")


def test_a_pool_of_another_kind_or_make_starts_afresh(helm4: Tools, tmp_path: Path) -> None:
    engine = {
        "servedModelName": "qwen", "args": ["--max-model-len=8192"],
        "env": [{"name": "VLLM_LOGGING_LEVEL", "value": "INFO"}],
        "image": {"repository": "mine/vllm", "tag": "7"}, "runtimeClassName": "nvidia",
        "resources": {"limits": {"nvidia.com/gpu": 4}}, "nodeSelector": {"nvidia.com/gpu.product": "H100"},
    }  # fmt: skip
    pools = {
        "cpu": {"type": "reference", "model": "tiny"},
        "sg": {"type": "sglang"},
        "amd": {"resources": {"limits": {"amd.com/gpu": 1}}, "nodeSelector": {"amd.com/gpu.family": "AI"}},
        "more": {"replicas": 5},
        "other": {"model": "mistralai/Mistral-7B-Instruct-v0.3"},
    }
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({"engine": engine, "extraEngines": pools}))
    rendered = render(helm4, values)

    def pool(name: str) -> tuple[Object, Object]:
        spec = rendered.get("Deployment", f"{NAME}-{name}")["spec"]["template"]["spec"]
        return rendered.container(f"{NAME}-{name}", "engine"), spec

    cpu, spec = pool("cpu")
    command = workers_cli.commands["serve"]
    assert isinstance(command, click.Command)
    assert command.make_context("serve", list(cpu["args"])).params["model"] == "tiny"
    assert cpu["image"] == "prefix-gateway:0.1.0"
    assert cpu["resources"] == {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}}
    assert [e["name"] for e in cpu["env"]] == ["PYTHONUNBUFFERED"]
    assert spec.keys().isdisjoint({"nodeSelector", "runtimeClassName"})
    sglang, spec = pool("sg")
    assert sglang["image"].startswith("lmsysorg/sglang:v")
    assert sglang["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    assert "--max-model-len=8192" not in sglang["args"]
    assert "--served-model-name=qwen" in sglang["args"]  # it is the same model
    amd, spec = pool("amd")
    assert amd["resources"] == {"limits": {"amd.com/gpu": 1}}
    assert spec["nodeSelector"] == {"amd.com/gpu.family": "AI"}
    more, spec = pool("more")
    assert more == rendered.container(f"{NAME}-engine", "engine")
    assert spec["nodeSelector"] == engine["nodeSelector"]
    other, _ = pool("other")
    assert "--max-model-len=8192" in other["args"]
    assert not any("served" in arg for arg in other["args"])


def test_budgets_and_strategies_are_what_was_said(helm4: Tools) -> None:
    def budget(rendered: Rendered, name: str) -> Object:
        spec = rendered.get("PodDisruptionBudget", name)["spec"]
        return {key: value for key, value in spec.items() if key != "selector"}

    plain = render(helm4, None, "extraEngines.b.replicas=1")
    for name in (NAME, f"{NAME}-engine", f"{NAME}-b"):
        assert budget(plain, name) == {"maxUnavailable": 1}
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    assert plain.get("Deployment", f"{NAME}-engine")["spec"]["strategy"] == rolling
    said = render(
        helm4, None, "gateway.podDisruptionBudget.minAvailable=50%",
        "engine.podDisruptionBudget.minAvailable=1",
        "extraEngines.b.podDisruptionBudget.maxUnavailable=2", "engine.strategy.type=Recreate",
        "extraEngines.b.strategy.type=RollingUpdate",
    )  # fmt: skip
    assert budget(said, NAME) == {"minAvailable": "50%"}
    assert budget(said, f"{NAME}-engine") == {"minAvailable": 1}
    assert budget(said, f"{NAME}-b") == {"maxUnavailable": 2}
    assert said.get("Deployment", f"{NAME}-engine")["spec"]["strategy"] == {"type": "Recreate"}
    assert said.get("Deployment", f"{NAME}-b")["spec"]["strategy"] == rolling
    none = render(helm4, None, "gateway.podDisruptionBudget=null", "engine.podDisruptionBudget=null")
    assert none.names("PodDisruptionBudget") == []
