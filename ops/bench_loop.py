"""`verge bench loop`: one job by TRL's GRPOTrainer, by Verge, and by Verge without asynchrony, on the same cores."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from ops import peer
from ops.config import fingerprint, load_config
from ops.figures import at_most, check
from ops.prepare import prepare
from ops.process_tree import PeakMemory
from ops.runfolder import open_config, store_of, write_atomically
from store.client import Store
from store.errors import VergeError
from store.queries import group_log

CONFIG = Path(__file__).with_name("configs") / "smollm2.toml"
JOB = ("learner.lr=1e-5", "sampling.max_completion_tokens=32", "evaluation.method=off", "serve.enabled=false")
FOLDER = Path("runs/.bench-loop")  # no run can have that name
FASTER, SERIAL, MEMORY, NOISE = 4.0, 1.05, 2.0, -2.0

Phase = dict[str, Any]
"""What one way to do the job took. seconds: from when all is loaded to the end of the last step; completions: trained
on; rewards: of each step, the mean; peak_mib: resident memory summed over processes; steps: of each, the seconds in
which the trainer waits for completions (generation_s), computes gradient and update (training_s), or does neither
(rest_s), which add up to `seconds`."""


def run(steps: int, with_peer: bool, overrides: Sequence[str] = (), folder: Path = FOLDER) -> dict[str, Any]:
    """Measure what `folder` does not have yet, one phase after another, and compare.

    The same for both: the model, in fp32; problems and the chat they are put in; completions of a step, their limit,
    temperature and end tokens; the verifier; AdamW with its learning rate, warm-up, betas and clipping; the cores.
    Not the same: TRL has GRPO's advantage and token-level loss, and takes the problems as they come; Verge has those of
    the config, draws, keeps every group in its store, and publishes every version to disk. TRL generates by
    `transformers`, as it does by default, all completions of a step in one batch; its vLLM mode supports vLLM up to
    0.31, and none of the builds for CPUs that Verge runs on, and its continuous batching is not tried. It multiplies in
    bf16 where a product of matrices is faster in it here, and keeps activations, which by default it computes twice.

    Verge runs twice, as `verge up`: as configured, and with max_lag 0, where each side has every core while the other
    waits. The second says what generation and training cost one after another.

    Args:
        overrides: of the job, which is `CONFIG` with `JOB`.
        folder: ours alone, for scratch and the phases' figures. Those of an interrupted call are not measured again if
            the job is the same; a call that ends removes it.

    Returns:
        `checks`. completions_over_trl: per second. reward_difference_in_se: Verge's reward less TRL's, paired by step,
        in standard errors of their mean difference (other seeds differ by more than that). peak_memory_over_trl.
        async_over_serial: seconds of the asynchronous run over generation and training of the synchronous one. Beside
        them the phases.
    """
    cores = len(os.sched_getaffinity(0))
    every_core = ("admission.max_lag=0", f"learner.threads={cores}", f"actor.cpu_cores=0-{cores - 1}")
    phases = _Phases(folder, (*JOB, *overrides, f"learner.steps={steps}"), cores)
    found: dict[str, Phase] = {}
    if with_peer:
        python = peer.environment(peer.cache_folder())
        found["trl"] = phases.trl(python, bf16=product_s("bfloat16", cores) < product_s("float32", cores))
    found["asynchronous"] = phases.verge("asynchronous", ())
    found["synchronous"] = phases.verge("synchronous", every_core)
    shutil.rmtree(folder)
    return figures(found) | {"cores": cores}


def figures(found: Mapping[str, Phase]) -> dict[str, Any]:
    """The checks, from phases `asynchronous`, `synchronous` and perhaps `trl`; beside them the phases."""
    ours = found["asynchronous"]
    serial_s = sum(step["generation_s"] + step["training_s"] for step in found["synchronous"]["steps"])
    checks = [at_most("async_over_serial", ours["seconds"] / serial_s, SERIAL)]
    if "trl" in found:
        theirs = found["trl"]
        rate = (ours["completions"] / ours["seconds"]) / (theirs["completions"] / theirs["seconds"])
        apart = in_standard_errors(np.subtract(ours["rewards"], theirs["rewards"]))
        checks = [
            check("completions_over_trl", rate, FASTER, rate >= FASTER),
            check("reward_difference_in_se", apart, NOISE, apart >= NOISE),
            *checks,
            at_most("peak_memory_over_trl", ours["peak_mib"] / theirs["peak_mib"], MEMORY),
        ]
    return {"checks": checks, "phases": dict(found)}


def in_standard_errors(values: Any) -> float:
    """The mean of values [n ≥ 2] in standard errors of itself; 0 where all are 0."""
    mean, spread = float(np.mean(values)), float(np.std(values, ddof=1))
    return 0.0 if mean == 0 else float(np.divide(mean, spread / np.sqrt(len(values))))


def product_s(dtype: str, threads: int) -> float:
    """Seconds of a product of matrices as large as a layer's: the best of some."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        kind = getattr(torch, dtype)
        left, right, taken = torch.ones(64, 576, dtype=kind), torch.ones(576, 1536, dtype=kind), []
        for _ in range(3):
            began = time.perf_counter()
            left @ right
            taken.append(time.perf_counter() - began)
        return min(taken)
    finally:
        torch.set_num_threads(before)


