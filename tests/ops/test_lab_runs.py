"""One run of the laboratory: its sampler's distribution, its way through the store, and what a stop leaves."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from actors.families import countdown
from learner.store_thread import StoreThread
from ops.exact import ValidAnswers
from ops.labs import lines, runner
from ops.labs.bases import LONGEST, splits
from ops.labs.sampler import Sampler, sample
from ops.labs.settings import BASE, RunSettings
from ops.labs.training import Run, measures_of
from store.client import Store
from store.errors import VergeError
from store.server import EmbeddedServer
from store.wire import Ticket

SHORT = RunSettings(steps=3, groups=8, lag=1)


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model).eval()


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_model)


def teacher_forced(model: Any, prompt: list[int], tokens: list[int]) -> np.ndarray:
    """log π of each token, by one plain forward pass over prompt and completion."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + tokens])).logits[0].double().log_softmax(-1)
    return logits[len(prompt) - 1 : -1].gather(-1, torch.tensor(tokens)[:, None])[:, 0].numpy()


def test_the_answers_of_a_tree_have_their_teacher_forced_probabilities(model: Any, tokenizer: Any) -> None:
    problems = countdown.problems("held_out", 3, 0)
    answers = ValidAnswers(tokenizer, problems, LONGEST)
    plain = [
        np.exp(teacher_forced(model, tokenizer(p.prompt).input_ids, [*tokenizer(text).input_ids, 15]).sum())
        for p in problems
        for text in countdown.answers(p.answer["digits"], p.answer["target"])
    ]
    found = answers.probabilities(model)
    np.testing.assert_allclose(found, plain, rtol=2e-4)
    np.testing.assert_allclose(answers.solve_rates(found).sum(), sum(plain), rtol=2e-4)


