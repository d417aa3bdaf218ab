"""Alerts and dashboard: they ask only for metrics that there are, and Prometheus' own tool accepts and tests them."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from ops.monitor import dashboard as dashboards
from ops.monitor.known import METRICS

MONITOR = Path(dashboards.__file__).parent
ALERTS = MONITOR / "alerts.yml"
DASHBOARD = MONITOR / "dashboard.json"
PANELS = [(panel.title, query) for panel in dashboards.PANELS for _, query in panel.queries]
EXPOSED = {known.exposed + ("_total" if known.kind == "counter" else "") for known in METRICS}


def promtool(*arguments: str) -> str:
    """What promtool says; it must succeed."""
    if shutil.which("promtool") is None:
        pytest.skip("no promtool: alerts and queries were not tested by Prometheus itself")
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules() -> list[dict[str, object]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return group["rules"]


def test_alerts_and_dashboard_ask_only_for_metrics_of_the_table() -> None:
    expressions = [str(rule["expr"]) for rule in rules()] + [query for _, query in PANELS]
    asked = {name for expression in expressions for name in re.findall(r"verge_[a-z_]+", expression)}
    assert asked <= EXPOSED
    assert len(asked) > 40
    assert "verge_learner_alarm_entropy" in asked


def test_every_alert_says_what_it_is_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) == 12
    for rule in rules():
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]


def test_the_dashboard_is_the_one_that_the_code_generates() -> None:
    assert json.loads(DASHBOARD.read_text(encoding="utf-8")) == dashboards.dashboard(), (
        "run python -m ops.monitor.dashboard > ops/monitor/dashboard.json"
    )


def test_the_panels_of_the_dashboard_lie_beside_one_another() -> None:
    cells = set()
    for panel in dashboards.dashboard()["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        taken = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not taken & cells, panel["title"]
        cells |= taken


def test_each_alert_fires_when_it_should_and_not_otherwise() -> None:
    promtool("check", "rules", str(ALERTS))
    promtool("test", "rules", str(Path(__file__).with_name("alerts_test.yml")))


def test_prometheus_can_read_every_query_of_the_dashboard(tmp_path: Path) -> None:
    queries = [query.replace("$run", "demo").replace("$__rate_interval", "1m") for _, query in PANELS]
    recorded = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    assert f"SUCCESS: {len(queries)} rules found" in promtool("check", "rules", str(file))
