"""What compose.yaml and the Kubernetes overlays say is what the command line, the config and Kubernetes accept."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from ops.cli import main
from ops.config import RunConfig, override_config
from tests.ops.documents import parsed

OPS = Path(__file__).parents[2] / "ops"
COMPOSE = OPS / "compose"
OVERLAYS = sorted((OPS / "kubernetes" / "overlays").iterdir())
ROLES = {"actor", "learner", "reader"}


def config_of(text: str, words: list[str]) -> RunConfig:
    """The config that a command line makes of a run.toml."""
    return override_config(tomllib.loads(text), parsed(words).get("overrides") or (), "run.toml")


def verge_words(image: str, command: list[str], arguments: list[str]) -> list[str] | None:
    """`verge …` as one list, out of a container's command and arguments; None where it is another program."""
    words = [*(command or (["tini", "--", "verge"] if "verge" in image else [])), *arguments]
    if words[:2] == ["sh", "-c"]:
        words = shlex.split(words[2].partition(" > ")[0])
    return words[words.index("verge") :] if "verge" in words else None


@pytest.fixture(scope="module")
def compose() -> Any:
    return yaml.safe_load((COMPOSE / "compose.yaml").read_text())


def test_every_command_of_compose_is_one_and_reads_its_config(compose: Any) -> None:
    text, seen = (COMPOSE / "run.toml").read_text(), set()
    for name, service in compose["services"].items():
        words = verge_words(service["image"], service.get("entrypoint", []), service.get("command", []))
        if words is None:
            continue
        seen.add(name)
        parsed(words)
        if name in ("learner", "actor"):
            config = config_of(text, words)
            assert config.store.url == f"redis://{config.name}-{name}@redis:6379/0"
            assert config.store.password_file == Path("/run/secrets") / name
            assert service["secrets"] == [name], "it gets its own password and no other"
        if name == "model":
            assert words[-1] == config_of(text, ["verge", "learner", "run.toml"]).model.path
        if name == "page":
            config = config_of(text, words)
            assert config.store.password_file == Path("/run/secrets/reader")
            assert config.serve.token_file == Path("/run/secrets/page")
            assert service["secrets"] == ["page", "reader"]
    assert seen == {"model", "acl", "learner", "actor", "page"}
    reader = config_of(text, ["verge", "learner", "run.toml"])
    assert reader.store.url == f"redis://{reader.name}-reader@redis:6379/0"
    assert set(compose["secrets"]) == ROLES | {"page", "grafana"}


def test_every_container_of_compose_is_locked_down(compose: Any) -> None:
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        if name != "redis":  # its own entry point steps down from root
            assert service["cap_drop"] == ["ALL"], name
            assert "no-new-privileges:true" in service["security_opt"], name


def test_prometheus_and_grafana_of_compose_are_pinned_nobody_s_root_and_not_part_of_the_run(compose: Any) -> None:
    for name in ("prometheus", "grafana"):
        service = compose["services"][name]
        assert re.fullmatch(r"docker\.io/\w+/\w+:v?\d+\.\d+\.\d+", service["image"]), service["image"]
        assert int(service["user"]) > 0
        assert service["profiles"] == ["watch"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (COMPOSE / source).is_file() if source.startswith(".") else source in compose["volumes"], volume
            assert volume.endswith(":ro") or source == name, "it writes to a volume of its own and nowhere else"


def test_prometheus_of_compose_asks_every_process_where_it_listens(compose: Any) -> None:
    services, text = compose["services"], (COMPOSE / "run.toml").read_text()
    scraped = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())
    mounted = {volume.split(":")[1] for volume in services["prometheus"]["volumes"]}
    assert set(scraped["rule_files"]) <= mounted
    jobs = {job["job_name"]: job for job in scraped["scrape_configs"]}
    assert set(jobs) == {"verge-page", "verge-learner", "verge-actor"}
    page = parsed(verge_words("verge", [], services["page"]["command"]) or [])
    assert jobs["verge-page"]["static_configs"] == [{"targets": [f"page:{page['port']}"]}]
    token = Path(jobs["verge-page"]["authorization"]["credentials_file"])
    assert token == config_of(text, verge_words("verge", [], services["page"]["command"]) or []).serve.token_file
    assert services["prometheus"]["secrets"] == [token.name]
    for role in ("learner", "actor"):
        metrics = config_of(text, verge_words("verge", [], services[role]["command"]) or []).metrics
        (found,) = jobs[f"verge-{role}"]["dns_sd_configs"]
        assert (found["names"], found["type"], found["port"]) == ([role], "A", getattr(metrics, f"{role}_port"))
        assert metrics.host == "0.0.0.0"
    if shutil.which("promtool") is not None:
        checked = ["promtool", "check", "config", "--syntax-only", str(COMPOSE / "prometheus.yml")]
        subprocess.run(checked, check=True, capture_output=True)


