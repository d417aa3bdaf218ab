"""pass@k of one model on the held-out problems, exact or sampled, per problem so that models compare in pairs."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gating.passk import pass_at_k
from ops.config import RunConfig
from ops.runfolder import write_atomically
from store.errors import VergeError
from store.wire import Problem

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """pass@k per problem, [problems], for each k; problems in `ids`' order."""

    method: str
    ids: tuple[str, ...]
    pass_at_k: dict[int, Floats]

    def save(self, path: Path) -> None:
        """Write as JSON."""
        rows = {str(k): values.tolist() for k, values in self.pass_at_k.items()}
        write_atomically(path, json.dumps({"method": self.method, "ids": self.ids, "pass_at_k": rows}))

    @classmethod
    def load(cls, path: Path) -> "Evaluation":
        """Read what `save` wrote."""
        data = json.loads(path.read_text(encoding="utf-8"))
        rows = {int(k): np.asarray(values, dtype=np.float64) for k, values in data["pass_at_k"].items()}
        return cls(data["method"], tuple(data["ids"]), rows)


def evaluate_exactly(config: RunConfig, model: Path, problems: Sequence[Problem]) -> Evaluation:
    """Exact pass@k = 1 − (1 − p)^k from the teacher-forced solve rate p of every problem."""
    from ops.exact import exact_solve_rates

    solve_rates = exact_solve_rates(model, problems, temperature=config.sampling.temperature)
    rows = {k: -np.expm1(k * np.log1p(-np.minimum(solve_rates, 1 - 1e-12))) for k in config.evaluation.k}
    return Evaluation("exact", tuple(problem.id for problem in problems), rows)


def evaluate_by_sampling(
    config: RunConfig, base: Path, models: Sequence[Path], problems: Sequence[Problem]
) -> list[Evaluation]:
    """Unbiased pass@k of each model from `samples_per_problem` completions, all by one engine whose weights change."""
    return asyncio.run(_sample(config, base, models, problems))


async def _sample(
    config: RunConfig, base: Path, models: Sequence[Path], problems: Sequence[Problem]
) -> list[Evaluation]:
    from transformers import AutoTokenizer

    from actors.engine import Engine
    from actors.judging import Judge
    from actors.prompts import encode_prompts
    from actors.settings import engine_settings
    from actors.verifiers import Verifiers
    from ops.eval_run import sampled

    n = config.evaluation.samples_per_problem
    sampling = config.sampling.model_copy(update={"group_size": n})
    tokenizer = AutoTokenizer.from_pretrained(base)
    prompts = encode_prompts(problems, tokenizer, config.actor.context_tokens, sampling.max_completion_tokens)
    verifiers = Verifiers(config.verifier)
    judge = Judge(verifiers, tokenizer)
    engine = await Engine.start(engine_settings(base, 0, base, tokenizer, config.actor, sampling, config.seed))
    try:
        evaluations = []
        for version, model in enumerate(models):
            if version > 0:
                await engine.update(version, model)

            tallies = await asyncio.gather(
                *(sampled(engine, problem, prompts[problem.id], judge) for problem in problems)
            )
            counts = np.array([(tally.n, tally.correct) for tally in tallies], dtype=np.int64)
            if counts[:, 0].min() < max(config.evaluation.k):
                raise VergeError(
                    f"a held-out problem has only {counts[:, 0].min()} judged completions, too few for "
                    f"pass@{max(config.evaluation.k)}; the verifier or the engine failed on the others"
                )
            rows = {k: np.asarray(pass_at_k(counts[:, 0], counts[:, 1], k)) for k in config.evaluation.k}
            evaluations.append(Evaluation("sampled", tuple(problem.id for problem in problems), rows))
        return evaluations
    finally:
        verifiers.close()
        await engine.close()


def compare(base: Evaluation, trained: Evaluation) -> list[dict[str, Any]]:
    """Base against trained, k by k: means, their standard errors over problems, and the paired gain with its own."""
    if base.ids != trained.ids:
        raise ValueError("base and trained were evaluated on other problems")
    rows = []
    for k in base.pass_at_k:
        before, after = base.pass_at_k[k], trained.pass_at_k[k]
        root = np.sqrt(len(before))
        spread = [
            float(values.std(ddof=1) / root) if len(before) > 1 else 0.0 for values in (before, after, after - before)
        ]
        gain = float((after - before).mean())
        rows.append(
            {
                "k": k,
                "base": float(before.mean()),
                "base_se": spread[0],
                "trained": float(after.mean()),
                "trained_se": spread[1],
                "gain": gain,
                "gain_se": spread[2],
                "gain_over_se": gain / spread[2] if spread[2] > 0 else 0.0,
            }
        )
    return rows
