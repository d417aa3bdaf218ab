"""`verge up` as its user runs it: real store, real engine, real trainer, and a kill −9 in the middle."""

import asyncio
import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from gating.posterior import discount
from ops.client import connect
from store.client import Store
from store.server import EmbeddedServer, live_server
from tests.ops.serving import serving

ROOT = Path(__file__).parents[2]
CONFIG = """
name = "e2e"
seed = 3
[model]
path = "{model}"
[problems]
source = "builtin:countdown"
train_count = 256
held_out_count = 256
[sampling]
max_completion_tokens = 8
[actor]
dtype = "float32"
context_tokens = 32
max_sequences = 128
cpu_cores = "0"
[learner]
steps = {steps}
groups_per_step = {groups}
lr = 1e-4
warmup_steps = 3
dtype = "fp32"
threads = 1
checkpoint_every = 10
[admission]
max_lag = {max_lag}
[evaluation]
k = [1, 8, 64]
[metrics]
actor_port = 0
learner_port = 0
"""
STEPS = 20
GROUPS = 64


def write_config(folder: Path, model: Path, steps: int = STEPS, groups: int = GROUPS, max_lag: int = 4) -> Path:
    path = folder / "run.toml"
    path.write_text(CONFIG.format(model=model, steps=steps, groups=groups, max_lag=max_lag))
    return path


def command(config: Path, folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "ops.cli", "up", str(config), "--set", f"folder={folder}", *more]


def verge(*arguments: str, timeout: float = 300) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "ops.cli", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=timeout
    )


def dynamics(folder: Path) -> dict[str, float]:
    server = live_server(folder)
    if server is None:
        return {}

    async def read() -> dict[str, float]:
        store = await Store.connect(server.url, "e2e", server.password)
        try:
            return await store.dynamics()
        finally:
            await store.close()

    return asyncio.run(read())


def child_process(folder: Path, role: str) -> int:
    """Process id of the run's actor, or its page (`serve`)."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if role.encode() in words and str(folder).encode() in words:
                return int(entry.name)
    raise AssertionError(f"no {role} is running")


def processes_marked(mark: str) -> list[str]:
    """Command lines of the live processes that have `mark` in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"VERGE_TEST={mark}".encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return found


