"""One optimiser step through DeepSpeed, the same at any world size, ZeRO stage and micro-batch size."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from learner import lora
from learner.batches import Completionwise, MicroBatch, TrainGroup, pack, unpack
from learner.config import CorrectionConfig, LearnerConfig, ObjectiveConfig
from learner.loading import DTYPES, attention_for, load_model
from learner.objective import Denominator, StepStats, policy_loss
from learner.optimiser import clip, make_optimizer
from learner.policy import DeviceBatch, Policy, logprobs_of, shape_of
from learner.ranks import Ranks, import_deepspeed, quietly
from learner.selection import mark, selects
from store.errors import VergeError

_PREFIX = "model."
"""What `Policy` puts before a Hugging Face parameter name."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Metrics of a step over all ranks, and whether it changed the weights. `reason` says why it is not whole."""

    metrics: dict[str, float]
    applied: bool
    reason: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    """Of this rank: forward_backward_s and optimiser_s, summed over mini-batches."""


class Trainer:
    """The DeepSpeed engine and what surrounds it.

    A mini-batch that meets a non-finite loss or gradient leaves weights and optimiser as they were, and ends the step:

        forward, backward of each micro-batch ──finite──▶ clip ──▶ AdamW ──▶ applied ──▶ next mini-batch
                                              └─non-finite on any rank──▶ gradients dropped, not applied
    """

    def __init__(
        self,
        model: Path,
        learner: LearnerConfig,
        objective: ObjectiveConfig,
        correction: CorrectionConfig,
        temperature: float,
        ranks: Ranks,
    ) -> None:
        deepspeed = import_deepspeed()
        self._deepspeed, self._ranks = deepspeed, ranks
        self._learner, self._objective, self._correction = learner, objective, correction
        if learner.threads is not None:
            torch.set_num_threads(learner.threads)
        self.device = ranks.device
        loaded = load_model(model, DTYPES[learner.dtype], attention_for(learner.attention, ranks.device))
        if learner.lora is not None:
            lora.add_adapters(loaded, learner.lora)
        policy = Policy(loaded, temperature).eval()
        trained = [p for p in policy.parameters() if p.requires_grad]
        self.config = policy.model.config.get_text_config()
        self._shape = shape_of(policy.model)
        head = policy.model.get_output_embeddings().weight
        self.head = next(name for name, p in policy.named_parameters() if p is head).removeprefix(_PREFIX)
        """The output head's name in `weights`; tied, that of the embedding."""
        optimizer = make_optimizer(trained, learner, ranks.device)
        with quietly():
            self.engine, *_ = deepspeed.initialize(
                model=policy, optimizer=optimizer, config=_deepspeed_config(learner, sum(p.numel() for p in trained))
            )
        self.engine.eval()  # no dropout: behaviour log-probs had none
        if ranks.world == 1 and learner.zero_stage == 0:
            self.engine.enable_backward_allreduce = False  # it would copy every gradient to a bucket and back

    def step(self, groups: list[TrainGroup], number: int) -> StepResult:
        """Take step `number` (from 0) on this rank's groups, a mini-batch at a time. Collective: every rank calls it.

        Of its metrics, `loss` is the mean over the optimiser steps and `grad_norm` the largest.
        """
        groups = self._scaled(groups)
        if self._correction.kind == "decoupled" and self._learner.mini_batches > 1:
            groups = _with_proximal(groups, self.logprobs(groups))
        stats, norms, reason = StepStats(self._ranks.device), [], ""
        seconds = {"forward_backward_s": 0.0, "optimiser_s": 0.0}
        for mini_batch in self._mini_batches(groups):
            batches = self._pack(mini_batch)
            if not batches:
                continue
            if selects(self._objective, self._correction):
                logprobs = unpack(mini_batch, batches, logprobs_of(self.engine, batches, self._ranks.device))
                mini_batch = mark(mini_batch, logprobs, self._objective, self._correction, number, self._ranks.gather)
                batches = self._pack(mini_batch)
            reason, norm = self._optimise(batches, mini_batch, stats, number, seconds)
            norms.append(norm)
            if reason:
                break
        self._ranks.reduce_tensor(stats.sums, "sum")
        self._ranks.reduce_tensor(stats.ratio_max, "max")
        metrics = stats.metrics()
        if not norms:
            return StepResult(metrics, False, "no completion of the batch has an advantage")
        metrics |= {"loss": metrics["loss"] / len(norms), "grad_norm": float(np.max(norms))}
        if reason and not np.isfinite(metrics["loss"]):
            reason = f"the loss is {metrics['loss']}"
        if reason and len(norms) > 1:
            reason = f"in mini-batch {len(norms)} {reason}"
        return StepResult(metrics, not reason or len(norms) > 1, reason, seconds)

    def _scaled(self, groups: list[TrainGroup]) -> list[TrainGroup]:
        """The groups with weights that give advantage × weight the mean size of the config, over all ranks."""
        sizes = [g.weight * sum(abs(c.advantage) for c in g.completions) for g in groups]
        total, count = self._ranks.reduce([sum(sizes), sum(g.eligible for g in groups)], "sum")
        if self._objective.scale is None or not total > 0:
            return groups
        factor = self._objective.scale * count / total
        return [replace(group, weight=group.weight * factor) for group in groups]

    def logprobs(self, groups: list[TrainGroup]) -> Completionwise:
        """Log-probs of every completion's tokens under the weights as they are. Collective."""
        found: Completionwise = [[] for _ in groups]
        where = {id(group): index for index, group in enumerate(groups)}
        # In the very micro-batches of the step, so that in low precision, too, the policy has moved by 0 at its start.
        for mini_batch in self._mini_batches(groups):
            batches = self._pack(mini_batch)
            values = logprobs_of(self.engine, batches, self._ranks.device)
            for group, of_group in zip(mini_batch, unpack(mini_batch, batches, values), strict=True):
                found[where[id(group)]] = of_group
        return found

    def _mini_batches(self, groups: list[TrainGroup]) -> list[list[TrainGroup]]:
        return [[g for g in groups if g.mini_batch == number] for number in range(self._learner.mini_batches)]

    def _pack(self, groups: list[TrainGroup]) -> list[MicroBatch]:
        """Micro-batches of this rank, as many as on every other. Collective."""
        batches = pack(groups, self._shape, self._learner.micro_batch_tokens)
        # Every rank must take part in every collective of the engine: one with fewer batches adds empty ones.
        most = int(self._ranks.reduce([len(batches)], "max")[0])
        return batches + [_empty()] * (most - len(batches))

    def _optimise(
        self,
        batches: list[MicroBatch],
        mini_batch: list[TrainGroup],
        stats: StepStats,
        number: int,
        seconds: dict[str, float],
    ) -> tuple[str, float]:
        """One optimiser step, whose time is added to `seconds`; as `_update`."""
        mine = Denominator.of(mini_batch)
        completions, tokens = self._ranks.reduce([mine.completions, mine.tokens], "sum")
        denominator = Denominator(max(int(completions), 1), max(int(tokens), 1))
        began = self._now()
        for index, batch in enumerate(batches):
            self._micro_step(batch, denominator, stats, last=index == len(batches) - 1)
        computed = self._now()
        done = self._update(number)
        seconds["forward_backward_s"] += computed - began
        seconds["optimiser_s"] += self._now() - computed
        return done

    def _micro_step(self, batch: MicroBatch, denominator: Denominator, stats: StepStats, last: bool) -> None:
        data = DeviceBatch(batch, self._ranks.device)
        self.engine.set_gradient_accumulation_boundary(last)
        logprobs, entropy = self.engine(data)
        loss = policy_loss(logprobs, entropy, data.tokens, denominator, self._objective, self._correction, stats)
        if last:
            # A loss can be non-finite and its gradient finite. Poisoning the gradient everywhere sends the step down
            # DeepSpeed's own overflow path, which drops every buffer of every ZeRO stage.
            finite = self._ranks.reduce([float(torch.isfinite(stats.sums[0]))], "min")[0]
            loss = loss if finite else loss * float("nan")
        # DeepSpeed averages over ranks; our denominators are already those of all ranks.
        self.engine.backward(loss * self._ranks.world, scale_wrt_gas=False)

    def _update(self, number: int) -> tuple[str, float]:
        """Clip and step; returns why not ("" = done) and the gradient norm before clipping."""
        learner = self._learner
        warm = min(1.0, (number + 1) / (learner.warmup_steps + 1))
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learner.lr * warm
        if learner.zero_stage == 0:
            norm = clip(self.engine.module.parameters(), learner.grad_clip)
            if not np.isfinite(norm):
                self.engine.optimizer.zero_grad(set_to_none=True)
                return f"the gradient norm is {norm}", norm
            self.engine.step()
            return "", norm
        self.engine.step()
        norm = float(self.engine.get_global_grad_norm() or 0.0)
        return ("", norm) if self.engine.was_step_applied() else ("the gradient is not finite", norm)

    def _now(self) -> float:
        """Seconds of a clock, read once the device has done all that it was given."""
        if self._ranks.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and full value of every parameter and saved buffer, one at a time, as Hugging Face names them; adapters
        are merged.

        Collective: every rank must run through all of it, and sees full values. A tied weight comes once.
        """
        module = self.engine.module
        layers = lora.adapted(module)
        for name, parameter in module.named_parameters():
            if lora.is_factor(name):
                continue
            layer, public = layers.get(name), lora.plain_name(name).removeprefix(_PREFIX)
            with self._whole([parameter, *(lora.factors(layer) if layer is not None else [])]):
                yield public, parameter.detach() if layer is None else lora.merged(parameter, layer)
        saved = module.state_dict(keep_vars=True).keys() if self._learner.zero_stage < 3 else ()
        for name, buffer in module.named_buffers():
            if name in saved:
                yield name.removeprefix(_PREFIX), buffer

    def _whole(self, parameters: list[torch.nn.Parameter]) -> AbstractContextManager[Any]:
        """Within it, parameters that ZeRO 3 has split are whole. Collective."""
        if self._learner.zero_stage < 3:
            return nullcontext()
        gathered: AbstractContextManager[Any] = self._deepspeed.zero.GatheredParameters(parameters)
        return gathered

    def save(self, folder: Path, tag: str) -> None:
        """Write DeepSpeed's state to folder/tag. Collective."""
        self.engine.save_checkpoint(str(folder), tag=tag, save_latest=False)

    def load(self, folder: Path, tag: str) -> None:
        """Read it back. Collective; VergeError where it cannot be read."""
        parts = len(list((folder / tag).glob("*zero_pp_rank_*_optim_states.pt")))
        if self._learner.zero_stage > 0 and parts not in (0, self._ranks.world):
            raise VergeError(
                f"checkpoint {folder} has the optimiser in {parts} parts, one a rank, but there are"
                f" {self._ranks.world} ranks, and ZeRO {self._learner.zero_stage} does not divide it anew; start"
                f" {parts} ranks"
            )
        try:
            path, _ = self.engine.load_checkpoint(str(folder), tag=tag)
        except (OSError, RuntimeError, EOFError, ValueError) as error:
            raise VergeError(
                f"checkpoint {folder} is damaged ({str(error).splitlines()[0]}); write the name of another one that is "
                f"beside it into {folder.parent / 'latest'}"
            ) from error
        if path is None:
            raise VergeError(f"checkpoint {folder / tag} cannot be loaded: it is empty or of another ZeRO stage")


