"""`verge lab staleness`: one method on rollouts of a fixed age, with and without the trust region on negatives.

The learner's own parts (opinions, draw, correction, DeepSpeed step) train the tiny Countdown model. The sampler is in
this process, and its weights are exactly `lag` versions old, which no fleet of actors would be. Solve rates are exact.
"""

import copy
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actors.config import ProblemsConfig
from actors.problems import load_problems
from actors.verifiers import countdown
from gating import advantages, posterior
from learner.config import CorrectionConfig, DrawConfig, GatingConfig, LearnerConfig, ObjectiveConfig
from learner.groups import training_group
from learner.opinions import Opinions
from learner.ranks import Ranks
from learner.trainer import Trainer
from ops.exact import exact_pass_at_k, solve_rates
from ops.figures import check
from ops.models import resolve_model
from store.wire import Completion, GroupEntry, Problem, RolloutGroup, Span, Verdict

GROUPS, SIZE, LONGEST = 64, 8, 8
"""Groups of a step, completions of a group, tokens of a completion."""
RATE = 2e-4
PASS_AT = (1, 4, 16, 64)
RISES, COLLAPSES = 0.03, 0.5
"""Gain of pass@16 that counts as a rise; share of the base's pass@16 under which a run has collapsed."""


def run(lag: int, steps: int, seed: int, advantage: str = "fade_bbg") -> dict[str, Any]:
    """Train twice from the tiny model, with and without the trust region; the checks compare exact held-out pass@16."""
    advantages.make(advantage).success(1, SIZE)  # ValueError names what is wrong
    folder = resolve_model("tiny")
    kept = train(folder, advantage, lag, True, steps, seed)
    lost = train(folder, advantage, lag, False, steps, seed)
    gain = kept["trained"]["16"] - kept["base"]["16"]
    left = lost["trained"]["16"] / lost["base"]["16"]
    return {
        "advantage": advantage,
        "lag": lag,
        "steps": steps,
        "with_trust_region": kept,
        "without_trust_region": lost,
        "checks": [
            check("pass_at_16_gain_with_trust_region", gain, RISES, gain >= RISES),
            check("pass_at_16_share_left_without", left, COLLAPSES, left <= COLLAPSES),
        ],
    }


