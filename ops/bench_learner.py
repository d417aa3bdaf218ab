"""`verge bench learner`: the learner's loop against a plain padded step and against this machine's own matmuls."""

import json
import math
import resource
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from learner.batches import Shape, TrainCompletion, TrainGroup, pack
from learner.config import (
    AdmissionConfig,
    AlarmsConfig,
    CorrectionConfig,
    DrawConfig,
    GatingConfig,
    LearnerConfig,
    LearnerSettings,
    ObjectiveConfig,
)
from learner.loading import load_model
from learner.loop import Learner
from learner.policy import CHUNK_ELEMENTS, shape_of
from learner.ranks import Ranks
from learner.store_thread import StoreThread
from learner.trainer import Trainer
from ops.bench_publish import publish_figures
from ops.figures import at_most, check
from store.server import EmbeddedServer
from store.wire import Completion, Problem, RolloutGroup, Span, Ticket, Verdict

RUN = "bench"


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch of every step: `problems` prompts of `prompt` tokens, each with `size` completions of `length`."""

    problems: int = 8
    size: int = 8
    prompt: int = 50
    length: int = 24

    @property
    def fed(self) -> int:
        """Tokens of a step that the model must see: each prompt once, and no completion's last token."""
        return self.problems * (self.prompt + self.size * (self.length - 1))

    @property
    def trained(self) -> int:
        """Completion tokens of a step."""
        return self.problems * self.size * self.length

    @property
    def pairs(self) -> int:
        """Pairs of a token and one that it attends to."""
        fed = self.length - 1
        completion = fed * self.prompt + fed * (fed + 1) // 2
        return self.problems * (self.prompt * (self.prompt + 1) // 2 + self.size * completion)


def run(model: Path, batch: Batch = Batch(), rounds: int = 2) -> dict[str, Any]:
    """Time, `rounds` times, a naive step and then two of the learner's loop, all in fp32.

    The loop is the whole one: groups come from a store, weights are published to disk and announced, beside the next
    step. The naive step holds one padded row per completion and keeps logits only where completions are; it has the
    loop's token budget and optimiser. They take turns, so that a busy machine is as busy for both.

    Returns:
        `checks`, of medians: step_over_naive, of a step's seconds; flops_share, of the best rate at which the machine
        multiplied matrices of the step's own shapes, in forward and backward, counting only FLOPs that no
        implementation can avoid; overhead_share and publish_block_share, of a step's seconds; delta_size_ratio, that of
        `bench_publish`. Beside them seconds, GFLOP/s, and the loop's peak GiB.
    """
    turns = _Turns(model, batch, rounds)
    with tempfile.TemporaryDirectory(prefix="verge-bench-") as folder:
        rows = _loop(batch, 2 * rounds, Path(folder), turns)
    delta = next(row for row in publish_figures(model) if row["name"] == "delta_size_ratio")
    names = ("step_s", "wait_s", "forward_backward_s", "optimiser_s", "publish_blocked_s")
    median = {name: float(np.median([row[name] for row in rows])) for name in names}
    # Planning is timed as waiting. Groups are always there, so it is all that is in it.
    step_s, computing_s = median["step_s"] + median["wait_s"], median["forward_backward_s"]
    naive_s, rate = float(np.median(turns.naive_s)), max(turns.rates)
    share = turns.needed_flops / computing_s / rate
    return {
        "checks": [
            at_most("step_over_naive", step_s / naive_s, 0.5),
            check("flops_share", share, 0.5, share >= 0.5),
            at_most("overhead_share", 1 - computing_s / step_s, 0.15),
            at_most("publish_block_share", median["publish_blocked_s"] / step_s, 0.05),
            delta,
        ],
        "step_s": step_s,
        "naive_step_s": naive_s,
        **{name: median[name] for name in names[2:]},
        "needed_gflop": turns.needed_flops / 1e9,
        "matmul_gflop_per_s": rate / 1e9,
        "tokens_per_s": batch.trained / step_s,
        "peak_memory_gib": turns.peak_gib,
        "threads": torch.get_num_threads(),
    }


class _Turns:
    """Naive steps and the machine's rate, measured before every other step of the loop, from the second on.

    The first step has the process to itself: its memory is the loop's.
    """

    def __init__(self, model: Path, batch: Batch, rounds: int) -> None:
        self.folder, self._batch, self._rounds = model, batch, rounds
        self.naive_s: list[float] = []
        self.rates: list[float] = []
        self.peak_gib = self.needed_flops = 0.0

    def before_step(self, taken: int) -> None:
        """`taken`: steps that the loop has taken."""
        if taken != 1 + 2 * len(self.naive_s) or len(self.naive_s) == self._rounds:
            return
        if taken == 1:
            self.peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            self._model: Any = load_model(self.folder, torch.float32).eval()
            self.needed_flops = needed_flops(self._model, self._batch)
            self._steps = _naive_steps(self._model, self._batch)
            next(self._steps)  # the first is slow
        self.rates.append(matmul_rate(self._model, self._batch))
        self.naive_s.append(next(self._steps))


def needed_flops(model: Any, batch: Batch) -> float:
    """FLOPs of a step's forward and backward that no implementation can avoid: no padding, nothing computed twice."""
    config = model.config.get_text_config()
    linear = sum(2.0 * layer.weight.numel() * rows for layer, rows in _linears(model, batch.fed, batch.trained))
    return 3 * (linear + Shape.of(0, config.num_hidden_layers, config.hidden_size).flops_per_pair * batch.pairs)


def _linears(model: Any, body_rows: int, head_rows: int) -> Iterator[tuple[nn.Linear, int]]:
    head = model.get_output_embeddings()
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            yield layer, head_rows if layer is head else body_rows


def matmul_rate(model: Any, batch: Batch, repeats: int = 5) -> float:
    """FLOP/s of this machine on the step's matmuls, at their own sizes: each layer's forward and its two backward."""
    micro = pack(training_groups(batch, model.config.vocab_size), shape_of(model), LearnerConfig().micro_batch_tokens)
    head_rows = max(1, CHUNK_ELEMENTS // model.get_output_embeddings().weight.shape[0])
    layers = list(_linears(model, micro[0].input_ids.size, min(head_rows, batch.trained)))
    seconds: dict[tuple[int, int, int], float] = {}
    total_flops = total_s = 0.0
    for layer, rows in layers:
        outputs, inputs = layer.weight.shape
        key = (rows, outputs, inputs)
        if key not in seconds:
            seconds[key] = _matmul_seconds(*key, repeats)
        total_flops += 6.0 * rows * outputs * inputs
        total_s += seconds[key]
    return total_flops / total_s


def _matmul_seconds(rows: int, outputs: int, inputs: int, repeats: int) -> float:
    x, weight, grad = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(rows, outputs)
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        torch.mm(x, weight.T)
        torch.mm(grad, weight)
        torch.mm(grad.T, x)
        taken.append(time.perf_counter() - began)
    return min(taken)


def _loop(batch: Batch, steps: int, folder: Path, turns: _Turns) -> list[dict[str, float]]:
    """The dynamics of `steps` steps of the loop after a first, fed by a thread that has its groups ready."""
    learner = LearnerConfig(steps=steps + 1, groups_per_step=batch.problems, checkpoint_every=steps + 1)
    vocabulary = json.loads((turns.folder / "config.json").read_text())["vocab_size"]
    with EmbeddedServer(folder) as server, StoreThread(server.url, RUN, server.password) as line:
        settings = LearnerSettings(
            learner=learner,
            objective=ObjectiveConfig(),
            correction=CorrectionConfig(),
            gating=GatingConfig(),
            draw=DrawConfig(),
            admission=AdmissionConfig(max_lag=steps + 1),  # every group may be made at once, at version 0
            alarms=AlarmsConfig(ess_floor=0, entropy_floor=0, kl_ceiling=1e9),  # random tokens are no policy's
            model=turns.folder,
            run_dir=folder / "run",
            store_url=server.url,
            store_password=server.password,
            run=RUN,
            temperature=1.0,
            group_size=batch.size,
        )
        meta = {"fingerprint": RUN, "gamma": str(settings.gating.gamma), "group_size": str(batch.size)}
        line.call(line.store.open_run(meta))
        line.call(line.store.add_problems([Problem(f"p{i}", str(i), RUN) for i in range(batch.problems)]))
        line.call(line.store.set_phase("running"))
        feeder = threading.Thread(target=_feed, args=(server, batch, vocabulary), daemon=True)
        feeder.start()

        def stopping() -> bool:  # asked before each step
            turns.before_step(int(line.call(line.store.dynamics()).get("step", 0)))
            return False

        ranks = Ranks()
        trainer = Trainer(turns.folder, learner, settings.objective, settings.correction, settings.temperature, ranks)
        Learner(settings, ranks, line, trainer, stopping).run()
        feeder.join()
        return line.call(line.store.dynamics_history(steps))


def _feed(server: EmbeddedServer, batch: Batch, vocabulary: int) -> None:
    """Answer every ticket at once, as an actor would, until the run is done."""
    rng = np.random.default_rng(0)
    with StoreThread(server.url, RUN, server.password) as line:
        while line.call(line.store.phase())[0] == "running":
            for ticket in line.call(line.store.take("feeder", 8, 200)):
                line.call(line.store.commit("feeder", _rolled_out(ticket, batch, vocabulary, rng)))


def _rolled_out(ticket: Ticket, batch: Batch, vocabulary: int, rng: np.random.Generator) -> RolloutGroup:
    """Random tokens; a quarter of the completions are right, which keeps the problem's gate open."""
    right = math.ceil(batch.size / 4)
    completions = tuple(
        Completion(
            rng.integers(0, vocabulary, batch.length).astype(np.int32),
            np.full(batch.length, -math.log(vocabulary), np.float32),
            (Span(0, 0, batch.length),),
            float(i < right),
            Verdict.CORRECT if i < right else Verdict.WRONG,
        )
        for i in range(batch.size)
    )
    prompt = rng.integers(0, vocabulary, batch.prompt).astype(np.int32)
    return RolloutGroup(ticket.id, ticket.problem_id, prompt, completions)


def training_groups(batch: Batch, vocabulary: int) -> list[TrainGroup]:
    """A step's groups with random tokens."""
    rng = np.random.default_rng(0)
    return [
        TrainGroup(
            str(number),
            rng.integers(0, vocabulary, batch.prompt),
            tuple(
                TrainCompletion(rng.integers(0, vocabulary, batch.length), np.zeros(batch.length, np.float32), 1.0)
                for _ in range(batch.size)
            ),
            1.0,
            batch.size,
            batch.size * batch.length,
        )
        for number in range(batch.problems)
    ]


def _naive_steps(model: Any, batch: Batch) -> Iterator[float]:
    """Seconds of each step of a policy gradient over padded rows, one per completion."""
    config = LearnerConfig()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, fused=True)
    rows = torch.from_numpy(
        np.stack(
            [
                np.concatenate([group.prompt_ids, completion.token_ids])
                for group in training_groups(batch, model.config.vocab_size)
                for completion in group.completions
            ]
        )
    )
    while True:
        began = time.perf_counter()
        for some in rows.split(max(1, config.micro_batch_tokens // rows.shape[1])):
            logits = model(some, attention_mask=torch.ones_like(some), logits_to_keep=batch.length + 1).logits
            logprobs = logits[:, :-1].log_softmax(-1).gather(-1, some[:, batch.prompt :, None])
            (-logprobs.sum() / batch.trained).backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        yield time.perf_counter() - began