def test_the_sampler_draws_from_the_models_own_distribution(model: Any, tokenizer: Any) -> None:
    problems = countdown.problems("held_out", 4, 0)
    prompts = [tokenizer(problem.prompt).input_ids for problem in problems]
    each = 2000
    sampled = sample(model, np.array(prompts), each, LONGEST, 15, torch.Generator().manual_seed(3))
    for row in range(0, 4 * each, 777):
        length = sampled.length[row]
        plain = teacher_forced(model, prompts[row // each], sampled.tokens[row, :length].tolist())
        np.testing.assert_allclose(sampled.logprobs[row, :length], plain, atol=2e-5)
        assert (sampled.tokens[row, :length] == 15).sum() == int(sampled.ended[row])
    exact = ValidAnswers(tokenizer, problems, LONGEST)
    p = exact.solve_rates(exact.probabilities(model))
    texts = [tokenizer.decode(row[: length - 1]) for row, length in zip(sampled.tokens, sampled.length, strict=True)]
    for place, problem in enumerate(problems):
        valid = set(countdown.answers(problem.answer["digits"], problem.answer["target"]))
        right = np.mean([text in valid for text in texts[place * each : (place + 1) * each]])
        assert abs(right - p[place]) < 5 * np.sqrt(p[place] * (1 - p[place]) / each) + 1e-9


def test_the_samplers_weights_are_exactly_lag_versions_old(tiny_model: Path, tokenizer: Any) -> None:
    trained = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    sampler = Sampler(trained, tokenizer, 2, 2, LONGEST, 0)
    (problem,) = countdown.problems("train", 1, 0)
    written = []
    for version in range(1, 5):
        with torch.no_grad():
            trained.lm_head.weight.mul_(0.5)
        sampler.offer(version, trained)
        (group,) = sampler.roll_out([(Ticket("1-1", problem.id), problem)])
        written.append((group.version_min, group.version_max))
    assert written == [(0, 0), (0, 0), (1, 1), (2, 2)]
    twice_halved = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    with torch.no_grad():
        twice_halved.lm_head.weight.mul_(0.25)
    tokens = group.completions[0].token_ids.tolist()
    plain = teacher_forced(twice_halved, group.prompt_ids.tolist(), tokens)
    np.testing.assert_allclose(group.completions[0].logprobs, plain, atol=2e-5)


def test_a_runs_counts_and_rewards_are_the_stores(tmp_path: Path) -> None:
    async def evidence(store: Store) -> tuple[int, int]:
        facts = await store.problem_facts([problem.id for problem in splits("all").train])
        return sum(each.attempts for each in facts), sum(each.successes for each in facts)

    with (
        EmbeddedServer(tmp_path) as server,
        StoreThread(server.url, "lab", server.password) as line,
        Run(SHORT, splits("all"), measures_of(0, "all")[1], tmp_path, server, line) as taken,
    ):
        figures = taken.whole()
        attempts, successes = line.call(evidence(line.store))
        entries = line.call(line.store.entries())
    counts = figures["counts"]
    assert attempts == SHORT.rollouts == 3 * 8 * 8
    assert counts["committed"] == 24 == counts["drawn"] + counts["zero_mass"]
    assert sum(figures["rewards"]) * 64 == pytest.approx(successes)
    assert [entry.version_min for entry in entries] == [0] * 16 + [1] * 8
    assert figures["ended"] == ""
    for part in ("train", "choose", "report"):
        measured = figures["final"][part]
        assert all(0 < low < high <= 1 for low, high in zip(measured["pass"], measured["pass"][1:], strict=False))
        assert 0 < measured["hard_problems"] < measured["problems"] == len(getattr(splits("all"), part))


def test_a_plan_that_was_stopped_goes_on_with_what_has_no_line(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    plan = [RunSettings(method=BASE), RunSettings(steps=1, groups=4), RunSettings(steps=1, groups=4)]
    assert runner.carry_out(plan, results, minutes=0) == 2
    assert lines.read(results) == []
    lines.append(results, lines.line_of(plan[0], {"final": {"made": "by an earlier start"}}))
    with results.open("a") as file:
        file.write('{"settings": {"steps": 1, "gro')  # killed while it wrote
    assert runner.carry_out(plan, results) == 0
    first, second = lines.read(results)
    assert first["final"] == {"made": "by an earlier start"}
    assert second["settings"] == plan[1]
    assert second["counts"]["committed"] == 4
    assert runner.carry_out(plan, results) == 0
    assert len(lines.read(results)) == 2


def test_a_line_that_is_no_result_is_refused_with_its_number(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    lines.append(results, json.dumps({"settings": {"steps": 1}}))
    lines.append(results, json.dumps({"settings": {"stepz": 1}}))
    with pytest.raises(VergeError, match="line 2 is not a run's result"):
        lines.read(results)
    with pytest.raises(VergeError, match="5001 bytes but must have ≤ 4096"):
        lines.append(results, "x" * 5000)


def test_splits_never_share_a_problem() -> None:
    for task in ("all", "easy"):
        parts = splits(task)  # type: ignore[arg-type]
        ids = [problem.id for part in (parts.train, parts.choose, parts.report) for problem in part]
        assert len(ids) == len(set(ids))
        assert len(parts.choose) == len(parts.report)


def test_workers_end_with_the_process_that_started_them_also_in_the_background_of_a_shell() -> None:
    program = """
import multiprocessing, os, signal
from concurrent.futures import ProcessPoolExecutor
from ops.labs.runner import _prepare
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does to what it starts with &
pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_prepare)
print(pool.submit(os.getpid).result(), flush=True)
pool.submit(exec, "import time\\nwhile True: time.sleep(0.05)").result()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        worker = int(starter.stdout.readline())
        starter.kill()
    until = time.monotonic() + 30
    while (alive := Path(f"/proc/{worker}").exists()) and time.monotonic() < until:
        time.sleep(0.1)
    if alive:
        os.kill(worker, signal.SIGKILL)
    assert not alive