class Evidence:
    """Every problem's discounted successes and failures: what opinions read of the store's mirror."""

    def __init__(self, ids: Sequence[str], gamma: float) -> None:
        self.ids = list(ids)
        self._gamma = gamma
        self._facts = np.zeros(len(ids)), np.zeros(len(ids)), np.zeros(len(ids))

    def add(self, rows: NDArray[np.int64], c: NDArray[np.int64], written: int) -> None:
        """One group of each of these problems, with c right, written by one version."""
        a, b, version = (column[rows] for column in self._facts)
        now = posterior.discount(a, b, version, c, SIZE, written, self._gamma)
        for column, values in zip(self._facts, now, strict=True):
            column[rows] = values

    def evidence_at(self, now_version: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Both, as they are worth at `now_version`, float[P]."""
        return posterior.evidence_at(*self._facts, now_version, self._gamma)


class Sampler:
    """Completions of plain prompts of one length, by the weights of `lag` versions ago."""

    def __init__(self, model: Any, tokenizer: Any, lag: int, seed: int) -> None:
        self._model, self._tokenizer = copy.deepcopy(model), tokenizer
        self._waiting: deque[dict[str, torch.Tensor]] = deque(maxlen=lag + 1)
        self._random = torch.Generator().manual_seed(seed)
        self.version = 0
        self.offer(0, model)

    def offer(self, version: int, model: Any) -> None:
        """Newest weights, of `version`; those that have now waited long enough are loaded."""
        self._waiting.append({name: value.clone() for name, value in model.state_dict().items()})
        self._model.load_state_dict(self._waiting[0])
        self.version = version + 1 - len(self._waiting)

    @torch.inference_mode()
    def sample(self, problems: Sequence[Problem], step: int) -> list[tuple[RolloutGroup, int]]:
        """One group of each problem, and how many of it are right."""
        ends = self._tokenizer.eos_token_id
        prompts = torch.tensor([self._tokenizer(problem.prompt).input_ids for problem in problems])
        tokens, cache, chosen = prompts.repeat_interleave(SIZE, 0), None, []
        for _ in range(LONGEST):
            answer = self._model(tokens, past_key_values=cache, use_cache=True)
            cache, logprobs = answer.past_key_values, answer.logits[:, -1].log_softmax(-1)
            tokens = torch.multinomial(logprobs.exp(), 1, generator=self._random)
            chosen.append((tokens, logprobs.gather(-1, tokens)))
        written = torch.cat([token for token, _ in chosen], 1).numpy().astype(np.int32)
        logprobs = torch.cat([logprob for _, logprob in chosen], 1).numpy()
        groups = []
        for place, problem in enumerate(problems):
            rows = range(place * SIZE, (place + 1) * SIZE)
            completions = tuple(self._completion(problem, written[row], logprobs[row], ends) for row in rows)
            group = RolloutGroup(f"{step}-{place}", problem.id, prompts[place].numpy().astype(np.int32), completions)
            groups.append((group, sum(c.verdict is Verdict.CORRECT for c in completions)))
        return groups

    def _completion(
        self, problem: Problem, tokens: NDArray[np.int32], logprobs: NDArray[np.float32], end: int
    ) -> Completion:
        ended = np.flatnonzero(tokens == end)
        length = int(ended[0]) + 1 if len(ended) else LONGEST
        text = self._tokenizer.decode(tokens[: length - 1]) if len(ended) else ""
        right = bool(len(ended)) and countdown.verify(problem.answer, text)
        return Completion(
            tokens[:length],
            logprobs[:length],
            (Span(self.version, 0, length),),
            float(right),
            Verdict.CORRECT if right else Verdict.WRONG if len(ended) else Verdict.TRUNCATED,
            "stop" if len(ended) else "length",
        )


def train(folder: Path, advantage: str, lag: int, trust: bool, steps: int, seed: int) -> dict[str, Any]:
    """Exact held-out pass@k before and after, mean over problems, and the mean reward of every step."""
    from transformers import AutoTokenizer

    given = load_problems(ProblemsConfig())
    problems, held_out = tuple(given.train), tuple(given.held_out)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    gating, objective = GatingConfig(), ObjectiveConfig(advantage=advantage)
    opinions, evidence = Opinions(objective, gating, DrawConfig()), Evidence([p.id for p in problems], gating.gamma)
    learner = LearnerConfig(lr=RATE, dtype="fp32", threads=1)
    trainer = Trainer(folder, learner, objective, CorrectionConfig(trust=trust), 1.0, Ranks())
    model = trainer.engine.module.model
    sampler, rng = Sampler(model, tokenizer, lag, seed), np.random.default_rng(seed)

    def pass_at() -> dict[str, float]:
        p = solve_rates(model, tokenizer, held_out, max_completion_tokens=LONGEST)
        return {str(k): float(exact_pass_at_k(p, k).mean()) for k in PASS_AT}

    base, rewards = pass_at(), []
    for step in range(steps):
        rows = rng.choice(len(problems), GROUPS, replace=False)
        sampled = sampler.sample([problems[row] for row in rows], step)
        right = np.array([c for _, c in sampled])
        evidence.add(rows, right, sampler.version)
        entries = [
            GroupEntry(group.id, "", group.problem_id, SIZE, c, sampler.version, sampler.version, 0, 0.0)
            for group, c in sampled
        ]
        gates = opinions.gates(evidence, step)
        mass = opinions.masses(entries, rows, gates)
        kept = np.flatnonzero(mass > 0)
        drawn = opinions.draw([entries[i] for i in kept], rows[kept], mass[kept], gates, len(kept), rng)
        by_id = {group.id: group for group, _ in sampled}
        result = trainer.step(
            [
                training_group(by_id[entry.id], drawn.success[i], drawn.failure[i], drawn.weight[i], False)
                for i, entry in enumerate(drawn.entries)
            ],
            step,
        )
        opinions.fade.update(float(right.mean()) / SIZE, result.metrics["entropy"])
        sampler.offer(step + 1, model)
        rewards.append(float(right.mean()) / SIZE)
    return {"base": base, "trained": pass_at(), "rewards": rewards}