def wait_for_step(folder: Path, step: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 240
    while dynamics(folder).get("step", 0) < step:
        assert process.poll() is None, "the run ended early"
        assert time.monotonic() < deadline, "the run does not progress"
        time.sleep(0.3)


def scraped(folder: Path, process: str) -> str:
    """What the endpoint of a process of the run answers to Prometheus."""
    (noted,) = json.loads((folder / "metrics" / f"{process}.json").read_text())
    return httpx.get(f"http://{noted['targets'][0]}/metrics", timeout=60).text


async def recounted(server: EmbeddedServer) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """Every problem's facts as stored, and as they follow from the log of groups."""
    store = await Store.connect(server.url, "e2e", server.password)
    try:
        gamma = float((await store.meta())["gamma"])
        again: dict[str, tuple[int, int, float, float, int]] = defaultdict(lambda: (0, 0, 0.0, 0.0, 0))
        after = "0-0"
        seen = set()
        while entries := await store.entries(after):
            after = entries[-1].stream_id
            for entry in entries:
                assert entry.id not in seen, "a group counted twice"
                seen.add(entry.id)
                n, s, a, b, version = again[entry.problem_id]
                a, b, version = (
                    x.item() for x in map(_array, discount(a, b, version, entry.c, entry.G, entry.version_min, gamma))
                )
                again[entry.problem_id] = n + entry.G, s + entry.c, a, b, int(version)
        stored = {}
        for problem in await store.problem_ids():
            found = await store.problem(problem)
            assert found is not None
            facts = found[1]
            if facts.attempts:
                stored[problem] = facts.attempts, facts.successes, facts.evidence_a, facts.evidence_b, facts.version
        return stored, dict(again), await store.counters()
    finally:
        await store.close()


def _array(value: Any) -> Any:
    import numpy as np

    return np.asarray(value)


@pytest.fixture(scope="module")
def killed_run(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A finished run whose actor, page and store were killed −9 at step 5; its config, folder, and what it printed."""
    base = tmp_path_factory.mktemp("run")
    config, folder = write_config(base, tiny_model), base / "folder"
    process = subprocess.Popen(
        command(config, folder, "--summary", str(base / "summary.json")),
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "VERGE_TEST": str(folder)},
    )  # fmt: skip
    try:
        wait_for_step(folder, 5, process)
        assert any("actor" in line for line in processes_marked(str(folder)))
        for name in ("actor-0", "learner"):
            (base / f"{name}.metrics").write_text(scraped(folder, name))
        os.kill(child_process(folder, "actor"), signal.SIGKILL)
        os.kill(child_process(folder, "serve"), signal.SIGKILL)
        server = live_server(folder)
        assert server is not None
        os.kill(server.pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, output
    return config, folder, output


def test_the_model_learns_and_the_summary_says_by_how_much(killed_run: tuple[Path, Path, str]) -> None:
    _, folder, output = killed_run
    summary = json.loads((folder.parent / "summary.json").read_text())
    assert summary["steps"] == STEPS
    gain = {row["k"]: row for row in summary["evaluation"]["pass_at_k"]}
    # Seen after 20 steps: 4 to 6 standard errors at k = 8, 9 to 11 at k = 64; at k = 1 it takes longer.
    assert gain[8]["gain"] > 2 * gain[8]["gain_se"]
    assert gain[64]["gain"] > 3 * gain[64]["gain_se"]
    assert Path(summary["weights"]["path"], "model.safetensors").is_file()
    assert sum(summary["lag_histogram"].values()) == summary["groups"]["drawn"] == STEPS * GROUPS
    assert max(map(int, summary["lag_histogram"])) <= 4
    assert "pass@8" in output
    assert "Traceback" not in output


def test_a_killed_actor_and_a_killed_store_come_back_and_no_count_changes(killed_run: tuple[Path, Path, str]) -> None:
    _, folder, output = killed_run
    assert "actor-0 was killed by SIGKILL" in output
    assert "the store died; starting it again" in output
    with EmbeddedServer(folder) as server:
        stored, again, counters = asyncio.run(recounted(server))
    assert counters["committed"] >= STEPS * GROUPS
    assert stored.keys() == again.keys()
    for problem, (n, s, a, b, version) in again.items():
        assert stored[problem][:2] == (n, s)
        assert stored[problem][2:4] == pytest.approx((a, b), rel=1e-9)
        assert stored[problem][4] == version


def test_the_page_is_there_from_the_first_lines_on_and_comes_back(killed_run: tuple[Path, Path, str]) -> None:
    _, folder, output = killed_run
    lines = output.splitlines()
    where = next(i for i, line in enumerate(lines) if line.startswith("page: http://127.0.0.1:"))
    assert where < next(i for i, line in enumerate(lines) if line.startswith("step "))
    assert "the page was killed by SIGKILL; starting it again" in output
    assert len([line for line in lines if line.startswith("page: ")]) == 1, "it comes back at the same address"
    assert "Traceback" not in (folder / "logs" / "serve.log").read_text()


def test_every_figure_of_the_learner_and_the_actors_is_a_documented_metric(killed_run: tuple[Path, Path, str]) -> None:
    from ops.monitor.known import METRICS, metric_of

    summary = json.loads(verge("state", "summary", str(killed_run[1]), "--json").stdout)
    shown = {metric_of(name) for name in summary["dynamics"]}
    shown |= {f"actor/{name}" for beat in summary["actors"].values() for name in beat if name != "engine"}
    assert shown <= {known.name for known in METRICS}


def test_actor_and_learner_show_what_they_report_and_the_actor_what_vllm_says(
    killed_run: tuple[Path, Path, str],
) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    values: dict[str, dict[str, float]] = {"actor-0": defaultdict(float), "learner": defaultdict(float)}
    for name, of_process in values.items():
        for family in text_string_to_metric_families((killed_run[1].parent / f"{name}.metrics").read_text()):
            for sample in family.samples:
                of_process[sample.name] += sample.value
    actor, learner = values["actor-0"], values["learner"]
    assert actor["verge_actor_completions_total"] >= 3 * GROUPS * 8  # of 5 steps; its last heartbeat is up to 1 s old
    assert actor["vllm:request_success_total"] > 0
    assert actor["vllm:generation_tokens_total"] > actor["verge_actor_completions_total"]
    assert learner["verge_learner_step"] >= 5
    assert 0 < learner["verge_learner_reward"] < 1
    assert learner["verge_learner_max_lag"] == 4


def test_nothing_is_left_running(killed_run: tuple[Path, Path, str]) -> None:
    assert processes_marked(str(killed_run[1])) == []


def test_state_answers_from_the_run_folder_afterwards(killed_run: tuple[Path, Path, str]) -> None:
    _, folder, _ = killed_run
    summary = verge("state", "summary", str(folder), "--json")
    assert summary.returncode == 0, summary.stderr
    assert json.loads(summary.stdout)["problems"]["total"] == 256
    problem = json.loads(verge("state", "list", str(folder), "--limit", "1", "--json").stdout)["problems"][0]["id"]
    history = verge("state", "problem", problem, str(folder), "--json")
    assert history.returncode == 0, history.stderr
    assert json.loads(history.stdout)["groups"]


def test_the_page_and_the_store_of_a_run_answer_alike(killed_run: tuple[Path, Path, str]) -> None:
    _, folder, _ = killed_run
    with serving(folder) as page:
        over_http, stored = connect(page.url), connect(folder)
        assert over_http.summary() == stored.summary()
        hardest = stored.list_problems(where="attempts > 0", sort="-gate", what_if_k=64)
        assert over_http.list_problems(where="attempts > 0", sort="-gate", what_if_k=64) == hardest
        assert over_http.problem_history(hardest[0]["id"]) == stored.problem_history(hardest[0]["id"])
        assert over_http.changes(0, STEPS) == stored.changes(0, STEPS)
        log = stored.group_log()
        assert over_http.group_log() == log
        assert sum(entry["c"] for entry in log) == int(stored.problem_columns()["successes"].sum())


def test_a_run_continues_at_its_next_step_and_refuses_another_objective(killed_run: tuple[Path, Path, str]) -> None:
    config, folder, _ = killed_run
    refused = verge(*command(config, folder)[3:], "--set", "gating.k=32")
    assert refused.returncode == 1
    assert "gating.k = 8" in refused.stderr
    assert "Traceback" not in refused.stderr
    more = verge(*command(config, folder)[3:], "--set", f"learner.steps={STEPS + 3}", "--set", "evaluation.method=off")
    assert more.returncode == 0, more.stdout + more.stderr
    assert json.loads((folder / "summary.json").read_text())["steps"] == STEPS + 3
    assert f"continues after step {STEPS}" in (folder / "logs" / "learner.log").read_text()


@pytest.fixture(scope="module")
def on_a_terminal(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The summary of a short synchronous run, and what it wrote to its terminal; its tracker can never work."""
    base = tmp_path_factory.mktemp("terminal")
    config, folder = write_config(base, tiny_model, steps=6, groups=32, max_lag=0), base / "folder"
    (folder / "track").parent.mkdir()
    (folder / "track").write_text("a file, where the tracker's folder would be")
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
    changed = ["--set", "evaluation.method=off", "--set", "track.kind=tensorboard", "--json"]
    process = subprocess.Popen(
        command(config, folder, *changed), cwd=ROOT, stdout=subprocess.PIPE, stderr=theirs, text=True,
        env={**os.environ, "TERM": "xterm-256color", "NO_COLOR": "1"},
    )  # fmt: skip
    os.close(theirs)
    written = b""
    try:
        with suppress(OSError):  # nobody has its other end any more
            while part := os.read(ours, 65536):
                written += part
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
        os.close(ours)
    assert process.returncode == 0, written.decode()
    return json.loads(output), written.decode()


def test_synchronous_training_is_the_same_loop_with_no_lag(on_a_terminal: tuple[dict[str, Any], str]) -> None:
    summary, _ = on_a_terminal
    assert summary["steps"] == 6
    assert summary["lag_histogram"] == {"0": 6 * 32}


def test_a_terminal_shows_a_panel_with_each_actor_and_what_the_learner_waits_for(
    on_a_terminal: tuple[dict[str, Any], str],
) -> None:
    assert "\x1b[1A" in on_a_terminal[1], "it is redrawn in place"
    written = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", on_a_terminal[1])
    assert "─ e2e · step –/6 ─" in written
    assert "learner: have 0 of 32 groups for step 1, because no actor has started yet" in written
    assert "actor-0 loads its engine" in written
    assert re.search(r"─ e2e · step [1-6]/6 ─", written)
    assert re.search(r"lag 0\.0 of 0 .* tokens/s \d+", written)
    assert written.endswith("\n")


def test_a_tracker_that_cannot_work_is_said_and_costs_the_run_nothing(
    on_a_terminal: tuple[dict[str, Any], str],
) -> None:
    (said,) = [line for line in on_a_terminal[1].splitlines() if "the tracker" in line]
    assert "the tracker ended with status 1: " in said
    assert "; the run goes on without it (log: " in said