def test_grafana_of_compose_finds_prometheus_and_the_dashboard(compose: Any) -> None:
    grafana = compose["services"]["grafana"]
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in grafana["volumes"]}
    (source,) = yaml.safe_load((COMPOSE / "grafana.source.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    (provider,) = yaml.safe_load((COMPOSE / "grafana.dashboards.yml").read_text())["providers"]
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home.parent == Path(provider["options"]["path"])
    assert (COMPOSE / mounted[str(home)]).resolve() == OPS / "monitor" / "dashboard.json"
    assert {str(Path(target).parent) for target, file in mounted.items() if file.startswith("./")} == {
        "/etc/grafana/provisioning/datasources", "/etc/grafana/provisioning/dashboards",
    }  # fmt: skip
    assert grafana["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"] == f"/run/secrets/{grafana['secrets'][0]}"


def test_the_gpu_file_only_adds_to_services_that_there_are(compose: Any) -> None:
    added = yaml.safe_load((COMPOSE / "compose.gpu.yaml").read_text())
    assert set(added["services"]) <= set(compose["services"])


def test_secrets_are_made_once_and_the_acl_file_comes_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = shutil.copy(COMPOSE / "secrets.sh", tmp_path)
    first, again = [
        (subprocess.run(["sh", script], check=True), {p.name: p.read_text() for p in (tmp_path / "secrets").iterdir()})[
            1
        ]
        for _ in range(2)
    ]
    assert first == again
    assert set(first) == ROLES | {"page", "grafana"}
    assert {len(password) for password in first.values()} == {48}
    assert len(set(first.values())) == 5
    folder = str(tmp_path / "secrets")
    monkeypatch.setattr(sys, "argv", ["verge", "state", "acl", str(COMPOSE / "run.toml"), "--passwords", folder])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "user default off"
    assert {line.split()[1] for line in lines[1:]} == {f"demo-{role}" for role in ROLES}
    (tmp_path / "secrets" / "reader").write_text("\n")
    monkeypatch.setattr(sys, "argv", ["verge", "state", "acl", str(COMPOSE / "run.toml"), "--passwords", folder])
    with pytest.raises(SystemExit, match="reader: its first line is empty"):
        main()


@pytest.fixture(scope="module", params=OVERLAYS, ids=lambda path: path.name)
def manifests(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl: the overlays were not rendered")
    rendered = subprocess.run(["kubectl", "kustomize", str(request.param)], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(rendered.stdout))


def containers(manifests: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(workload, pod spec, container)."""
    for manifest in manifests:
        spec = manifest.get("spec", {}).get("template", {}).get("spec")
        for container in [*spec.get("initContainers", []), *spec["containers"]] if spec else []:
            yield manifest["metadata"]["name"], spec, container


def test_every_manifest_fits_the_schema_of_kubernetes(manifests: list[dict[str, Any]]) -> None:
    foreign = ("keda.sh/", "monitoring.coreos.com/")  # whose schemas are not to be had here
    known = [m for m in manifests if not m["apiVersion"].startswith(foreign)]
    for manifest in known:
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    assert {m["kind"] for m in known} >= {"Job", "Deployment", "StatefulSet", "NetworkPolicy", "PodDisruptionBudget"}


def test_every_command_of_a_manifest_is_one_and_reads_its_config(manifests: list[dict[str, Any]]) -> None:
    (text,) = [m["data"]["run.toml"] for m in manifests if m["kind"] == "ConfigMap"]
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
    names = {workload for workload, _, _ in containers(manifests)}
    assert names >= {"learner", "actor", "redis", "page"}


def test_what_keda_counts_is_the_run_s_own_stream(manifests: list[dict[str, Any]]) -> None:
    from store.keys import Keys
    from store.runs import CONSUMERS

    (text,) = [m["data"]["run.toml"] for m in manifests if m["kind"] == "ConfigMap"]
    name = tomllib.loads(text)["name"]
    for scaled in (m for m in manifests if m["kind"] == "ScaledObject"):
        (trigger,) = scaled["spec"]["triggers"]
        assert trigger["metadata"]["stream"] == Keys(name).tickets
        assert trigger["metadata"]["consumerGroup"] == CONSUMERS
        assert trigger["metadata"]["username"] == f"{name}-actor"


def test_the_operator_of_prometheus_asks_every_process_where_it_listens(manifests: list[dict[str, Any]]) -> None:
    (text,) = [m["data"]["run.toml"] for m in manifests if m["kind"] == "ConfigMap"]
    asked = [m for m in manifests if m["kind"] == "PodMonitor"]
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
        (admitted,) = [m for m in manifests if m["kind"] == "NetworkPolicy" and m["metadata"]["name"] == "metrics"]
        assert admitted["spec"]["ingress"][0]["ports"] == [{"port": "metrics"}]
        for selector in (monitor["spec"]["selector"], admitted["spec"]["podSelector"]):
            (by_name,) = selector["matchExpressions"]
            assert (by_name["key"], set(by_name["values"])) == ("app.kubernetes.io/name", set(roles))


def test_the_operator_s_rules_are_the_alerts() -> None:
    rule = yaml.safe_load((OPS / "kubernetes" / "components" / "monitor" / "rules.yaml").read_text())
    assert rule["kind"] == "PrometheusRule"
    assert rule["spec"] == yaml.safe_load((OPS / "monitor" / "alerts.yml").read_text()), "see the head of rules.yaml"


def test_every_pod_runs_as_nobody_s_root_and_has_only_its_own_password(manifests: list[dict[str, Any]]) -> None:
    for workload, pod, container in containers(manifests):
        assert pod["securityContext"]["runAsNonRoot"] is True, workload
        assert pod["automountServiceAccountToken"] is False, workload
        if container["name"] != "base-model":
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, workload
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, workload
        for volume in pod["volumes"]:
            if "secret" in volume and workload != "redis":
                needed = ["page", "reader"] if workload == "page" else [workload]
                assert [item["key"] for item in volume["secret"]["items"]] == needed
