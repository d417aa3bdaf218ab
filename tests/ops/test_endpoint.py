"""The Prometheus endpoint of a process, asked over the network as Prometheus asks it."""

import json
import socket
from pathlib import Path

import httpx
import pytest
from prometheus_client import REGISTRY, Gauge
from prometheus_client.parser import text_string_to_metric_families

from ops.config import RunConfig, parse_config
from ops.monitor.endpoint import endpoint
from ops.monitor.observers import of_actor, of_learner
from store.errors import VergeError

Samples = dict[str, tuple[dict[str, str], float]]


def settings(folder: Path, **sections: object) -> RunConfig:
    run = {"name": "watched", "folder": str(folder), "model": {"path": "x"}, "problems": {"source": "p"}}
    return parse_config({**run, **sections}, "a test")


def samples(folder: Path, process: str) -> Samples:
    """What the endpoint answers whose address the run folder has."""
    (noted,) = json.loads((folder / "metrics" / f"{process}.json").read_text())
    assert noted["labels"] == {"process": process}
    asking = {"Accept": "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5"}
    answer = httpx.get(f"http://{noted['targets'][0]}/metrics", timeout=60, headers=asking)  # as Prometheus 2 asks
    assert answer.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.text)
    return {sample.name: (sample.labels, sample.value) for family in families for sample in family.samples}


def test_an_actor_shows_its_newest_heartbeat_its_process_and_what_libraries_add(tmp_path: Path) -> None:
    library = Gauge("vllm:queue", "as vLLM registers its own", registry=REGISTRY)
    try:
        with of_actor(settings(tmp_path, metrics={"actor_port": 0}), "actor-3") as tell:
            assert tell is not None
            tell({"engine": "vllm", "version": 6, "completions": 44})
            tell({"engine": "vllm", "version": 7, "completions": 52})
            library.set(5)
            found = samples(tmp_path, "actor-3")
    finally:
        REGISTRY.unregister(library)
    labels = {"run": "watched", "actor": "actor-3"}
    assert found["verge_actor_version"] == (labels, 7)
    assert found["verge_actor_completions_total"] == (labels, 52)
    assert found["vllm:queue"] == ({}, 5)
    assert found["process_resident_memory_bytes"][1] > 1e6
    assert not (tmp_path / "metrics" / "actor-3.json").exists(), "an endpoint that has ended is not looked for"


def test_a_learner_shows_the_figures_of_its_last_step_and_no_lag_of_an_earlier_one(tmp_path: Path) -> None:
    with of_learner(settings(tmp_path, metrics={"learner_port": 0}, admission={"max_lag": 6})) as tell:
        assert samples(tmp_path, "learner")["verge_learner_max_lag"] == ({"run": "watched"}, 6)
        tell({"step": 1, "reward": 0.25, "alpha": 3.0, "lag_groups_5": 2})
        tell({"step": 2, "reward": 0.5, "alpha": 2.5, "lag_groups_1": 3})
        found = samples(tmp_path, "learner")
    assert found["verge_learner_step"] == ({"run": "watched"}, 2)
    assert found["verge_learner_reward"][1] == 0.5
    assert found["verge_gating_alpha"][1] == 2.5
    assert found["verge_learner_lag_groups"] == ({"run": "watched", "lag": "1"}, 3)


def test_each_rank_of_a_node_has_the_next_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1] - 3
    monkeypatch.setenv("RANK", "11")
    monkeypatch.setenv("LOCAL_RANK", "3")
    with of_learner(settings(tmp_path, metrics={"learner_port": port})) as tell:
        tell({"step": 5})
        (noted,) = json.loads((tmp_path / "metrics" / "learner-11.json").read_text())
        assert noted["targets"] == [f"127.0.0.1:{port + 3}"]
        assert samples(tmp_path, "learner-11")["verge_learner_step"][1] == 5


def test_without_a_port_there_is_no_endpoint(tmp_path: Path) -> None:
    with of_actor(settings(tmp_path), "actor-0") as tell, of_learner(settings(tmp_path)) as told:
        assert tell is None
        told({"step": 1})
        assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken_or_shared_is_refused_in_one_line(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(VergeError, match=r"metrics\.host 127\.0\.0\.1, port \d+ cannot be listened on: .*; set 0"),
        endpoint(tmp_path, "watched", "actor-0", "127.0.0.1", taken.getsockname()[1]),
    ):
        pass
    with pytest.raises(VergeError, match=r"metrics\.actor_port is 9101, but 2 actors .* cannot share it; set 0"):
        settings(tmp_path, metrics={"actor_port": 9101}, actor={"count": 2})


def test_a_run_folder_that_is_read_only_needs_no_note(tmp_path: Path) -> None:
    (tmp_path / "metrics").write_text("a file, where the folder would be")
    with endpoint(tmp_path, "watched", "actor-0", "127.0.0.1", 0) as take:
        take({})
    assert (tmp_path / "metrics").is_file()
