"""What the Kubernetes overlays and components say is what the command line, the config and Kubernetes accept."""

import asyncio
import json
import re
import tomllib
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from redis import Redis

from store.acl import rules
from store.client import Store
from store.keys import Keys
from store.runs import CONSUMERS
from store.server import EmbeddedServer
from tests.ops.custom_resources import SCHEMAS
from tests.ops.deployment import (
    KUBERNETES,
    OPS,
    Manifest,
    config_of,
    containers,
    rendered,
    run_toml,
    verge_words,
    with_components,
)
from tests.ops.documents import parsed
from tests.ops.serving import META
from tests.store.scripted import group, problems

OVERLAYS = sorted((KUBERNETES / "overlays").iterdir())
COMPONENTS = sorted((KUBERNETES / "components").iterdir())
EVERYTHING = "cpu-demo with every component"


@pytest.fixture(scope="module", params=[*(path.name for path in OVERLAYS), EVERYTHING])
def manifests(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    if request.param == EVERYTHING:
        own = tmp_path_factory.mktemp("kustomization")
        return rendered(with_components(KUBERNETES / "overlays" / "cpu-demo", COMPONENTS, own))
    return rendered(KUBERNETES / "overlays" / request.param)


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def test_every_manifest_fits_its_schema(manifests: list[Manifest]) -> None:
    seen = set()
    for manifest in manifests:
        kind = f"{manifest['apiVersion']} {manifest['kind']}"
        seen.add(manifest["kind"])
        if kind in SCHEMAS:
            jsonschema.validate(manifest, SCHEMAS[kind])
        else:
            kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    assert seen >= {"Job", "Deployment", "StatefulSet", "NetworkPolicy", "PodDisruptionBudget"}


@pytest.mark.parametrize(
    ("file", "found", "wrong"),
    [
        ("monitor/metrics.yaml", "podMetricsEndpoints", "podMonitorEndpoints"),
        ("monitor/metrics.yaml", "interval: 15s", "interval: 15"),
        ("monitor/metrics.yaml", "sourceLabels", "source_labels"),
        ("monitor/rules.yaml", "severity: critical", "severity: 1"),
        ("keda/actors.yaml", 'lagCount: "64"', "lagCount: 64"),
        ("keda/actors.yaml", "usernameFromEnv", "username"),
        ("keda/actors.yaml", "secretTargetRef", "secretTargetRefs"),
    ],
)
def test_a_wrong_field_of_a_custom_resource_is_found(file: str, found: str, wrong: str) -> None:
    def check(text: str) -> None:
        for manifest in yaml.safe_load_all(text):
            kind = f"{manifest['apiVersion']} {manifest['kind']}"
            if kind in SCHEMAS:
                jsonschema.validate(manifest, SCHEMAS[kind])

    text = (KUBERNETES / "components" / file).read_text()
    check(text)
    assert found in text
    with pytest.raises(jsonschema.ValidationError):
        check(text.replace(found, wrong))


def test_every_command_of_a_manifest_is_one_and_reads_its_config(manifests: list[Manifest]) -> None:
    text, tracked = run_toml(manifests), False
    for workload, _, container in containers(manifests):
        probes = [container[probe]["exec"]["command"] for probe in container if probe.endswith("Probe")
                  and "exec" in container[probe]]  # fmt: skip
        for command, arguments in [(container.get("command"), container.get("args", [])), *((p, []) for p in probes)]:
            words = verge_words(container["image"], command, arguments)
            if words is None or container["name"] == "base-model":
                continue
            parsed(words)
            if workload in ("learner", "actor"):
                config = config_of(text, words)
                assert config.store.url == f"redis://{config.name}-{workload}@redis:6379/0"
                assert config.store.password_file == Path("/secrets") / workload
            if workload == "track":
                tracked = True
                config = config_of(text, words)
                assert config.track.kind == "tensorboard"
                assert config.store.password_file == Path("/secrets/reader")
    names = {workload for workload, _, _ in containers(manifests)}
    assert names >= {"learner", "actor", "redis", "page"}
    assert tracked == ("tensorboard" in names)


def test_what_a_pod_mounts_is_there_and_whoever_has_a_password_is_let_in(manifests: list[Manifest]) -> None:
    there = {(m["kind"], m["metadata"]["name"]) for m in manifests}
    (policy,) = [m for m in of_kind(manifests, "NetworkPolicy") if m["metadata"]["name"] == "redis"]
    (admitted,) = policy["spec"]["ingress"][0]["from"]
    for workload, pod, container in containers(manifests):
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} - {"data"} <= volumes.keys(), workload
        for volume in volumes.values():
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in there, workload
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in there, workload
    for manifest in manifests:
        template = manifest.get("spec", {}).get("template")
        if template and any("secret" in volume for volume in template["spec"]["volumes"]):
            assert admitted["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_keda_asks_for_the_run_s_own_stream_as_a_user_that_there_is(manifests: list[Manifest]) -> None:
    name = tomllib.loads(run_toml(manifests))["name"]
    environment = {
        variable["name"]: variable.get("value")
        for workload, _, container in containers(manifests)
        if workload == container["name"] == "actor"
        for variable in container["env"]
    }
    scalers = of_kind(manifests, "ScaledObject")
    for scaled in scalers:
        (trigger,) = scaled["spec"]["triggers"]
        assert trigger["metadata"]["stream"] == Keys(name).tickets
        assert trigger["metadata"]["consumerGroup"] == CONSUMERS
        assert environment[trigger["metadata"]["usernameFromEnv"]] == f"{name}-actor"
        (secret,) = of_kind(manifests, "TriggerAuthentication")[0]["spec"]["secretTargetRef"]
        assert (secret["parameter"], secret["key"]) == ("password", "actor")
    assert ("STORE_USER" in environment) == bool(scalers)


def test_redis_refuses_to_write_before_its_memory_is_at_the_limit(manifests: list[Manifest]) -> None:
    (redis,) = [c for workload, _, c in containers(manifests) if workload == c["name"] == "redis"]
    options = dict(word.removeprefix("--").split(" ") for word in redis["args"] if word.startswith("--"))
    assert options["maxmemory-policy"] == "noeviction"
    refuses, limit = re.fullmatch(r"(\d+)gb", options["maxmemory"]), redis["resources"]["limits"]["memory"]
    assert refuses is not None
    assert f"{int(refuses[1]) + 1}Gi" == limit


def test_what_keda_counts_is_the_tickets_that_no_actor_has_taken(tmp_path: Path) -> None:
    """XINFO GROUPS after INFO, as its scaler `redis-streams` asks where it has a lagCount."""
    with EmbeddedServer(tmp_path) as server:

        async def play() -> None:
            store = await Store.connect(server.url, "demo", server.password)
            try:
                await store.open_run(META)
                await store.add_problems(problems("p", "q"))
                user = ("ACL SETUSER", "demo-actor", "on", ">its", *rules(store.keys, "actor"))
                await store.link.redis.execute_command(*user)
                await store.issue(["p", "q"] * 5, limit=10)
                for ticket in (await store.take("a", 4))[:2]:  # two of them are with an actor when it is asked
                    await store.commit("a", group(ticket, [1, 0]))
            finally:
                await store.close()

        asyncio.run(play())
        port = server.info.port
        with Redis(port=port, username="demo-actor", password="its", protocol=3) as keda:
            assert int(keda.info()["redis_version"].partition(".")[0]) >= 7
            (consumers,) = keda.xinfo_groups(Keys("demo").tickets)
    assert consumers["name"] == CONSUMERS.encode()
    assert consumers["lag"] == 6


def test_the_operator_of_prometheus_asks_every_process_where_it_listens(manifests: list[Manifest]) -> None:
    text, asked = run_toml(manifests), of_kind(manifests, "PodMonitor")
    roles: dict[str, int] = {}
    for workload, _, container in containers(manifests):
        if workload in ("learner", "actor") and container["name"] == workload:
            words = verge_words(container["image"], container.get("command", []), container["args"]) or []
            port = getattr(config_of(text, words).metrics, f"{workload}_port")
            if port is not None:
                assert config_of(text, words).metrics.host == "0.0.0.0"
                assert container["ports"] == [{"name": "metrics", "containerPort": port}]
                roles[workload] = port
    assert set(roles) == ({"learner", "actor"} if asked else set()), "without the component nobody listens"
    for monitor in asked:
        assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == "metrics"
        (admitted,) = [m for m in of_kind(manifests, "NetworkPolicy") if m["metadata"]["name"] == "metrics"]
        assert admitted["spec"]["ingress"][0]["ports"] == [{"port": "metrics"}]
        for selector in (monitor["spec"]["selector"], admitted["spec"]["podSelector"]):
            (by_name,) = selector["matchExpressions"]
            assert (by_name["key"], set(by_name["values"])) == ("app.kubernetes.io/name", set(roles))


def test_grafana_s_sidecar_finds_the_one_dashboard_beside_the_metrics(manifests: list[Manifest]) -> None:
    dashboards = [m for m in of_kind(manifests, "ConfigMap") if "grafana_dashboard" in m["metadata"].get("labels", {})]
    assert len(dashboards) == len(of_kind(manifests, "PodMonitor"))
    for found in dashboards:
        assert found["metadata"]["labels"] == {"grafana_dashboard": "1"}
        assert json.loads(found["data"]["verge.json"]) == json.loads((OPS / "monitor" / "dashboard.json").read_text())


def test_the_operator_s_rules_are_the_alerts() -> None:
    rule = yaml.safe_load((KUBERNETES / "components" / "monitor" / "rules.yaml").read_text())
    assert rule["kind"] == "PrometheusRule"
    assert rule["spec"] == yaml.safe_load((OPS / "monitor" / "alerts.yml").read_text()), "see the head of rules.yaml"


def test_every_pod_runs_as_nobody_s_root_and_has_only_its_own_password(manifests: list[Manifest]) -> None:
    needed = {"page": ["page", "reader"], "track": ["reader"]}
    for workload, pod, container in containers(manifests):
        assert pod["securityContext"]["runAsNonRoot"] is True, workload
        assert pod["automountServiceAccountToken"] is False, workload
        if container["name"] != "base-model":
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, workload
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, workload
        for volume in pod["volumes"]:
            if "secret" in volume and workload != "redis":
                assert [item["key"] for item in volume["secret"]["items"]] == needed.get(workload, [workload])
