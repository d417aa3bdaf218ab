"""TRL beside Verge: its own environment, the same job for it, and what it says while it trains."""

import asyncio
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from actors.settings import stop_token_ids
from actors.verifiers import Verifiers
from ops.config import RunConfig
from ops.prepare import Prepared, load_tokenizer
from ops.process_tree import PeakMemory
from store.errors import VergeError
from store.wire import Problem, Verdict

TRL = "1.16.0"
MICRO_BATCH = 16
PROGRAM = Path(__file__).with_name("peer_job.py")


def cache_folder() -> Path:
    """Where what is made once for this user lies."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "verge"


def environment(cache: Path) -> Path:
    """The Python of an environment with TRL, made on first use: a minute or two, and 1 GB.

    It shares nothing with ours, so that no package of ours changes what TRL does; PyTorch and transformers are of the
    versions that Verge runs with here.

    Raises:
        VergeError: pip, as it is configured, cannot install it.
    """
    ours = [f"{name}=={importlib.metadata.version(name)}" for name in ("torch", "transformers", "accelerate")]
    folder = cache / f"trl-{TRL}-{ours[0]}-{ours[1]}".replace("==", "-")
    python = folder / "bin" / "python"
    if python.exists():
        return python
    say(f"installing TRL {TRL} into {folder}, once")
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        venv.EnvBuilder(with_pip=True, symlinks=True).create(partial)
        command = [str(partial / "bin" / "python"), "-I", "-m", "pip", "install", "--quiet", f"trl=={TRL}", *ours]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            why = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip gave no reason"]
            raise VergeError(
                f"TRL {TRL} cannot be installed: {why[-1].removeprefix('ERROR: ')}; point pip at an index that has it"
                " and PyTorch's build (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL), or add --without-peer"
            )
        partial.rename(folder)
    except OSError as error:
        raise VergeError(f"TRL's environment {folder} cannot be made: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return python


def job(config: RunConfig, prepared: Prepared, cores: int, bf16: bool, scratch: Path) -> dict[str, Any]:
    """What `peer_job.py` is given: the run of `config`, in TRL's terms.

    The same: model, problems and their chat, completions of a step, sampling, reward, optimiser, learning rate with its
    warm-up, clipping. TRL's own: order of problems is the file's, advantage and loss are its defaults. For speed: no
    gradient checkpointing, which it has by default, and twice its default of completions in a forward pass (all at
    once would take memory that a step of this size is not worth).
    """
    learner, sampling = config.learner, config.sampling
    return {
        "folder": str(scratch),
        "model": str(prepared.model),
        "problems": [{"problem": problem.id, "prompt": problem.prompt} for problem in prepared.problems.train],
        "steps": learner.steps,
        "groups_per_step": learner.groups_per_step,
        "group_size": sampling.group_size,
        "micro_batch": _micro_batch(learner.groups_per_step * sampling.group_size),
        "max_completion_tokens": sampling.max_completion_tokens,
        "temperature": sampling.temperature,
        "lr": learner.lr,
        "warmup_steps": learner.warmup_steps,
        "betas": learner.betas,
        "weight_decay": learner.weight_decay,
        "grad_clip": learner.grad_clip,
        "seed": config.seed,
        "bf16": bf16,
        "threads": cores,
    }


def _micro_batch(completions: int) -> int:
    """Completions of a forward pass: the most up to `MICRO_BATCH` that divide those of a step."""
    return max(size for size in range(1, MICRO_BATCH + 1) if completions % size == 0)


class Judge:
    """Rewards for the peer's completions: decoded and verified as an actor would."""

    def __init__(self, config: RunConfig, prepared: Prepared) -> None:
        self._problems = {problem.id: problem for problem in prepared.problems.train}
        self._tokenizer = load_tokenizer(prepared.model)
        self._stop = set(stop_token_ids(prepared.model, self._tokenizer))
        self._verifiers = Verifiers(config.verifier)

    def rewards(self, problem_ids: list[str], completions: list[list[int]]) -> list[float]:
        """One reward a completion, given as token ids with their end token, if they have one."""
        return asyncio.run(self._rewards(problem_ids, completions))

    async def _rewards(self, problem_ids: list[str], completions: list[list[int]]) -> list[float]:
        pairs = zip(problem_ids, completions, strict=True)
        return [await self._reward(self._problems[problem_id], ids) for problem_id, ids in pairs]

    async def _reward(self, problem: Problem, ids: list[int]) -> float:
        text = self._tokenizer.decode(ids, skip_special_tokens=True)
        reward, verdict = await self._verifiers.verify(problem, text, "stop" if ids[-1] in self._stop else "length")
        if verdict is Verdict.ERROR:
            raise VergeError(f"the verifier failed on problem {problem.id}: {self._verifiers.last_error}")
        return reward

    def close(self) -> None:
        """End the verifiers' processes."""
        self._verifiers.close()


def play(
    python: Path, given: dict[str, Any], judge: Callable[[list[str], list[list[int]]], list[float]]
) -> dict[str, Any]:
    """Run the peer's program to its end.

    Returns:
        `messages`, those named `ready` and `step` with the time of each as `at_s`, and `peak_kib` of its memory.

    Raises:
        VergeError: it failed; the message ends with its last line.
    """
    scratch = Path(given["folder"])
    file, log = scratch / "job.json", scratch / "trl.log"
    file.write_text(json.dumps(given))
    messages = []
    with log.open("w") as errors, _ended(
        subprocess.Popen(
            [python, "-I", PROGRAM, file],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(given["threads"])},
        )
    ) as process, PeakMemory(process.pid) as peak:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            message = json.loads(line)
            if message["do"] == "judge":
                answer = {"rewards": judge(message["problems"], message["completions"])}
                process.stdin.write(json.dumps(answer) + "\n")
                process.stdin.flush()
                continue
            messages.append(message)
            if message["do"] == "step":
                say(f"TRL: step {message['step']} of {given['steps']} in {message['step_s']:.1f} s")
        status = process.wait()
    if status:
        last = [line for line in log.read_text().splitlines() if line.strip()] or ["it said nothing"]
        raise VergeError(f"TRL ended with status {status}: {last[-1]} (log: {log})")
    return {"messages": messages, "peak_kib": peak.kib}


@contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def say(text: str) -> None:
    """One line of progress."""
    print(f"bench loop: {text}", file=sys.stderr, flush=True)
