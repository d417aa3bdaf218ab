"""Advantages that read log-probs, from a real store, policy and reference: right, and the reference asked only once."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from gating import filtered
from gating.advantages import make
from learner.base_evidence import BaseEvidence
from learner.config import (
    AdmissionConfig,
    CorrectionConfig,
    DrawConfig,
    GatingConfig,
    LearnerConfig,
    LearnerSettings,
    ObjectiveConfig,
)
from learner.ranks import Ranks
from learner.reference import Reference
from learner.store_thread import StoreThread
from learner.trainer import Trainer
from learner.weighing import Weigher
from store.errors import VergeError
from store.server import EmbeddedServer
from store.wire import Completion, RolloutGroup, Span, Verdict
from tests.learner.scripted import VOCAB, problems, tiny_llama

TEMPERATURE = 0.8
VERDICTS = (Verdict.CORRECT, Verdict.WRONG, Verdict.ERROR, Verdict.CORRECT, Verdict.TRUNCATED)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tuple(tiny_llama(tmp_path_factory.mktemp("model") / str(seed), seed=seed) for seed in (0, 1))


def settings_of(model: Path, folder: Path) -> LearnerSettings:
    return LearnerSettings(
        LearnerConfig(threads=1, micro_batch_tokens=32), ObjectiveConfig(), CorrectionConfig(), GatingConfig(),
        DrawConfig(), AdmissionConfig(), model, folder, "", None, "hand", TEMPERATURE, 5,
    )  # fmt: skip


class Bench:
    """Three groups in a store, the policy in one folder, and its base in another, so that log π/a is not 0."""

    def __init__(self, server: EmbeddedServer, tmp_path: Path, folders: tuple[Path, Path]) -> None:
        self.line = StoreThread(server.url, tmp_path.name, server.password)
        store, call = self.line.store, self.line.call
        call(store.open_run({"fingerprint": "t", "gamma": "0.97", "group_size": "5"}))
        call(store.add_problems(problems(3)))
        call(store.issue(["p0", "p1", "p2"], 3))
        rng, self.groups = np.random.default_rng(0), {}
        for place, ticket in enumerate(call(store.take("hand", 3, 0))):
            completions = []
            for i, verdict in enumerate(VERDICTS):
                ids = rng.integers(0, VOCAB, 1 + (place + i) % 4).astype(np.int32)
                logprobs = -rng.exponential(2, len(ids)).astype(np.float32)
                completions.append(Completion(ids, logprobs, (Span(0, 0, len(ids)),), 0.0, verdict))
            prompt = rng.integers(0, VOCAB, 4).astype(np.int32)
            self.groups[place] = RolloutGroup(ticket.id, ticket.problem_id, prompt, tuple(completions))
            assert call(store.commit("hand", self.groups[place])) == "committed"
        self.ids = [group.id for group in self.groups.values()]
        self._folders, self._tmp_path = folders, tmp_path

    def weigh(self, advantage: str, params: dict[str, Any], base: Any = None, **chosen: Any) -> Any:
        policy, reference = self._folders
        objective = ObjectiveConfig(advantage=advantage, params=params, **chosen)
        settings = replace(
            settings_of(policy, self._tmp_path), objective=objective, reference=reference, completion_limit=4
        )
        trainer = Trainer(policy, settings.learner, settings.objective, settings.correction, TEMPERATURE, Ranks())
        plan = {"ids": self.ids, "weight": [1.0, 2.0, 3.0], "base": base or [(0, 0)] * 3}
        plan |= {"success": [1.0] * 3, "failure": [0.0] * 3}
        return Weigher(settings, trainer, self.line).weigh(self.groups, plan)

    def logprobs(self, place: int, which: int) -> np.ndarray:
        """Of each completion of the evidence under policy (0) or base (1), one at a time, and nothing clever."""
        model = AutoModelForCausalLM.from_pretrained(self._folders[which], dtype=torch.float64)
        group, sums = self.groups[place], []
        for item in group.evidence:
            ids = torch.from_numpy(np.concatenate([group.prompt_ids, item.token_ids]).astype(np.int64))[None]
            with torch.no_grad():
                logits = model(ids).logits[0, len(group.prompt_ids) - 1 : -1].double() / TEMPERATURE
            at = torch.from_numpy(item.token_ids.astype(np.int64))[:, None]
            sums.append(float(logits.log_softmax(-1).gather(-1, at).sum()))
        return np.array(sums)


@pytest.fixture
def bench(tmp_path: Path, folders: tuple[Path, Path]) -> Iterator[Bench]:
    with EmbeddedServer(tmp_path) as server:
        made = Bench(server, tmp_path, folders)
        yield made
        made.line.close()


def advantages_of(groups: Any) -> list[list[float]]:
    return [[completion.advantage for completion in group.completions] for group in groups]


def test_both_reference_objectives_get_the_log_probs_of_policy_and_base_as_they_are(bench: Bench) -> None:
    v = np.array([[1.0, 0.0, 1.0, 0.0]])  # the error is no evidence
    for name, params in (("kl_control", {"beta": 0.3}), ("filtered", {"cap": 4.0})):
        weighed = bench.weigh(name, params)
        for place, group in enumerate(weighed):
            now, base = (bench.logprobs(place, which)[None] for which in (0, 1))
            expected = make(name, **params).completions(v, now, base)[0]
            assert [c.advantage for c in group.completions] == pytest.approx(expected.tolist(), abs=2e-5)
        assert [group.weight for group in weighed] == [1, 2, 3]
    # Once for both runs: the log-probs lie beside the groups.
    kept = bench.line.call(bench.line.store.reference_logprobs(bench.ids))
    for place, name in enumerate(bench.ids):
        assert kept[name].tolist() == pytest.approx(bench.logprobs(place, 1).tolist(), abs=2e-5)  # type: ignore[union-attr]


def test_log_probs_that_are_in_the_store_are_not_computed_again(bench: Bench) -> None:
    flat = advantages_of(bench.weigh("kl_control", {"beta": 0.3}))
    now = {place: bench.logprobs(place, 0) for place in range(3)}
    # As if the base had been the policy itself: then there is no KL to pay.
    bench.line.call(bench.line.store.keep_reference_logprobs({bench.ids[p]: now[p] for p in now}))
    found = advantages_of(bench.weigh("kl_control", {"beta": 0.3}))
    assert found == [pytest.approx([2 / 3, -2 / 3, 2 / 3, -2 / 3], abs=2e-5)] * 3
    assert flat != found
    bench.line.call(bench.line.store.keep_reference_logprobs({bench.ids[0]: np.zeros(3)}))  # of another group size
    assert advantages_of(bench.weigh("kl_control", {"beta": 0.3}))[0] == pytest.approx(flat[0], abs=1e-6)


def test_a_masked_truncated_completion_is_no_baseline_for_the_others(bench: Bench) -> None:
    (first, *_) = bench.weigh("kl_control", {"beta": 0.3}, truncated="mask")
    now, base = bench.logprobs(0, 0)[:3], bench.logprobs(0, 1)[:3]
    expected = filtered.kl_control([[1.0, 0.0, 1.0]], [now], [base], 0.3)[0]
    assert [c.advantage for c in first.completions] == pytest.approx(expected.tolist(), abs=2e-5)
    assert first.eligible == 3


def test_beta_of_a_target_comes_from_the_bases_own_record(bench: Bench) -> None:
    # 3 right and 3 wrong elsewhere: the posterior mean is 1/2, and β(.5 → .8) = 1/log 4.
    aimed = bench.weigh("kl_control", {"mu": 0.8}, base=[(3, 3)] * 3)
    fixed = bench.weigh("kl_control", {"beta": 1 / np.log(4)})
    assert advantages_of(aimed) == [pytest.approx(row) for row in advantages_of(fixed)]


def test_a_group_is_left_out_of_the_record_of_the_base_that_judges_it(bench: Bench) -> None:
    store, call = bench.line.store, bench.line.call
    evidence = BaseEvidence(store)
    call(evidence.sync())
    entries = call(store.entries())
    assert evidence.without(entries) == [(0, 0)] * 3
    call(store.issue(["p0", "p0"], 5))
    for version, ticket in enumerate(call(store.take("hand", 2, 0))):
        item = Completion(np.zeros(1, np.int32), np.zeros(1, np.float32), (Span(version, 0, 1),), 1.0, Verdict.CORRECT)
        call(store.commit("hand", RolloutGroup(ticket.id, "p0", np.zeros(1, np.int32), (item,))))
    call(evidence.sync())
    by_base, later = call(store.entries())[-2:]
    first = next(e for e in entries if e.problem_id == "p0")
    assert evidence.without([first, by_base, later]) == [(1, 0), (2, 2), (3, 2)]


@pytest.mark.parametrize("name", ["unlikely", "ds_grpo"])
def test_what_reads_log_probs_alone_gets_those_that_sampled_the_answer(bench: Bench, name: str) -> None:
    v = np.array([[1.0, 0.0, 1.0, 0.0]])
    for place, group in enumerate(bench.weigh(name, {})):
        sampled = np.array([[item.logprobs.astype(np.float64).sum() for item in bench.groups[place].evidence]])
        expected = make(name).completions(v, sampled)[0]
        assert [c.advantage for c in group.completions] == pytest.approx(expected.tolist(), rel=1e-6)


def test_the_overlong_penalty_is_added_to_the_advantage_less_that_of_the_others(bench: Bench) -> None:
    # The evidence has 1, 2, 4 and 1 of at most 4 tokens: with a cache of 2, charged 0, 0, 1 and 0. The verdicts give
    # 1, 0, 1 and 0, so that the long right answer is left with nothing.
    assert [len(item.token_ids) for item in bench.groups[0].evidence] == [1, 2, 4, 1]
    (first, *_) = bench.weigh("psr", {}, overlong_cache=2)
    assert [c.advantage for c in first.completions] == pytest.approx([1 + 1 / 3, 1 / 3, 1 / 3], rel=1e-12)
    assert first.eligible == 4
    (masked, *_) = bench.weigh("psr", {}, overlong_cache=2, truncated="mask")
    assert [c.advantage for c in masked.completions] == pytest.approx([1 + 1 / 2, 1 / 2], rel=1e-12)


def test_with_an_entropy_bonus_completions_without_advantage_are_worked_on_too(bench: Bench) -> None:
    (first, *_) = bench.weigh("psr", {})
    (all_of_it, *_) = bench.weigh("psr", {}, entropy_bonus=0.1)
    assert [len(g.completions) for g in (first, all_of_it)] == [2, 4]
    assert (first.eligible, first.eligible_tokens) == (all_of_it.eligible, all_of_it.eligible_tokens)


def test_a_diverged_policy_gives_advantages_that_the_step_refuses(bench: Bench) -> None:
    bench.line.call(bench.line.store.keep_reference_logprobs({bench.ids[1]: np.full(4, np.nan)}))
    weighed = bench.weigh("filtered", {})
    assert np.isnan(advantages_of(weighed)[1]).all()
    assert np.isfinite(advantages_of(weighed)[0]).all()


def test_a_reference_of_another_vocabulary_or_a_shorter_context_is_refused(
    tmp_path: Path, folders: tuple[Path, Path]
) -> None:
    policy = AutoModelForCausalLM.from_pretrained(folders[0]).config
    other = tiny_llama(tmp_path / "other", vocab=VOCAB + 1)
    settings = settings_of(folders[0], tmp_path)
    with pytest.raises(VergeError, match=r"has a vocabulary of 13 tokens but must have 12 \(= that of the model\)"):
        Reference(other, policy, settings, torch.device("cpu"))
    policy.max_position_embeddings = 65
    with pytest.raises(VergeError, match=r"has a context of 64 tokens but must have ≥ 65"):
        Reference(folders[1], policy, settings, torch.device("cpu"))
