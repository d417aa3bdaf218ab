"""Prometheus itself reads compose's configuration, scrapes real endpoints, and has something for every panel."""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client import REGISTRY, Gauge

from ops.config import parse_config
from ops.monitor import dashboard as dashboards
from ops.monitor.known import METRICS
from ops.monitor.observers import of_actor, of_learner
from tests.ops.deployment import COMPOSE, OPS
from tests.ops.serving import Served

RUN = "served"
WITHIN_S = 60


@dataclass(frozen=True, slots=True)
class Processes:
    """The endpoints of a learner and an actor that tell all that such processes tell, by role."""

    addresses: dict[str, str]
    tell: Callable[[float], None]
    """Say this value of everything."""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    folder = tmp_path_factory.mktemp("watched")
    ports = {"actor_port": 0, "learner_port": 0}
    config = parse_config(
        {"name": RUN, "folder": str(folder), "model": {"path": "x"}, "problems": {"source": "p"}, "metrics": ports},
        "a test",
    )
    of_learners, of_actors = [
        [known.name.partition("/")[2] for known in METRICS if known.at == at]
        for at in ("serve, learner", "serve, actor")
    ]
    names = ("kv_cache_usage_perc", "prefix_cache_hits_total", "prefix_cache_queries_total")
    of_vllm = [Gauge(f"vllm:{name}", "as vLLM registers its own", registry=REGISTRY) for name in names]
    try:
        with of_learner(config) as learner, of_actor(config, "actor-0") as actor:
            assert actor is not None

            def tell(value: float) -> None:
                learner(dict.fromkeys(of_learners, value))
                actor(dict.fromkeys(of_actors, value))
                for metric in of_vllm:
                    metric.set(value)

            notes = {"learner": "learner", "actor": "actor-0"}
            addresses = {
                role: json.loads((folder / "metrics" / f"{note}.json").read_text())[0]["targets"][0]
                for role, note in notes.items()
            }
            yield Processes(addresses, tell)
    finally:
        for metric in of_vllm:
            REGISTRY.unregister(metric)


@pytest.fixture(scope="module")
def prometheus(
    served: Served, processes: Processes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """Prometheus with compose's configuration; only where things are, and how often it asks, is this machine's."""
    if shutil.which("prometheus") is None:
        pytest.skip("no prometheus: its configuration and the dashboard's queries were not run by itself")
    folder = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "1s"}
    config["rule_files"] = [str(OPS / "monitor" / "alerts.yml")]
    (folder / "token").write_text("a page on loopback asks for none")
    for job in config["scrape_configs"]:
        role = job["job_name"].removeprefix("verge-")
        job.pop("dns_sd_configs", None)
        where = served.url.removeprefix("http://").rstrip("/") if role == "page" else processes.addresses[role]
        job["static_configs"] = [{"targets": [where]}]
        if "authorization" in job:
            job["authorization"]["credentials_file"] = str(folder / "token")
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/", timeout=60) as client:

            def ready() -> bool:
                assert process.poll() is None, (folder / "log").read_text()
                with suppress(httpx.TransportError):
                    return client.get("-/ready").status_code == 200
                return False

            eventually(ready)
            yield client
    finally:
        process.terminate()
        process.wait(60)


def eventually(true: Callable[[], Any]) -> Any:
    """Its value, once it has one."""
    deadline = time.monotonic() + WITHIN_S
    while not (found := true()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return found


def ask(client: httpx.Client, path: str, **parameters: str) -> Any:
    answer = client.get(f"api/v1/{path}", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def test_every_process_is_scraped_and_every_alert_is_evaluated(prometheus: httpx.Client) -> None:
    def targets() -> dict[str, str]:
        found = {t["labels"]["job"]: t["health"] for t in ask(prometheus, "targets")["activeTargets"]}
        return found if "unknown" not in found.values() else {}

    assert eventually(targets) == {"verge-page": "up", "verge-learner": "up", "verge-actor": "up"}

    def rules() -> list[dict[str, Any]]:
        (group,) = ask(prometheus, "rules")["groups"]
        return group["rules"] if all(rule["health"] != "unknown" for rule in group["rules"]) else []

    evaluated = eventually(rules)
    assert len(evaluated) == 12
    assert {rule["health"] for rule in evaluated} == {"ok"}


def test_every_query_of_the_dashboard_finds_a_number(prometheus: httpx.Client, processes: Processes) -> None:
    nothing = {(panel.title, name): query for panel in dashboards.PANELS for name, query in panel.queries}
    values = count(1)

    def all_found() -> bool:
        processes.tell(next(values))  # so that what is divided by is not 0
        for panel, query in list(nothing.items()):
            text = query.replace("$run", RUN).replace("$__rate_interval", "10s")
            if any(series["value"][1] != "NaN" for series in ask(prometheus, "query", query=text)["result"]):
                del nothing[panel]
        return not nothing

    eventually(all_found)
    runs = ask(prometheus, "series", **{"match[]": "verge_store_running"})
    assert [series["run"] for series in runs] == [RUN], "what the dashboard offers to choose from"