def table(found: Mapping[str, Any]) -> Table:
    """The phases of `run` side by side, in seconds a step."""
    rows = Table("", "completions/s", "s a step", "waiting for completions", "training", "rest", "reward", "peak MiB")
    for name, phase in found["phases"].items():
        count = len(phase["steps"])
        parts = [
            sum(step[part] for step in phase["steps"]) / count for part in ("generation_s", "training_s", "rest_s")
        ]
        last = phase["rewards"][-5:]
        rewards = f"{np.mean(phase['rewards'][:5]):.3f} → {np.mean(last):.3f}"
        rate = phase["completions"] / phase["seconds"]
        seconds = [f"{value:.2f}" for value in (rate, phase["seconds"] / count, *parts)]
        rows.add_row(name, *seconds, rewards, f"{phase['peak_mib']:.0f}")
    return rows


class _Phases:
    """The job, done one way or another; each way's figures are on disk as soon as there are any."""

    def __init__(self, folder: Path, overrides: tuple[str, ...], cores: int) -> None:
        self._folder, self._overrides, self._cores = folder, overrides, cores
        self._config = load_config(CONFIG, overrides)
        self._job = f"{fingerprint(self._config)} {overrides} {cores} {peer.TRL}"
        folder.mkdir(parents=True, exist_ok=True)

    def _once(self, name: str, measure: Callable[[Path], Phase]) -> Phase:
        saved = self._folder / f"{name}.json"
        if saved.exists() and (before := json.loads(saved.read_text()))["job"] == self._job:
            peer.say(f"{name} was measured before the last call was interrupted")
            phase: Phase = before["phase"]
            return phase
        peer.say(f"{name} begins")
        scratch = self._folder / name
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        phase = measure(scratch)
        write_atomically(saved, json.dumps({"job": self._job, "phase": phase}))
        shutil.rmtree(scratch)
        return phase

    def trl(self, python: Path, bf16: bool) -> Phase:
        """By TRL's GRPOTrainer."""
        prepared = prepare(self._config)

        def measure(scratch: Path) -> Phase:
            given = peer.job(self._config, prepared, self._cores, bf16, scratch)
            judge = peer.Judge(self._config, prepared)
            try:
                return of_peer(peer.play(python, given, judge.rewards))
            finally:
                judge.close()

        return self._once("trl", measure)

    def verge(self, name: str, overrides: tuple[str, ...]) -> Phase:
        """By `verge up`."""

        def measure(scratch: Path) -> Phase:
            changes = (*self._overrides, *overrides, f"folder={scratch / 'run'}")
            options = [option for change in changes for option in ("--set", change)]
            peak_kib = _up([str(CONFIG), *options])
            return asyncio.run(_facts(scratch / "run")) | {"peak_mib": peak_kib / 1024}

        return self._once(name, measure)


def _up(arguments: list[str]) -> int:
    """Run `verge up` to its end; returns KiB. It says on our stderr what it does."""
    process = subprocess.Popen([sys.executable, "-m", "ops.cli", "up", *arguments], stdout=subprocess.DEVNULL)
    try:
        with PeakMemory(process.pid) as peak:
            status = process.wait()
    except BaseException:
        process.terminate()  # it ends what it has started
        process.wait()
        raise
    if status:
        raise VergeError(f"verge up {arguments[0]} ended with status {status}; what it said is above")
    return peak.kib


async def _facts(folder: Path) -> Phase:
    """A finished run's phase, without its memory, from what its store keeps."""
    config = open_config(folder)
    with store_of(config) as (url, password):
        store = await Store.connect(url, config.name, password)
        try:
            records = await store.dynamics_history(config.learner.steps)
            ends = await store.dynamics_times(config.learner.steps)
            beats = (await store.actors()).values()
            issued = min(int(entry.id.partition("-")[0]) / 1000 for entry in await group_log(store))
        finally:
            await store.close()
    if len(records) < config.learner.steps:
        raise VergeError(f"verge up took {len(records)} of {config.learner.steps} steps, too few to compare")
    ready = min(float(str(beat["time_s"])) - float(str(beat["up_s"])) for beat in beats)
    return of_verge(records, ends, max(ready, issued))


def of_verge(records: list[dict[str, float]], ends: list[float], began: float) -> Phase:
    """A run's phase, without its memory.

    Args:
        records, ends: the dynamics of each step, and when it was over, in Unix seconds.
        began: when the engine was ready and the first ticket was out.
    """
    steps = []
    for record, end, before in zip(records, ends, [began, *ends], strict=False):
        training_s = record["forward_backward_s"] + record["optimiser_s"]
        rest_s = record["step_s"] - training_s
        steps.append({"generation_s": end - before - record["step_s"], "training_s": training_s, "rest_s": rest_s})
    return {
        "seconds": ends[-1] - began,
        "completions": int(sum(record["completions"] for record in records)),
        "rewards": [record["reward"] for record in records],
        "steps": steps,
    }


def of_peer(said: dict[str, Any]) -> Phase:
    """TRL's phase, from what `peer.play` returns."""
    ready, *taken = said["messages"]
    steps = []
    for message, before in zip(taken, said["messages"], strict=False):
        parts = {part: message[part] for part in ("generation_s", "training_s")}
        steps.append(parts | {"rest_s": message["at_s"] - before["at_s"] - sum(parts.values())})
    return {
        "seconds": taken[-1]["at_s"] - ready["at_s"],
        "completions": sum(len(message["rewards"]) for message in taken),
        "rewards": [float(np.mean(message["rewards"])) for message in taken],
        "peak_mib": said["peak_kib"] / 1024,
        "steps": steps,
    }
