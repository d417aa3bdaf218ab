"""What compose.yaml says is what the command line, the config, Prometheus and Grafana accept."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from ops.cli import main
from ops.monitor.known import METRICS
from tests.ops.deployment import COMPOSE, OPS, config_of, verge_words
from tests.ops.documents import parsed

ROLES = {"actor", "learner", "reader"}


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
        if name == "track":
            config = config_of(text, words)
            assert config.track.kind == "tensorboard"
            assert service["secrets"] == ["reader"]
    assert seen == {"model", "acl", "learner", "actor", "page", "track"}
    reader = config_of(text, ["verge", "learner", "run.toml"])
    assert reader.store.url == f"redis://{reader.name}-reader@redis:6379/0"
    assert set(compose["secrets"]) == ROLES | {"page", "grafana"}


def test_learner_and_actor_are_healthy_once_their_endpoint_shows_a_metric_that_there_is(compose: Any) -> None:
    for role, metric in (("learner", "learner/step"), ("actor", "actor/version")):
        *_, script = compose["services"][role]["healthcheck"]["test"]
        compile(script, role, "exec")
        (known,) = [known for known in METRICS if known.name == metric]
        assert f"{known.exposed}{{" in script
        assert f"metrics.{role}_port={urlsplit(script.split(chr(39))[3]).port}" in compose["services"][role]["command"]


def test_every_container_of_compose_is_locked_down(compose: Any) -> None:
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        if name != "redis":  # its own entry point steps down from root
            assert service["cap_drop"] == ["ALL"], name
            assert "no-new-privileges:true" in service["security_opt"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name


def test_who_watches_is_not_part_of_the_run_is_nobody_s_root_and_writes_to_its_own_volume(compose: Any) -> None:
    watching = {name for name, service in compose["services"].items() if service.get("profiles") == ["watch"]}
    assert watching == {"track", "tensorboard", "prometheus", "grafana"}
    for service in compose["services"].values():
        assert not watching & set(service.get("depends_on", {})), "the run would wait for who watches it"
    for name in ("prometheus", "grafana"):
        service = compose["services"][name]
        assert int(service["user"]) > 0
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (COMPOSE / source).is_file() if source.startswith(".") else source in compose["volumes"], volume
            assert volume.endswith(":ro") or source == name, "it writes to a volume of its own and nowhere else"
    assert compose["services"]["tensorboard"]["volumes"] == ["runs:/runs:ro"]


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