def _empty() -> MicroBatch:
    """One token without advantage."""
    one, zero = np.zeros((1, 1), np.int64), np.zeros(1, np.int64)
    nothing = np.zeros(1, np.float64)
    missing = np.full(1, np.nan, np.float32)
    nowhere = np.zeros((0, 2), np.int64)
    return MicroBatch(one, one, one, one, zero, zero, missing, nothing, zero, zero, nothing, nothing, nowhere)


def _with_proximal(groups: list[TrainGroup], logprobs: Completionwise) -> list[TrainGroup]:
    return [
        replace(
            group,
            completions=tuple(
                replace(completion, proximal=proximal)
                for completion, proximal in zip(group.completions, of_group, strict=True)
            ),
        )
        for group, of_group in zip(groups, logprobs, strict=True)
    ]


def _deepspeed_config(learner: LearnerConfig, parameters: int) -> dict[str, Any]:
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,  # the engine never sees a batch size: micro-batches differ
        "gradient_accumulation_steps": 1,
        "steps_per_print": 1 << 60,
        "zero_optimization": {
            "stage": learner.zero_stage,
            "overlap_comm": torch.cuda.is_available(),
            # The default buckets of 5e8 elements are allocated whole, 2 GB each, however small the model.
            "reduce_bucket_size": min(int(5e8), parameters),
            "allgather_bucket_size": min(int(5e8), parameters),
        },
    }
    if learner.zero_stage > 0:
        config["gradient_clipping"] = learner.grad_clip
    if learner.dtype == "bf16":
        config["bf16"] = {"enabled": True}
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    return config
